"""Matrix times many rows between clips, in the tiles of a prefill chunk's matmul.

Definition: `BoundedLinear` in operators/bounded_linear.py. Product of a tile: tiles/products.py,
tiles/simdgroup_matrices.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.tir import bind, function, i32
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.common.blocks import launch
from gemma4_compile.targets.kernels.linear.bounded_operands import BoundedOperands
from gemma4_compile.targets.kernels.linear.gemm import clamped, shape_of, step_count, tile_product
from gemma4_compile.targets.kernels.tiles.loaders import Change, splat
from gemma4_compile.targets.kernels.tiles.products import TileProduct, TileShape
from gemma4_compile.targets.kernels.tiles.simdgroup_matrices import (
    SimdgroupShape,
    SimdgroupTileProduct,
    has_simdgroup_matrices,
)
from gemma4_compile.targets.kernels.tiles.tensor_operations import (
    TensorShape,
    TensorTileProduct,
)
from gemma4_compile.targets.spec import TargetSpec


def make_bounded_gemm(operator: BoundedLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """Clip x on its way to shared memory, sums before the epilogue.

    Grid: W's rows / tile x rows / tile. Shared: both tiles. Reference: `BoundedLinear.definition`.
    """
    shape = shape_of(spec.tuning.bounded_gemm, spec, operator.layout.rows, is_int8=False)
    return _make(operator, shape, tile_product)


def fits_simdgroups(_operator: BoundedLinear, spec: TargetSpec) -> bool:
    """Return whether a tower's matmul has `make_simdgroup_bounded_gemm`."""
    return has_simdgroup_matrices(spec, SimdgroupShape.of(spec.tuning.simdgroups))


def make_simdgroup_bounded_gemm(operator: BoundedLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_bounded_gemm` with matrices of 8 x 8 that a simdgroup multiplies."""
    return _make(operator, SimdgroupShape.of(spec.tuning.simdgroups), SimdgroupTileProduct)


def make_tensor_bounded_gemm(operator: BoundedLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_bounded_gemm` by Metal 4's tensor operations."""
    shape = TensorShape.for_rows(spec.tuning.simdgroups, operator.in_dtype)
    return _make(operator, shape, TensorTileProduct)


def _make(
    operator: BoundedLinear,
    shape: TileShape | SimdgroupShape | TensorShape,
    make: Callable[..., TileProduct | SimdgroupTileProduct | TensorTileProduct],
) -> tirx.PrimFunc:
    rows = operator.layout.rows
    with function(scheduled=True) as build:
        args = BoundedOperands.declare(build, operator)
        n = args.rows
        grid = -(-rows // shape.columns), tirx.floordiv(n + (shape.rows - 1), shape.rows)
        with launch(shape.threads, *grid) as (block_n, block_m, thread):
            limits, last = args.limits(), bind(i32(n) - 1)
            first_m, first_n = bind(block_m * shape.rows), bind(block_n * shape.columns)
            row_of_w = clamped(first_n, rows - 1) if rows % shape.columns else first_n.__add__
            row_of_x = clamped(first_m, last)
            product = make(shape, [args.x], args.weights, thread, row_of_x, row_of_w, _clip(limits))
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
