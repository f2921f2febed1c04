"""Matmuls with the chosen experts: decode reads only their rows; prefill runs tiles of one expert.

Definitions: gemma4_compile/operators/expert_linear.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.math import as_f32, gelu_tanh
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.moe import routed_begin
from gemma4_compile.operators.tir import bind, function, i32, store, when
from gemma4_compile.targets.kernels.common.blocks import Block, launch, resident, zero
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.float_gemv import LaneRows, gemv_shape
from gemma4_compile.targets.kernels.linear.gemm import (
    Product,
    Shape,
    shape_of,
    step_count,
    tile_product,
)
from gemma4_compile.targets.kernels.moe.expert_tiles import (
    ExpertTiles,
    kept_or_previous,
)
from gemma4_compile.targets.kernels.moe.short_experts import (
    multiply_short_experts,
    short_expert_shape,
)
from gemma4_compile.targets.kernels.tiles.byte_tile_shape import ByteTileShape
from gemma4_compile.targets.kernels.tiles.byte_tiles import ByteTileProduct
from gemma4_compile.targets.kernels.tiles.simdgroup_matrices import (
    SimdgroupShape,
    SimdgroupTileProduct,
    has_simdgroup_matrices,
)
from gemma4_compile.targets.kernels.tiles.subgroup_chunk_products import SubgroupTileProduct
from gemma4_compile.targets.kernels.tiles.tensor_operations import (
    TensorShape,
    TensorTileProduct,
)
from gemma4_compile.targets.spec import UNLIMITED, TargetSpec
from gemma4_compile.targets.tuning import TensorCoreTuning

SUBGROUP_COLUMNS = 32  # rows of W of a subgroup
EXPERT_THREAD_M = 8  # rows of x that a thread sums, of a tile of one expert


def make_expert_gate_up(operator: ExpertLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """One launch for gate and up of all chosen experts.

    Grid: expert rows / tile x top_k. Reference: `ExpertLinear.definition`.
    """
    rows = operator.expert_rows
    with function(scheduled=True) as build:
        begin = routed_begin(operator.experts)
        x = build.arg("routed", (1, begin + operator.cols), operator.in_dtype)
        ids = build.arg("ids", (1, operator.top_k), "int32")
        weights = WeightReader(build, operator.layout)
        shape = (operator.top_k, operator.outputs)
        previous = build.arg("previous", shape, "float32") if operator.accumulate else None
        out = build.arg("out", shape, "float32")
        gemv = gemv_shape(rows, weights.units, True, spec.tuning.gemv)
        with launch(gemv.threads, gemv.blocks(rows), operator.top_k) as (index, k, thread):
            block = Block(thread, gemv.threads, spec.simd_width)
            own = LaneRows(gemv, index, block, rows)
            base = bind(operator.first_row(ids[0, k]))
            sums = own.sums()
            own.add(sums, weights, lambda c: as_f32(x[0, begin + c]), base, base)
            totals = own.totals(sums)
            with when(own.lane == 0):
                for r in range(0, gemv.rows, 2):
                    with when(own.first + r < rows):
                        column = bind(tirx.floordiv(own.first + r, 2))
                        gated = gelu_tanh(bind(totals[r])) * totals[r + 1]
                        store(
                            out,
                            kept_or_previous(operator, ids[0, k], gated, previous, k, column),
                            k,
                            column,
                        )
    return build.result


def make_expert_down(operator: ExpertLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """One launch for down of all chosen experts and their weighted sum.

    Grid: expert rows / tile; a block goes through the experts one after the other. Reference:
    `ExpertLinear.definition`.
    """
    rows = operator.expert_rows
    with function(scheduled=True) as build:
        x = build.arg("x", (operator.top_k, operator.cols), operator.in_dtype)
        ids = build.arg("ids", (1, operator.top_k), "int32")
        chosen = build.arg("chosen", (1, operator.top_k), "float32")
        weights = WeightReader(build, operator.layout)
        previous = build.arg("previous", (1, rows), "float32") if operator.accumulate else None
        out = build.arg("out", (1, rows), "float32")
        gemv = gemv_shape(rows, weights.units, False, spec.tuning.gemv)
        with launch(gemv.threads, gemv.blocks(rows)) as (index, _, thread):
            block = Block(thread, gemv.threads, spec.simd_width)
            own = LaneRows(gemv, index, block, rows)
            row_sums = own.sums()
            with T.serial(0, operator.top_k) as k:
                base = bind(operator.first_row(ids[0, k]))
                share = bind(tirx.Select(operator.holds(ids[0, k]), chosen[0, k], zero()))
                dots = own.sums()
                own.add(dots, weights, lambda c: as_f32(x[k, c]), base, base)
                for row_sum, dot in zip(row_sums, dots, strict=True):
                    row_sum.add(share * dot.value)
            totals, first = own.totals(row_sums), own.first
            with when(own.lane == 0):
                for r, total in enumerate(totals):
                    with when(first + r < rows):
                        added = total if previous is None else total + previous[0, first + r]
                        store(out, added, 0, first + r)
    return build.result


def make_expert_gemm(operator: ExpertLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """A tile of rows of one expert, as in gemm.py; tiles that are not needed take no steps.

    Grid: expert rows / tile x tiles of `PermuteByExpert`. Reference: `ExpertLinear.definition`.
    """
    is_int8 = operator.is_int8
    size = replace(
        spec.tuning.int8_gemm if is_int8 else spec.tuning.gemm,
        tile_m=operator.tile,
        thread_m=EXPERT_THREAD_M,
        small_to=0,
        medium_to=0,
        large_from=UNLIMITED,
    )
    has_minima = isinstance(operator.layout, MinimaLayout)
    # One simdgroup has all rows of an expert's tile, which are few.
    on_simdgroups = replace(
        SimdgroupShape.of(spec.tuning.simdgroups),
        rows=operator.tile,
        columns=spec.tuning.simdgroups.expert_columns,
        part_rows=operator.tile,
    )
    if not is_int8 and has_simdgroup_matrices(spec, on_simdgroups):
        return _make_tiles(operator, on_simdgroups, SimdgroupTileProduct)
    shape = shape_of(size, spec, operator.expert_rows, is_int8, has_minima=has_minima)
    return _make_tiles(operator, shape, tile_product)


def make_tensor_experts(operator: ExpertLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_expert_gemm` by Metal 4's tensor operations."""
    size = spec.tuning.simdgroups
    shape = replace(
        TensorShape.for_rows(size, operator.in_dtype),
        rows=operator.tile,
        columns=size.expert_columns,
        part_rows=operator.tile,
    )
    return _make_tiles(operator, shape, TensorTileProduct)


def fits_byte_tensor_cores(operator: ExpertLinear, spec: TargetSpec) -> bool:
    """Return whether a chunk's experts have `make_byte_tensor_core_experts`."""
    return spec.tensor_cores and operator.is_int8 and _byte_shape(operator, spec).fits(spec)


def make_byte_tensor_core_experts(operator: ExpertLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_expert_gemm` of bytes that warps multiply.

    Grid: tiles of `PermuteByExpert` x expert rows / tile, so that tiles of one expert, which follow
    each other, read the same rows of W at about the same time. Where experts have few rows each,
    the host launches another kernel (short_experts.py).
    """
    shape, short = _byte_shape(operator, spec), short_expert_shape(operator, spec)
    with function(scheduled=True) as build:
        args = ExpertTiles.declared(build, operator)
        if short is None:
            _multiply_tiles(args, shape, ByteTileProduct)
        else:
            most = spec.tuning.short_chunks.expert_rows * operator.experts
            with T.If(args.order.shape[0] <= most):
                with T.Then():
                    multiply_short_experts(args, short, spec)
                with T.Else():
                    _multiply_tiles(args, shape, ByteTileProduct)
    return build.result


def make_subgroup_matrix_experts(operator: ExpertLinear, _spec: TargetSpec) -> tirx.PrimFunc:
    """`make_expert_gemm` with matrices of float16 that a subgroup multiplies."""
    # One subgroup has all rows of an expert's tile, which are few.
    size = TensorCoreTuning(operator.tile, warp_rows=operator.tile, warp_columns=SUBGROUP_COLUMNS)
    return _make_tiles(operator, size, SubgroupTileProduct)


def _byte_shape(operator: ExpertLinear, spec: TargetSpec) -> ByteTileShape:
    size = replace(spec.tuning.byte_tiles.experts, rows=operator.tile)
    limit, minima = spec.max_shared_memory_bytes, isinstance(operator.layout, MinimaLayout)
    return ByteTileShape.of(size, operator.cols, limit, minima)


def _make_tiles(
    operator: ExpertLinear,
    shape: Shape,
    make: Callable[..., Product],
) -> tirx.PrimFunc:
    with function(scheduled=True) as build:
        _multiply_tiles(ExpertTiles.declared(build, operator), shape, make)
    return build.result


def _multiply_tiles(args: ExpertTiles, shape: Shape, make: Callable[..., Product]) -> None:
    """Launch the kernel."""
    grid = -(-args.operator.expert_rows // shape.columns), args.tiles.shape[0]
    on_warps = isinstance(shape, ByteTileShape)
    with (
        launch(shape.threads, *(grid[::-1] if on_warps else grid)) as (*blocks, thread),
        resident(shape.blocks if isinstance(shape, ByteTileShape) else 0),
    ):
        block_n, number = (blocks[1], bind(i32(blocks[0]))) if on_warps else blocks
        tile = args.tile(number, block_n * shape.columns)
        product = make(shape, args.x, args.weights, thread, tile.row_of_x, tile.row_of_w)
        steps = i32(step_count(shape, args.operator.cols))
        product.run(tirx.Select(tile.is_needed, steps, i32(0)))
        product.finish(tile.finish)
