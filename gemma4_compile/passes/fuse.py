"""The fusions of a target, in their order: from the model's operators to its launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import tvm

from gemma4_compile.passes.divide_chunk_attention import divide_chunk_attention
from gemma4_compile.passes.few_row_experts import few_row_experts
from gemma4_compile.passes.few_rows import few_rows
from gemma4_compile.passes.fuse_altup import fuse_altup
from gemma4_compile.passes.fuse_attention_combine import fuse_attention_combine
from gemma4_compile.passes.fuse_clips import fuse_clips
from gemma4_compile.passes.fuse_linear_pairs import fuse_linear_pairs
from gemma4_compile.passes.fuse_norm_linear import fuse_norm_linear
from gemma4_compile.passes.fuse_residual_norm import fuse_residual_norm
from gemma4_compile.passes.fuse_router import fuse_router
from gemma4_compile.passes.fusion_limits import FusionLimits, fusion_limits
from gemma4_compile.passes.multiply_halves import multiply_halves
from gemma4_compile.passes.operator_graph import OperatorGraph, rewrite
from gemma4_compile.passes.quantize_activations import quantize_activations, quantize_unfused
from gemma4_compile.passes.round_by_steps import round_by_steps, round_combines
from gemma4_compile.passes.split_matmuls import split_matmuls
from gemma4_compile.passes.tile_rows import tile_rows
from gemma4_compile.passes.watched import AfterPass
from gemma4_compile.targets.spec import TargetSpec

Fusion = Callable[[OperatorGraph, FusionLimits], None]

FUSIONS: Sequence[Fusion] = (
    fuse_residual_norm,  # those after it know norms and additions in one
    fuse_clips,
    fuse_altup,
    round_by_steps,
    quantize_activations,
    fuse_router,  # takes norms that the next one would take
    fuse_norm_linear,
    fuse_attention_combine,
    quantize_unfused,
    round_combines,
    few_rows,
    few_row_experts,
    tile_rows,
    fuse_linear_pairs,  # as those before it have left them
    split_matmuls,
    multiply_halves,
    divide_chunk_attention,
)


def fuse(module: tvm.IRModule, target: TargetSpec, after: AfterPass | None = None) -> tvm.IRModule:
    """Rewrite the exported functions for a target.

    Parameters
    ----------
    after : is given the module as each fusion leaves it
    """
    limits = fusion_limits(target)

    def change(graph: OperatorGraph, fusions: Sequence[Fusion] = FUSIONS) -> None:
        for fusion in fusions:
            fusion(graph, limits)

    if after is not None:  # from the beginning each time: one graph has all of them, as below
        for last, fusion in enumerate(FUSIONS, 1):
            after(fusion.__name__, rewrite(module, partial(change, fusions=FUSIONS[:last])))
    return rewrite(module, change)
