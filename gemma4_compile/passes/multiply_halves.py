"""Matmuls of a chunk on int8 groups, where the target multiplies matrices of float16 alone.

Before and after::

    y = int8_linear(words, scales, weights)

with `HalvedInt8` after it: the same rows, whose products are those of operands rounded to float16.
Experts' matmuls are taken in the same way. Only graphs that have float16 are taken: a library
without it must not need it.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import relax

from gemma4_compile.operators.activations import HALVED_INT8, INT8, PACKED
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.rows import Chunk
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.operator_graph import OperatorCall, OperatorGraph


def multiply_halves(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Let a chunk's matmuls on packed rows multiply float16."""
    if limits.takes_halves is None or not _has_float16(graph):
        return
    calls: list[OperatorCall[Linear | ExpertLinear]]
    calls = [*graph.calls(Linear), *graph.calls(ExpertLinear)]
    for call in calls:
        operator = call.operator
        is_packed = operator.in_dtype == PACKED and operator.activations == INT8
        is_of_chunk = isinstance(operator.rows, Chunk)
        if is_packed and is_of_chunk and limits.takes_halves(operator.layout):
            halved = replace(operator, activations=HALVED_INT8)
            graph.replace([call], [OperatorCall(halved, call.args, call.results)])


def _has_float16(graph: OperatorGraph) -> bool:
    """Return whether a call has a tensor of float16 among its arguments."""
    tensors = (arg.ty for step in graph.steps for arg in getattr(step, "args", ()))
    return any(isinstance(ty, relax.TensorType) and ty.dtype == "float16" for ty in tensors)
