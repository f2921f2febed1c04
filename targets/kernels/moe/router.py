"""The router of one position and of many, the permutation of rows by expert, the end of a block.

Definitions: gemma4_compile/operators/moe.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.moe import (
    EXPERT_NORM,
    SCALE,
    VECTORS,
    CombineExperts,
    PermuteByExpert,
    Router,
    RouterScores,
    TopKExperts,
    routed_width,
)
from gemma4_compile.operators.rows import One
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockReduction,
    barrier,
    inverse_rms,
    launch,
    power_of_two_at_most,
    row_threads,
    several,
    shared,
    strided,
    sum_over_lanes,
    zero,
)
from gemma4_compile.targets.kernels.common.row_slice import Readable, RowSlice, StackRow
from gemma4_compile.targets.kernels.common.vectors import Vectors
from gemma4_compile.targets.kernels.moe.expert_choice import choose, weight_of
from gemma4_compile.targets.kernels.prologues.router_blocks import store_hidden
from gemma4_compile.targets.spec import TargetSpec

LANES = 16  # threads that share one expert's dot product
STEPS = 4  # vectors of each of its experts that a thread has under way
COMBINE_THREADS = 64


def make_router(operator: Router, spec: TargetSpec) -> tirx.PrimFunc:
    """Norm, projection, softmax and top-k of each position in one block.

    Grid: rows. Shared: two float32 a thread, one an expert. Reference: `Router.definition`.
    """
    rows, width, experts = operator.rows.extent(), operator.width, operator.experts
    top_k = operator.top_k
    threads = row_threads(max(width, experts), spec.max_threads_per_block)
    with function(scheduled=True) as build:
        x = build.arg("x", (rows, width), "float32")
        vectors = build.arg("vectors", (VECTORS, width), "float32")
        scale, w = StackRow(vectors, SCALE), StackRow(vectors, EXPERT_NORM)
        projection = build.arg("projection", (experts, width), operator.weight_dtype)
        expert_scale = build.arg("expert_scale", (experts,), "float32")
        ids = build.arg("ids", (rows, top_k), "int32")
        weights = build.arg("weights", (rows, top_k), "float32")
        hidden = build.arg("hidden", (rows, width), operator.out_dtype)
        with launch(threads, rows) as (i, _, thread):
            block = Block(thread, threads, spec.simd_width)
            reduce = BlockReduction(block)
            row_slice = RowSlice(block, width)
            mine = row_slice.load(x, i)
            squares = reduce(row_slice.dot(mine, mine))
            inverse = inverse_rms(squares, width, operator.eps)
            splat = row_slice.splat(inverse)
            row_slice.store(
                hidden, row_slice.map(lambda a, b: a * splat * b, mine, row_slice.load(w)), i
            )
            scores = shared((experts,))
            _project(operator, projection, x, scale, i, row_slice, scores)
            factor = bind(inverse * f32(operator.factor))
            chosen = choose(block, scores, experts, top_k)

            def score_of(e: Expr) -> Expr:
                return scores[e] * factor

            _store_choice(block, chosen, top_k, score_of, expert_scale, ids, weights, i)
    return build.result


def _store_choice(
    block: Block,
    chosen: Buffer,
    top_k: int,
    score_of: Callable[[Expr], Expr],
    expert_scale: Buffer,
    ids: Buffer,
    weights: Buffer,
    i: Index,
) -> None:
    """Ids and weights of position i, of the experts that `choose` found."""
    with strided(block, top_k) as k:
        e = bind(chosen[k])
        store(ids, e, i, k)
        every = [bind(chosen[other]) for other in range(top_k)]
        store(weights, weight_of(e, every, score_of, expert_scale), i, k)


def make_router_scores(operator: RouterScores, spec: TargetSpec) -> tirx.PrimFunc:
    """A block an expert, and each norms the position: all loads are under way at once.

    The blocks of the first expert write the normed row. Grid: experts x a few rows. Shared: two
    float32 a thread. Reference: `RouterScores.definition`.
    """
    width, experts, dtype = operator.width, operator.experts, operator.hidden_dtype
    n, is_one = operator.rows.extent(), isinstance(operator.rows, One)
    threads = row_threads(width, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        x = build.arg("x", (n, width), "float32")
        vectors = build.arg("vectors", (VECTORS, width), "float32")
        projection = build.arg("projection", (experts, width), operator.weight_dtype)
        columns = routed_width(experts, width) if is_one else experts
        scores = build.arg("routed" if is_one else "scores", (n, columns), "float32")
        hidden = None if dtype is None else build.arg("hidden", (n, width), dtype)
        with launch(threads, experts, several(operator.rows, n)) as (e, row, thread):
            row_slice = RowSlice(Block(thread, threads, spec.simd_width), width)
            i, norm = 0 if is_one else row, StackRow(vectors, EXPERT_NORM)
            mine, weight = row_slice.load(x, i), row_slice.load(norm) if is_one else []
            inverse = store_score(operator, row_slice, mine, vectors, projection, scores, i, e)
            if is_one or hidden is not None:
                with when(e == 0):
                    splat = row_slice.splat(inverse)
                    weight = weight or row_slice.load(norm)
                    normed = row_slice.map(lambda a, b: a * splat * b, mine, weight)
                    if hidden is None:
                        store_hidden(scores, normed, experts, row_slice)
                    else:
                        row_slice.store(hidden, normed, i)
    return build.result


def store_score(
    operator: RouterScores,
    row_slice: RowSlice,
    mine: Sequence[Expr],
    vectors: Buffer,
    projection: Buffer,
    scores: Buffer,
    i: Index,
    e: Expr,
) -> Expr:
    """Write expert e's score of position i, whose slice is `mine`; return 1 / rms."""
    block, cast = row_slice.block, row_slice.vectors.cast
    row = [cast(value, "float32") for value in row_slice.load(projection, e)]
    scale = row_slice.load(StackRow(vectors, SCALE))
    scaled = row_slice.map(lambda a, b: a * b, mine, scale)
    parts = [row_slice.dot(mine, mine), row_slice.dot(scaled, row)]
    squares, dot = (bind(total) for total in sum_over_lanes(block, parts, block.threads))
    inverse = inverse_rms(squares, operator.width, operator.eps)
    with when(block.thread == 0):
        store(scores, dot * (inverse * f32(operator.factor)), i, e)
    return inverse


def make_top_k_experts(operator: TopKExperts, spec: TargetSpec) -> tirx.PrimFunc:
    """A block a position. Shared: an id for each chosen expert.

    Grid: positions. Reference: `TopKExperts.definition`.
    """
    experts, top_k = operator.experts, operator.top_k
    threads = row_threads(experts, spec.max_threads_per_block)
    n, is_one = operator.rows.extent(), isinstance(operator.rows, One)
    with function(scheduled=True) as build:
        scores = build.arg("scores", (n, operator.columns), "float32")
        expert_scale = build.arg("expert_scale", (experts,), "float32")
        ids = build.arg("ids", (n, top_k), "int32")
        weights = build.arg("weights", (n, top_k), "float32")
        with launch(threads, n) as (index, _, thread):
            block, i = Block(thread, threads, spec.simd_width), 0 if is_one else index
            chosen = choose(block, scores, experts, top_k, i)

            def score_of(e: Expr) -> Expr:
                return scores[i, e]

            _store_choice(block, chosen, top_k, score_of, expert_scale, ids, weights, i)
    return build.result


def _project(
    operator: Router,
    projection: Buffer,
    x: Buffer,
    scale: Readable,
    row: Expr,
    row_slice: RowSlice,
    scores: Buffer,
) -> None:
    """``scores[e] = projection[e] . (x * scale)``; LANES neighbours share an expert."""
    experts, block = operator.experts, row_slice.block
    thread, threads = block.thread, block.threads
    vectors = row_slice.vectors
    lanes = min(LANES, threads)
    at_once = threads // lanes
    lane, group = bind(tirx.floormod(thread, lanes)), bind(tirx.floordiv(thread, lanes))
    mine = [bind(tirx.min(first + group, experts - 1)) for first in range(0, experts, at_once)]
    dots = [LocalVar("float32", zero()) for _ in mine]
    # One block reads the whole projection, so its time is latency: all loads of a step come first.
    groups = row_slice.groups
    steps = min(STEPS, -(-groups // lanes))
    with T.serial(0, -(-groups // (lanes * steps))) as iteration:
        values, parts = [], []
        for step in range(steps):
            group = bind((iteration * steps + step) * lanes + lane)
            inside = group < groups
            group = bind(tirx.min(group, groups - 1))
            index = vectors.at(group)
            kept = bind(tirx.Select(inside, f32(1.0), zero()))
            values.append(bind(x[row, index] * scale[index] * row_slice.splat(kept)))
            parts.append([bind(projection[e, index]) for e in mine])
        for value, row_parts in zip(values, parts, strict=True):
            for part, dot in zip(row_parts, dots, strict=True):
                dot.add(vectors.sum(bind(value * vectors.cast(part, "float32"))))
    partial = shared((threads,))
    for iteration, dot in enumerate(dots):
        barrier()
        store(partial, dot.value, thread)
        barrier()
        e = bind(iteration * at_once + thread)
        with when((thread < at_once) & (e < experts)):
            total = LocalVar("float32", zero())
            for other in range(lanes):
                total.add(partial[thread * lanes + other])
            store(scores, total.value, e)
    barrier()


def slots_of(ids: Buffer, i: Expr, top_k: int, expert: Expr) -> list[tuple[int, Expr]]:
    """A row's slots, and whether each chose the expert: all loads come first."""
    vectors = Vectors.dividing(top_k)
    places = [vectors.at(part) for part in range(top_k // vectors.size)]
    # Unsigned: TVM's narrowing of indices takes a named vector of int32 for one.
    parts = [bind(vectors.cast(ids[i, place], "uint32")) for place in places]
    lanes = [lane for part in parts for lane in vectors.lanes(part)]
    own = expert.astype("uint32")
    return [(k, lane == own) for k, lane in enumerate(lanes)]


def make_permute_by_expert(operator: PermuteByExpert, spec: TargetSpec) -> tirx.PrimFunc:
    """Counting sort in one block: a thread counts and places its experts' pairs.

    Grid: 1. Shared: one int32 an expert. Reference: `PermuteByExpert.definition`.
    """
    rows, top_k, experts = symbolic_rows(None), operator.top_k, operator.experts
    threads = power_of_two_at_most(min(max(experts, 1), spec.max_threads_per_block))
    with function(scheduled=True) as build:
        ids = build.arg("ids", (rows, top_k), "int32")
        order = build.arg("order", (rows * top_k,), "int32")
        tile_count = operator.tile_count(rows * top_k)
        tiles = build.arg("tiles", (tile_count, 3), "int32")
        with launch(threads, 1) as (_, _, thread):
            block = Block(thread, threads, spec.simd_width)
            counts = shared((experts,), "int32")
            with strided(block, experts) as e:
                count = LocalVar("int32", i32(0))
                with T.serial(0, rows) as i:
                    for _, is_own in slots_of(ids, i, top_k, e):
                        count.add(tirx.Select(is_own, i32(1), i32(0)))
                store(counts, count.value, e)
            barrier()

            def tiles_for(count: Expr) -> Expr:
                return tirx.floordiv(count + (operator.tile - 1), i32(operator.tile))

            with strided(block, experts) as e:
                first, tile = LocalVar("int32", i32(0)), LocalVar("int32", i32(0))
                with T.serial(0, e) as other:
                    first.add(counts[other])
                    tile.add(tiles_for(counts[other]))
                # A loop's bound may not read shared memory, so it goes through registers.
                own_tiles = LocalVar("int32", tiles_for(counts[e]))
                end = LocalVar("int32", first.value + counts[e])
                with T.serial(0, own_tiles.value) as t:
                    begin = bind(first.value + t * operator.tile)
                    store(tiles, e, tile.value + t, 0)
                    store(tiles, begin, tile.value + t, 1)
                    store(tiles, tirx.min(begin + operator.tile, end.value), tile.value + t, 2)
                with T.serial(0, rows) as i:
                    for k, is_own in slots_of(ids, i, top_k, e):
                        with when(is_own):
                            store(order, i32(i) * top_k + k, first.value)
                            first.add(i32(1))
            used = LocalVar("int32", i32(0))
            with T.serial(0, experts) as e:
                used.add(tiles_for(counts[e]))
            unused = bind(i32(tile_count) - used.value)
            with T.serial(0, tirx.floordiv(unused + (threads - 1), i32(threads))) as iteration:
                t = bind(used.value + iteration * threads + thread)
                with when(t < i32(tile_count)):
                    for c in range(3):
                        store(tiles, i32(0), t, c)
    return build.result


def make_combine_experts(operator: CombineExperts, _spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: width / COMBINE_THREADS x rows. Reference: `CombineExperts.definition`."""
    rows, top_k, width = operator.rows.extent(), operator.top_k, operator.width
    with function(scheduled=True) as build:
        outputs = build.arg("outputs", (rows * top_k, width), "float32")
        weights = build.arg("weights", (rows, top_k), "float32")
        y = build.arg("y", (rows, width), "float32")
        with launch(COMBINE_THREADS, -(-width // COMBINE_THREADS), rows) as (block, i, thread):
            j = bind(block * COMBINE_THREADS + thread)
            with when(j < width):
                total = LocalVar("float32", zero())
                for k in range(top_k):
                    total.add(weights[i, k] * outputs[i * top_k + k, j])
                store(y, total.value, i, j)
    return build.result
