"""Matrix times the rows of a prefill chunk: dequantise a tile, then multiply it in shared memory.

Plain form: `Linear.plain` in quantization/operators.py. The product of a tile: tiles.py.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from gemma4_compile.model_spec.operators.base import symbolic_rows
from gemma4_compile.model_spec.operators.linear import Tail
from gemma4_compile.model_spec.operators.tir import function, i32, let, when
from gemma4_compile.quantization.operators import Linear
from gemma4_compile.targets.kernels.blocks import launch
from gemma4_compile.targets.kernels.tails import apply_tail
from gemma4_compile.targets.kernels.tile_loaders import VECTOR, RowOf
from gemma4_compile.targets.kernels.tiles import TileProduct, TileShape, fit_shape
from gemma4_compile.targets.kernels.weights import WeightReader
from gemma4_compile.targets.spec import TargetSpec


def make_gemm(operator: Linear, spec: TargetSpec) -> tirx.PrimFunc:
    """``y[i, r] = tail(sum_k x[i, k] W[r, k])``.

    Grid: W's rows / tile x chunk rows / tile. Shared: both tiles. Reference: `Linear.plain`.
    """
    n, rows, cols = symbolic_rows(operator.rows), operator.layout.rows, operator.cols
    ple = operator.tail == Tail.GELU_GATE.value
    shape = gemm_shape(spec, rows)
    with function(scheduled=True) as build:
        x = build.arg("x", (n, cols), operator.in_dtype)
        weights = WeightReader(build, operator.layout)
        gate = build.arg("ple", (n, operator.ple_width), "float32") if ple else None
        layer = build.scalar_arg("layer") if ple else None
        y = build.arg("y", (n, operator.outputs), "float32")
        grid = -(-rows // shape.columns), tirx.floordiv(n + (shape.rows - 1), shape.rows)
        with launch(shape.threads, *grid) as (block_n, block_m, thread):
            last = let(i32(n) - 1)
            first_m, first_n = let(block_m * shape.rows), let(block_n * shape.columns)
            row_of_w = _clamped(first_n, rows - 1) if rows % shape.columns else first_n.__add__
            product = TileProduct(shape, x, weights, thread, _clamped(first_m, last), row_of_w)
            product.run(i32(-(-cols // shape.depth)))

            def finish(i: Any, r: Any, sums: Any) -> None:
                row = let(first_m + i)
                with when(row <= last):
                    apply_tail(operator, y, row, let(first_n + r), sums, gate, layer, rows)

            product.finish(finish)
    return build.result


def gemm_shape(spec: TargetSpec, rows: int) -> TileShape:
    """The tile for a matrix of so many rows: large where that leaves enough tiles of a chunk."""
    size = spec.tuning.gemm
    tile, sums = (size.tile_m, size.tile_n), (size.thread_m, size.thread_n)
    if rows <= size.small_to:
        tile, sums = (size.small_m, size.small_n), (VECTOR, VECTOR)
    elif rows <= size.medium_to:
        tile, sums = (size.tile_m, size.medium_n), (size.thread_m, size.medium_thread_n)
    elif rows >= size.large_from:
        tile = size.large_m, size.large_n
    return fit_shape(
        TileShape(*tile, size.tile_k, *sums, size.threads, size.unroll, size.stages), spec
    )


def _clamped(first: Any, last: Any) -> RowOf:
    """Rows beyond the last repeat it; they are never stored."""
    return lambda i: tirx.min(first + i, last)
