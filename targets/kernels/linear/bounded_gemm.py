"""Matrix times many rows between clips, in the tiles of a prefill chunk's matmul.

Definition: `BoundedLinear` in operators/bounded_linear.py. Product of a tile: tiles/products.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.tir import bind, function, i32
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.common.blocks import launch
from gemma4_compile.targets.kernels.linear.bounded_operands import BoundedOperands
from gemma4_compile.targets.kernels.linear.gemm import clamped, shape_of, step_count
from gemma4_compile.targets.kernels.tiles.loaders import Change, splat
from gemma4_compile.targets.kernels.tiles.products import FloatTileProduct
from gemma4_compile.targets.spec import TargetSpec


def make_bounded_gemm(operator: BoundedLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """Clip x on its way to shared memory, sums before the epilogue.

    Grid: W's rows / tile x rows / tile. Shared: both tiles. Reference: `BoundedLinear.definition`.
    """
    rows = operator.layout.rows
    shape = shape_of(spec.tuning.bounded_gemm, spec, rows, is_int8=False)
    with function(scheduled=True) as build:
        args = BoundedOperands.declare(build, operator)
        n = args.rows
        grid = -(-rows // shape.columns), tirx.floordiv(n + (shape.rows - 1), shape.rows)
        with launch(shape.threads, *grid) as (block_n, block_m, thread):
            limits, last = args.limits(), bind(i32(n) - 1)
            first_m, first_n = bind(block_m * shape.rows), bind(block_n * shape.columns)
            row_of_w = clamped(first_n, rows - 1) if rows % shape.columns else first_n.__add__
            product = FloatTileProduct(
                shape,
                args.x,
                args.weights,
                thread,
                clamped(first_m, last),
                row_of_w,
                change=_clip(limits),
            )
            product.run(i32(step_count(shape, operator.cols)))

            def finish(i: Expr, r: Expr, sums: Sequence[Expr]) -> None:
                args.store_sums(bind(first_m + i), bind(first_n + r), sums, limits, last)

            product.finish(finish)
    return build.result


def _clip(limits: Sequence[Expr]) -> Change | None:
    """Hold four values at a time within the first two limits, if there are any."""
    if not limits:
        return None
    low, high = (splat(limit) for limit in limits[:2])
    return lambda value: tirx.max(tirx.min(value, high), low)
