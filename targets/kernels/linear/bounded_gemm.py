"""Matrix times many rows between clips, in the tiles of a prefill chunk's matmul.

Definition: `BoundedLinear` in operators/bounded_linear.py. Product of a tile: tiles.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.bounded_linear import CLIPS, BoundedLinear
from gemma4_compile.operators.tir import bind, function, i32, materialize, when
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.common.blocks import launch
from gemma4_compile.targets.kernels.common.tile_loaders import Change, splat
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.bounded_epilogue import store_sums
from gemma4_compile.targets.kernels.linear.gemm import clamped, gemm_shape, step_count
from gemma4_compile.targets.kernels.linear.tensor_core_gemm import (
    fits_tensor_cores,
    make_tensor_core_gemm,
)
from gemma4_compile.targets.kernels.linear.tiles import FloatTileProduct
from gemma4_compile.targets.spec import TargetSpec


def make_bounded_gemm(operator: BoundedLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """Clip x on its way to shared memory, sums before the epilogue.

    Grid: W's rows / tile x rows / tile. Shared: both tiles. Reference: `BoundedLinear.definition`.
    """
    if fits_tensor_cores(operator, spec):
        return make_tensor_core_gemm(operator, spec)
    n, rows, cols = symbolic_rows(operator.rows), operator.layout.rows, operator.cols
    shape = gemm_shape(spec, rows)
    with function(scheduled=True) as build:
        bounds = build.arg("bounds", (CLIPS,), "float32") if operator.clipped else None
        x = build.arg("x", (n, cols), operator.in_dtype)
        weights = WeightReader(build, operator.layout)
        result = (n, operator.outputs)
        partner = build.arg("partner", result, "float32") if operator.is_gate else None
        y = build.arg("y", result, operator.out_dtype)
        grid = -(-rows // shape.columns), tirx.floordiv(n + (shape.rows - 1), shape.rows)
        with launch(shape.threads, *grid) as (block_n, block_m, thread):
            limits = (
                [] if bounds is None else [materialize(bounds[i], "float32") for i in range(CLIPS)]
            )
            last = bind(i32(n) - 1)
            first_m, first_n = bind(block_m * shape.rows), bind(block_n * shape.columns)
            row_of_w = clamped(first_n, rows - 1) if rows % shape.columns else first_n.__add__
            product = FloatTileProduct(
                *(shape, x, weights, thread, clamped(first_m, last), row_of_w),
                change=_clip(limits),
            )
            product.run(i32(step_count(shape, cols)))

            def finish(i: Expr, r: Expr, sums: Sequence[Expr]) -> None:
                row, first = bind(first_m + i), bind(first_n + r)
                cut = [bind(operator.clip(total, limits, 2)) for total in sums]
                with when(row <= last):
                    store_sums(operator, y, row, first, cut, partner)

            product.finish(finish)
    return build.result


def _clip(limits: Sequence[Expr]) -> Change | None:
    """Hold four values at a time within the first two limits, if there are any."""
    if not limits:
        return None
    low, high = (splat(limit) for limit in limits[:2])
    return lambda value: tirx.max(tirx.min(value, high), low)
