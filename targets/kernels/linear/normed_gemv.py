"""Matmuls with a prologue: every block makes the vector, then does its rows.

A norm of a few thousand channels, or the combine of a few splits, costs a block less than a launch.
Its result stays in shared memory, in the order in which neighbouring lanes read it: channel
u * unit + j at j * units + u. Definitions: gemma4_compile/operators/prologues.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import declare_splits
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.prologues import Combine, Norm
from gemma4_compile.operators.tir import LocalVar, bind, function, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockReduction,
    BlockSums,
    barrier,
    inverse_rms,
    launch,
    shared,
    strided,
    sum_over_lanes,
    zero,
)
from gemma4_compile.targets.kernels.common.epilogues import apply_epilogue, gate_args
from gemma4_compile.targets.kernels.common.row_slice import RowSlice
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.gemv import (
    GemvShape,
    accumulate_rows,
    gemv_shape,
)
from gemma4_compile.targets.kernels.linear.int8_block import tiles_of_block
from gemma4_compile.targets.kernels.prologues.expert_norms import ExpertNormArguments, expert_norm
from gemma4_compile.targets.kernels.prologues.router_blocks import (
    behind_router,
    declare_router,
    routing_blocks,
)
from gemma4_compile.targets.kernels.prologues.splits import combined_channel
from gemma4_compile.targets.kernels.prologues.vectors import NormArguments, declare_norm
from gemma4_compile.targets.spec import TargetSpec
from gemma4_compile.targets.tuning import GemvTuning


def wide_tuning(spec: TargetSpec) -> GemvTuning:
    """Sizes for blocks that read more than their rows: twice the threads, half the blocks."""
    tuning = spec.tuning.gemv
    return replace(tuning, threads=min(2 * tuning.threads, spec.max_threads_per_block))


def fused_width(spec: TargetSpec) -> int:
    """The longest vector whose norm fits into shared memory next to the partial sums."""
    threads = wide_tuning(spec).threads
    norms = BlockReduction.nbytes(threads) + BlockSums.nbytes(threads)  # and the router's
    others = 4 * threads * spec.tuning.gemv.rows + norms
    return max(0, (spec.max_shared_memory_bytes - others) // 4)


class StagedVector:
    """A vector in shared memory, in the order in which neighbouring lanes read it."""

    def __init__(self, weights: WeightReader, width: int) -> None:
        self._memory = shared((width,))
        self._unit, self._units = weights.unit, weights.units

    def _place(self, k: Expr) -> Expr:
        return tirx.floormod(k, self._unit) * self._units + tirx.floordiv(k, self._unit)

    def write(self, k: Expr, value: Expr) -> None:
        """Set channel k."""
        store(self._memory, value, self._place(k))

    def read(self, k: Expr) -> Expr:
        """Channel k, float32."""
        return self._memory[self._place(k)]


def staged_shape(operator: Linear, weights: WeightReader, spec: TargetSpec) -> GemvShape:
    """The shape of `multiply_staged`."""
    paired = operator.epilogue == Epilogue.GELU_PAIRS.value
    tuning = wide_tuning(spec) if operator.prologue.branches > 1 else spec.tuning.gemv
    return gemv_shape(operator.layout.rows, weights.units, paired, tuning)


def multiply_staged(
    operator: Linear,
    weights: WeightReader,
    vector: StagedVector,
    shape: GemvShape,
    tile: Expr,
    block: Block,
    y: Buffer,
    ple: Buffer | None = None,
    layer: Expr | None = None,
) -> None:
    """The block's rows of the matrix times the staged vector, and the epilogue."""
    rows, thread = operator.layout.rows, block.thread
    barrier()
    lane = bind(tirx.floormod(thread, shape.lanes))
    first = bind(tile * shape.tile + tirx.floordiv(thread, shape.lanes) * shape.rows)
    sums = [LocalVar("float32", zero()) for _ in range(shape.rows)]
    owned = [tirx.min(first + r, rows - 1) for r in range(shape.rows)]

    def accumulate(split: Sequence[Buffer], begin: int) -> None:
        local = [row - begin for row in owned]
        accumulate_rows(weights, split, local, vector.read, lane, shape.lanes, sums)

    weights.in_split(tile * shape.tile, accumulate)
    totals = sum_over_lanes(block, [total.value for total in sums], shape.lanes)
    with when(lane == 0):
        apply_epilogue(operator, y, 0, first, totals, ple, layer, rows)


def make_combined_gemv(operator: Linear, spec: TargetSpec) -> tirx.PrimFunc:
    """Combine the splits of an attention, then the dot products of `make_gemv`.

    Grid: rows / tile. Shared: the vector, and a float32 of a thread for each of its rows.
    Reference: `Linear.definition` with the prologue `Combine`.
    """
    combine = operator.prologue
    assert isinstance(combine, Combine), "chosen for it"
    dim, splits = combine.head_dim, combine.splits
    with function(scheduled=True) as build:
        o_partial, split_lse = declare_splits(build, combine, operator.in_dtype)
        weights = WeightReader(build, operator.layout)
        y = build.arg("y", (1, operator.outputs), "float32")
        rows = operator.layout.rows
        shape = staged_shape(operator, weights, spec)
        with launch(shape.threads, shape.blocks(rows)) as (tile, _, thread):
            block = Block(thread, shape.threads, spec.simd_width)
            vector = StagedVector(weights, operator.cols)
            with strided(block, operator.cols) as k:
                h, d = bind(tirx.floordiv(k, dim)), bind(tirx.floormod(k, dim))
                combined = combined_channel(o_partial, split_lse, splits, h, d)
                vector.write(k, as_f32(combined.astype(operator.in_dtype)))
            multiply_staged(operator, weights, vector, shape, tile, block, y)
    return build.result


def _normed_slice(
    args: NormArguments,
    out: Buffer,
    writes: Expr,
    row_slice: RowSlice,
) -> list[Expr]:
    """The thread's slice of x; r' is written to `out` where `writes` holds."""
    norm, reduce = args.norm, BlockReduction(row_slice.block)

    def scale_of(values: Sequence[Expr]) -> Expr:
        return row_slice.splat(
            inverse_rms(reduce(row_slice.dot(values, values)), norm.width, norm.eps)
        )

    mine, old = row_slice.load(args.branch, 0), row_slice.load(args.residual, 0)
    branch_weight = row_slice.load(args.w_branch)
    next_weight = row_slice.load(args.w_next) if args.w_next is not None else []
    factor = row_slice.splat(bind(args.scalar[0]) if args.scalar is not None else f32(1.0))
    scale = scale_of(mine)
    total = row_slice.map(lambda b, r, w: (r + b * scale * w) * factor, mine, old, branch_weight)
    with when(writes):
        row_slice.store(out, total, 0)
    if not norm.normed:
        return total
    next_scale = scale_of(total)
    return row_slice.map(lambda a, w: a * next_scale * w, total, next_weight)


def make_normed_gemv(operator: Linear, spec: TargetSpec) -> tirx.PrimFunc:
    """Norm, residual addition, norm, then the dot products of `make_gemv`.

    Grid: the router's blocks, rows / tile. Shared: the vector, its sums, and a float32 of a thread
    for each of its rows. Behind two branches, which are more to read, a block takes several tiles
    as in int8_gemv.py. The first block after the router's writes the new residual. Reference:
    `Linear.definition` with the prologue `Norm` or `Routed`.
    """
    rows, width = operator.layout.rows, operator.cols
    prologue = operator.prologue
    with function(scheduled=True) as build:
        router = declare_router(build, operator)
        if isinstance(prologue, Norm):
            args = declare_norm(build, prologue.vector(width))
        else:
            assert router is not None, "chosen for it"
            args = router.norm_arguments
        weights = WeightReader(build, operator.layout)
        gate, layer = gate_args(build, operator, 1)
        out = build.arg("out", (1, width), "float32")
        routed = build.arg("routed", *router.norm.result_spec) if router else None
        y = build.arg("y", (1, operator.outputs), "float32")
        shape = staged_shape(operator, weights, spec)
        threads, tiles = shape.threads, shape.blocks(rows)
        iterations = (
            tiles_of_block(tiles, threads, spec.tuning.int8_gemv) if prologue.branches > 1 else 1
        )
        with (
            launch(threads, -(-tiles // iterations) + routing_blocks(router)) as (
                launched,
                _,
                thread,
            ),
            behind_router(router, routed, launched, Block(thread, threads, spec.simd_width)) as (
                index,
                block,
            ),
        ):
            vector = StagedVector(weights, width)
            row_slice = RowSlice(block, width)
            if isinstance(args, ExpertNormArguments):
                sums = BlockSums(block)
                x = expert_norm(args, out, index == 0, row_slice, sums)
            else:
                x = _normed_slice(args, out, index == 0, row_slice)
            row_slice.visit(x, lambda k, v: vector.write(k, as_f32(v.astype(operator.in_dtype))))
            multiply = partial(multiply_staged, operator, weights, vector, shape)
            if iterations == 1:
                multiply(index, block, y, gate, layer)
            else:
                with T.serial(0, iterations) as iteration:
                    multiply(bind(index * iterations + iteration), block, y, gate, layer)
    return build.result
