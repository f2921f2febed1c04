"""Matrix times one vector of int8 groups: the decode form where activations are int8.

A block owns `tile` consecutive rows. Its threads are divided into groups of lanes; a group of lanes
takes one row at a time, each lane the same few groups of channels (int8_lanes.py). The weights of
the next row are read while the present one is multiplied. Sums of lanes meet in shared memory, once
for all rows of the block.

The vector comes packed, or the block makes it first (int8_vectors.py). Definitions:
gemma4_compile/operators/int8_linear.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import GROUP, WORD
from gemma4_compile.operators.attention import declare_splits
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.int8_linear import (
    PACKED,
    PACKED_ROWS,
    Int8CombinedLinear,
    Int8Linear,
    Int8NormedLinear,
    Int8RoutedLinear,
)
from gemma4_compile.operators.math import gelu_tanh
from gemma4_compile.operators.tir import (
    FunctionBuilder,
    bind,
    function,
    store,
    when,
)
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import (
    BlockSums,
    barrier,
    launch,
    shared,
    strided,
)
from gemma4_compile.targets.kernels.common.epilogues import apply_epilogue
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.int8_lanes import (
    LaneShare,
    QuantizedVector,
    RowStream,
    StagedVector,
)
from gemma4_compile.targets.kernels.linear.int8_sums import Int8Shape, RowSums
from gemma4_compile.targets.kernels.linear.int8_vectors import (
    QUADS,
    declare_norm,
    float_vec4s,
    merge_vec4s,
    norm_vec4s,
    round_vec4s,
)
from gemma4_compile.targets.kernels.moe.expert_norms import EXPERT_SUMS
from gemma4_compile.targets.kernels.moe.router_blocks import (
    BesideRouter,
    behind_router,
    declare_router,
    routing_blocks,
)
from gemma4_compile.targets.spec import TargetSpec
from gemma4_compile.targets.tuning import Int8GemvTuning

MIN_LANES = 8
NARROW = 32  # lanes; a block of more has threads for several rows at a time
MAX_TILE = 64  # divides quantization.recipe.ROW_ALIGNMENT, so that a tile lies in one part
FULL = 0.8  # of the threads that run at a time


def vector_bytes(groups: int, threads: int, sums: int = 1) -> int:
    """Shared memory in which a block makes a vector of so many groups, `sums` vectors of sums."""
    words, largest = 4 * QUADS * (groups | 1), 4 * QUADS * groups
    return words + largest + 4 * groups + BlockSums.nbytes(threads, sums)


def staged_bytes(operator: Int8Linear, threads: int) -> int:
    """Shared memory in which a block makes its vector."""
    if operator.in_dtype == PACKED:
        return 0
    sums = EXPERT_SUMS if operator.branches > 1 else 1
    nbytes = vector_bytes(operator.cols // GROUP, threads, sums)
    if isinstance(operator, Int8CombinedLinear):
        nbytes += 4 * operator.heads * operator.splits
    if isinstance(operator, Int8RoutedLinear):
        nbytes += BlockSums.nbytes(threads)  # of the blocks that route
    return nbytes


def int8_shape(operator: Int8Linear, spec: TargetSpec) -> Int8Shape:
    """The shape of a matmul's blocks."""
    rows, groups = operator.layout.rows, operator.cols // GROUP
    return find_shape(
        rows,
        groups,
        lambda threads: staged_bytes(operator, threads),
        spec,
        packs=operator.packed_out,
        reads_more=isinstance(operator, Int8CombinedLinear) or operator.branches > 1,
    )


def find_shape(
    rows: int,
    groups: int,
    staged: Callable[[int], int],
    spec: TargetSpec,
    packs: bool = False,
    reads_more: bool = False,
) -> Int8Shape:
    """Few groups a lane, and then as many rows a block as leave `min_blocks` blocks.

    Parameters
    ----------
    rows, groups : of the matrix, and of a row
    staged : shared memory besides the partial sums, by threads
    packs : the result is packed
    reads_more : the block merges the splits of an attention, or two branches, first
    """
    tuning, limit = spec.tuning.int8_gemv, spec.max_threads_per_block
    lanes = MIN_LANES
    while groups > lanes * tuning.groups_per_lane and 2 * lanes <= limit:
        lanes *= 2
    wanted = tuning.threads
    if packs or reads_more or lanes > NARROW:
        wanted = tuning.wide_threads
    threads = max(lanes, min(wanted, limit))
    at_least = PACKED_ROWS if packs else 1
    free = spec.max_shared_memory_bytes - staged(threads)
    shape = Int8Shape(threads, lanes, max(1, at_least * lanes // threads))
    while shape.sum_bytes > free:
        lanes //= 2
        shape = Int8Shape(threads, lanes, max(1, at_least * lanes // threads))
    while True:
        larger = replace(shape, rows=2 * shape.rows)
        if larger.rows > tuning.rows or larger.tile > MAX_TILE or larger.sum_bytes > free:
            return shape
        if -(-rows // larger.tile) < tuning.min_blocks:
            return shape
        shape = larger


def tiles_of_block(tiles: int, threads: int, tuning: Int8GemvTuning) -> int:
    """Tiles that a block takes, one after the other, so that all blocks run at the same time.

    One where that would leave much of the device idle: the last iteration is that of few.
    """
    iterations = -(-tiles * threads // tuning.norm_threads)
    is_full = tiles * threads >= FULL * iterations * tuning.norm_threads
    return iterations if is_full else 1


QuadMaker = Callable[[Expr, Buffer | None, Expr], list[Expr]]
"""Makes a thread's vec4s of the vector, from the thread, where the new residual goes, and whether
this block writes it."""


def _declare_source(
    build: FunctionBuilder,
    operator: Int8Linear,
    router: BesideRouter | None,
    threads: int,
    simd_width: int,
) -> QuantizedVector | QuadMaker:
    """The arguments in front of the weights, as the vector that they give."""
    cols = operator.cols
    if isinstance(operator, Int8NormedLinear):
        norm_args = router.norm_arguments if router else declare_norm(build, operator.norm)
        return lambda thread, out, writes: norm_vec4s(
            norm_args, out, writes, thread, threads, simd_width
        )
    if isinstance(operator, Int8CombinedLinear):
        heads, splits = operator.heads, declare_splits(build, operator, operator.in_dtype)
        return lambda thread, out, writes: merge_vec4s(*splits, heads, thread, threads)
    if operator.in_dtype == PACKED:
        return QuantizedVector(build, cols)
    x = build.arg("x", (1, cols), operator.in_dtype)
    return lambda thread, out, writes: float_vec4s(x, cols, thread, threads)


def make_int8_gemv(operator: Int8Linear, spec: TargetSpec) -> tirx.PrimFunc:
    """Make the vector, multiply, add up, store.

    A block that norms takes several tiles, one after the other, where there are many: every block
    repeats the norm. Grid: the router's blocks if there is one, then tiles / tiles of a block.
    Shared: the vector (unless it comes packed) and the partial sums of a tile. With a norm, block 0
    behind the router's writes the new residual. Reference: the operator's `plain`.
    """
    rows, cols = operator.layout.rows, operator.cols
    shape = int8_shape(operator, spec)
    threads = shape.threads
    norms = isinstance(operator, Int8NormedLinear)
    tiles = -(-rows // shape.tile)
    iterations = tiles_of_block(tiles, threads, spec.tuning.int8_gemv) if norms else 1
    # Measured: many rows a block, and no norm whose registers would be missing.
    keeps_registers = operator.packed_out and operator.in_dtype == PACKED
    with function(scheduled=True) as build:
        router = declare_router(build, operator)
        source = _declare_source(build, operator, router, threads, spec.simd_width)
        weights = WeightReader(build, operator.layout)
        ple = operator.epilogue == Epilogue.GELU_GATE.value
        gate = build.arg("ple", (1, operator.ple_width), "float32") if ple else None
        layer = build.scalar_arg("layer") if ple else None
        out = build.arg("out", (1, cols), "float32") if norms else None
        results = [
            build.arg(f"y{index}", spec_shape, dtype)
            for index, (spec_shape, dtype) in enumerate(operator.result_specs)
        ]
        routed = results.pop(0) if router else None
        blocks = -(-tiles // iterations)
        with (
            launch(threads, blocks + routing_blocks(router)) as (launched, _, thread),
            behind_router(router, routed, launched, thread, threads, spec.simd_width) as block,
        ):
            lane = bind(tirx.floormod(thread, shape.lanes))
            slot = bind(tirx.floordiv(thread, shape.lanes))
            first = bind(block * (iterations * shape.tile))

            def row_of(iteration: Index) -> tuple[Expr, Expr]:
                own = tirx.min(first + iteration * shape.slots + slot, rows - 1)
                if iterations == 1:
                    return own, first
                tile = iteration // shape.rows
                return own, bind(tirx.min(first + tile * shape.tile, rows - 1))

            share = LaneShare(operator.layout, shape.lanes, lane)
            rows_of = RowStream(
                weights,
                share,
                shape.rows * iterations,
                row_of,
                ahead=2 if keeps_registers and shape.rows % 2 == 0 else 1,
            )
            if isinstance(source, QuantizedVector):
                share.load(source.read)
            else:
                staged = StagedVector(cols)
                vec4s = source(thread, out, block == 0)
                staged.fill(vec4s, thread, threads, operator.interleaved, spec.simd_width)
                share.load(staged.read)
            sums = RowSums(shape, thread)

            def multiply_tile(iteration: Index) -> None:
                rows_of.run_some(
                    iteration * shape.rows,
                    shape.rows,
                    lambda row, *read: sums.put(row * shape.slots + slot, lane, share.dot(*read)),
                )
                sums.finish()
                if operator.packed_out:
                    tile = bind(block * iterations + iteration)
                    exists = tile < tiles if tiles % iterations else None
                    order = operator.interleaved_out
                    store_packed(
                        shape, sums, tile, thread, results, 0, order, spec.simd_width, exists
                    )
                else:
                    begin = bind(first + iteration * shape.tile)
                    _store(operator, shape, sums, begin, thread, results[0], gate, layer)

            if iterations == 1:
                multiply_tile(0)
            else:
                with T.serial(0, iterations) as iteration:
                    multiply_tile(iteration)
                    barrier()  # the next tile's sums take the same places
    return build.result


def _store(
    operator: Int8Linear,
    shape: Int8Shape,
    sums: RowSums,
    first: Expr,
    thread: Expr,
    y: Buffer,
    gate: Buffer | None,
    layer: Expr | None,
) -> None:
    step = 2 if operator.epilogue == Epilogue.GELU_PAIRS.value else 1
    with strided(thread, shape.threads, shape.tile // step) as item:
        row = bind(item * step)
        totals = [sums.total(row + index) for index in range(step)]
        apply_epilogue(operator, y, 0, first + row, totals, gate, layer, operator.layout.rows)


def store_packed(
    shape: Int8Shape,
    sums: RowSums,
    block: Expr,
    thread: Expr,
    results: Sequence[Buffer],
    position: Index,
    interleaved: bool,
    simd_width: int,
    exists: Expr | None = None,
) -> None:
    """Gate and up to rounded products: a group of results from PACKED_ROWS rows.

    Parameters
    ----------
    exists : whether there is such a block; None if that is known
    """
    outputs = shape.tile // 2
    values = shared((outputs,))
    with strided(thread, shape.threads, outputs) as item:
        gate, up = sums.total(2 * item), sums.total(2 * item + 1)
        store(values, gelu_tanh(gate) * up, item)
    barrier()
    vec4s = outputs // WORD
    iterations = -(-vec4s // shape.threads)
    mine = []
    for iteration in range(iterations):
        item = bind(tirx.min(thread + iteration * shape.threads, vec4s - 1))
        lanes = [bind(values[item * WORD + index]) for index in range(WORD)]
        mine.append(bind(tirx.Shuffle(lanes, list(range(WORD)))))
    words, scales = results
    groups = outputs // GROUP

    def put(buffer: Buffer, value: Expr, place: Expr) -> None:
        with nullcontext() if exists is None else when(exists):
            store(buffer, value, position, place)

    round_vec4s(
        mine,
        thread,
        shape.threads,
        vec4s,
        interleaved,
        lambda vec4, word: put(words, word, block * vec4s + vec4),
        lambda group, scale: put(scales, scale, block * groups + group),
        simd_width,
    )
