"""Matmuls of a chunk with experts of few rows each, on tensor cores: warps divide the channels.

As short_chunk.py, which says why; rows that there are not take no time beyond 16. Definition:
`ExpertLinear.definition` in gemma4_compile/operators/expert_linear.py.
"""

from __future__ import annotations

from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.tir import bind, i32, when
from gemma4_compile.targets.kernels.common.blocks import Block, launch, resident
from gemma4_compile.targets.kernels.moe.expert_tiles import ExpertTiles
from gemma4_compile.targets.kernels.tiles.short_minima_products import short_weights_of
from gemma4_compile.targets.kernels.tiles.short_products import (
    ShortRows,
    multiply_short,
    store_short_sums,
)
from gemma4_compile.targets.kernels.tiles.short_shape import ShortShape, short_shape
from gemma4_compile.targets.kernels.tiles.tensor_cores import M
from gemma4_compile.targets.kernels.tiles.warps import Warp
from gemma4_compile.targets.spec import TargetSpec


def short_expert_shape(operator: ExpertLinear, spec: TargetSpec) -> ShortShape | None:
    """The block of `short_shape` for one expert's rows where half of the experts have some."""
    if not spec.tuning.short_chunks.expert_rows or operator.tile % M:
        return None
    experts = max(1, operator.experts // 2)
    return short_shape(operator.layout, operator.expert_rows, operator.tile, spec, experts)


def multiply_short_experts(args: ExpertTiles, shape: ShortShape, spec: TargetSpec) -> None:
    """Launch the kernel; blocks of tiles that are not needed do nothing.

    Grid: tiles of `PermuteByExpert` x expert rows / those of a block. Shared: what lanes hand on,
    and the warps' sums.
    """
    operator = args.operator
    layout = operator.layout
    grid = args.tiles.shape[0], -(-operator.expert_rows // shape.rows)
    with launch(shape.threads, *grid) as (number, index, thread), resident(shape.resident):
        tile = args.tile(bind(i32(number)), index * shape.rows)
        with when(tile.is_needed):  # the same for a block
            count = bind(tile.end - tile.begin)
            warp, block = Warp(shape, thread), Block(thread, shape.threads, spec.simd_width)
            weights = short_weights_of(warp, args.weights, tile.base, tile.row_of_w)
            left = ShortRows(warp, args.x, count, tile.row_of_x, layout)
            sums = multiply_short(warp, weights, left)
            store_short_sums(warp, block, sums, count, tile.finish)
