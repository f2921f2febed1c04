"""Matrix times the packed rows of a short chunk on tensor cores: warps divide the channels.

Tiles of gemm.py are made for many rows: with few, most of a product is of rows that there are not,
and a matrix of few rows has fewer blocks than there are multiprocessors. The product:
short_products.py. Definition: `Linear.definition` in gemma4_compile/operators/linear.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.tir import bind, i32
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.common.blocks import Block, launch, resident
from gemma4_compile.targets.kernels.linear.few_row_matmul import FewRowMatmul
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


@dataclass(frozen=True)
class ShortChunk:
    """A kernel for chunks of up to `most` rows."""

    most: int
    shape: ShortShape


def short_chunks(operator: Linear, spec: TargetSpec) -> list[ShortChunk]:
    """The kernels of a matmul's short chunks, the shortest first; none where tiles have all."""
    tuning, layout = spec.tuning.short_chunks, operator.layout
    if operator.steps_in or not tuning.rows:
        return []
    most = tuning.narrow_most_rows if layout.rows <= tuning.narrow_to else tuning.most_rows
    kernels = []
    for rows, up_to in ((M, M), (tuning.rows, most)):
        shape = short_shape(layout, layout.rows, rows, spec)
        if shape is not None:
            kernels.append(ShortChunk(up_to, shape))
    return kernels


def multiply_short_chunk(matmul: FewRowMatmul, kernel: ShortChunk, spec: TargetSpec) -> None:
    """Launch the kernel.

    Grid: rows of x / a block's x W's rows / those of a block, so that blocks which read the same
    weights run at the same time. Shared: what lanes hand on, and the warps' sums.
    """
    n, layout, shape = matmul.n, matmul.operator.layout, kernel.shape
    rows, most = layout.rows, shape.x_rows
    parts = tirx.floordiv(n + (most - 1), most)
    with launch(shape.threads, parts, -(-rows // shape.rows)) as ids, resident(shape.resident):
        part, index, thread = ids
        begin, first = bind(i32(part) * most), bind(index * shape.rows)
        count = bind(tirx.min(i32(n) - begin, most))
        warp, block = Warp(shape, thread), Block(thread, shape.threads, spec.simd_width)

        def row_of(row: Expr) -> Expr:
            return tirx.min(first + row, rows - 1) if rows % shape.rows else first + row

        weights = short_weights_of(warp, matmul.weights, first, row_of)

        def row_of_x(row: Expr) -> Expr:
            return begin + tirx.min(row, count - 1)

        # Sums of rows of x that there are not are not stored.
        left = ShortRows(warp, matmul.x, count, row_of_x, layout, has_all_blocks=True)
        sums = multiply_short(warp, weights, left)

        def finish(i: Expr, row: Expr, added: Sequence[Expr]) -> None:
            matmul.store(bind(begin + i), bind(first + row), added)

        store_short_sums(warp, block, sums, count, finish)
