"""The flash-decoding combine in the launch of the output projection.

Before::

    x = combine_splits(o_partial, split_lse)
    y = linear(x, weights)

After::

    y = linear(o_partial, split_lse, weights)   prologue Combine
"""

from __future__ import annotations

from dataclasses import replace

from tvm import DataType

from gemma4_compile.operators.activations import PACKED
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.prologues import Combine
from gemma4_compile.operators.rows import One
from gemma4_compile.passes.fuse_norm_linear import matmuls
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.operator_graph import (
    OperatorCall,
    OperatorGraph,
)


def fuse_attention_combine(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Fuse each combine with the one matmul that reads it: every block reads all splits."""
    for linear in matmuls(graph):
        combine = combine_of(graph, linear)
        if combine is None or not _is_small(combine, linear, limits):
            continue
        splits = combine.operator
        prologue = Combine(splits.heads, splits.head_dim, splits.splits)
        operator = replace(linear.operator, in_dtype=splits.out_dtype, prologue=prologue)
        args = [*combine.args, *linear.args[1:]]
        if limits.binds(args, len(linear.results)):
            graph.replace([combine, linear], [OperatorCall(operator, args, linear.results)])


def combine_of(
    graph: OperatorGraph, linear: OperatorCall[Linear]
) -> OperatorCall[CombineSplits] | None:
    """The combine that makes a matmul's vector, and has no other reader."""
    combine = graph.only_producer(linear.args[0], CombineSplits)
    operator = linear.operator
    if combine is None or operator.in_dtype == PACKED:
        return None
    is_of_one = isinstance(combine.operator.rows, One) and not combine.operator.packs
    return combine if operator.is_plain and is_of_one else None


def _is_small(
    combine: OperatorCall[CombineSplits], linear: OperatorCall[Linear], limits: FusionLimits
) -> bool:
    if linear.operator.cols > limits.width:
        return False
    if limits.max_buffers is None:
        return True
    splits = combine.operator
    size = DataType(splits.out_dtype).bits // 8
    nbytes = size * splits.splits * splits.heads * splits.head_dim
    tuning = limits.tuning
    return nbytes <= tuning.max_combine_bytes and splits.splits <= tuning.max_combined_splits
