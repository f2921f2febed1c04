"""The router in one launch, the grouping of a chunk's rows by expert, and the tail of the block.

Plain forms: model_spec/operators/router.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.model_spec.operators.attention import LOWEST
from gemma4_compile.model_spec.operators.base import symbolic_rows
from gemma4_compile.model_spec.operators.math import as_f32, f32
from gemma4_compile.model_spec.operators.router import (
    UNCHOSEN,
    CombineExperts,
    ExpertResidualNorm,
    GroupRows,
    Router,
)
from gemma4_compile.model_spec.operators.tir import Cell, function, i32, let, store, when
from gemma4_compile.targets.kernels.blocks import (
    BlockReduction,
    barrier,
    launch,
    power_of_two_at_most,
    row_threads,
    shared,
    strided,
    zero,
)
from gemma4_compile.targets.spec import TargetSpec

LANES = 16  # threads that share one expert's dot product
COMBINE_THREADS = 64


def _lowest(a: Any, b: Any) -> Any:
    return tirx.min(a, b)


def _highest(a: Any, b: Any) -> Any:
    return tirx.max(a, b)


def make_router(operator: Router, spec: TargetSpec) -> tirx.PrimFunc:
    """Norm, projection, softmax and top-k of one position in one block; a thread an expert.

    Grid: rows. Shared: two float32 a thread. Reference: `Router.plain`.
    """
    rows, width, experts = symbolic_rows(operator.rows), operator.width, operator.experts
    threads = row_threads(max(width, experts), spec.max_threads_per_block)
    assert experts <= threads, "a thread keeps one expert's score"
    with function(scheduled=True) as build:
        x = build.arg("x", (rows, width), "float32")
        scale = build.arg("scale", (width,), "float32")
        projection = build.arg("projection", (experts, width), operator.weight_dtype)
        expert_scale = build.arg("expert_scale", (experts,), "float32")
        w = build.arg("w", (width,), "float32")
        ids = build.arg("ids", (rows, operator.top_k), "int32")
        weights = build.arg("weights", (rows, operator.top_k), "float32")
        hidden = build.arg("hidden", (rows, width), operator.out_dtype)
        with launch(threads, rows) as (i, _, thread):
            reduce = BlockReduction(thread, threads)
            squares = Cell("float32", zero())
            with strided(thread, threads, width) as j:
                squares.add(x[i, j] * x[i, j])
            inverse = let(tirx.rsqrt(reduce(squares.value) / f32(width) + f32(operator.eps)))
            with strided(thread, threads, width) as j:
                store(hidden, (x[i, j] * inverse * w[j]).astype(operator.out_dtype), i, j)
            score = Cell("float32", zero())

            def scaled(j: Any) -> Any:
                return x[i, j] * scale[j]

            _project(projection, scaled, width, experts, thread, threads, score)
            score.set(score.value * inverse * f32(operator.factor))
            inside = let(thread < experts)
            highest = reduce(tirx.Select(inside, score.value, f32(LOWEST)), _highest)
            # The softmax's sum cancels: only the chosen experts' shares of each other remain.
            score.set(tirx.Select(inside, tirx.exp(score.value - highest), f32(UNCHOSEN)))
            chosen = []
            for k in range(operator.top_k):
                best = reduce(score.value, _highest)
                rank = tirx.Select(score.value == best, as_f32(thread), f32(experts))
                winner = let(i32(reduce(rank, _lowest)))
                chosen.append(best)
                with when(thread == winner):
                    score.set(f32(UNCHOSEN))
                with when(thread == 0):
                    store(ids, winner, i, k)
            total = let(sum(chosen[1:], chosen[0]))
            with when(thread == 0):
                for k, best in enumerate(chosen):
                    store(weights, best / total * expert_scale[ids[i, k]], i, k)
    return build.result


def _project(
    projection: Any,
    x: Callable[[Any], Any],
    width: int,
    experts: int,
    thread: Any,
    threads: int,
    score: Cell,
) -> None:
    """Thread e gets expert e's dot product with x; LANES neighbours share one to read coalesced."""
    at_once = threads // LANES
    lane, group = let(tirx.floormod(thread, LANES)), let(tirx.floordiv(thread, LANES))
    rows = [let(tirx.min(first + group, experts - 1)) for first in range(0, experts, at_once)]
    dots = [Cell("float32", zero()) for _ in rows]
    # One block reads the whole projection, so its time is latency: many independent loads a step.
    with strided(lane, LANES, width) as j:
        value = let(x(j))
        for e, dot in zip(rows, dots, strict=True):
            dot.add(value * as_f32(projection[e, j]))
    partial = shared((threads,))
    for turn, dot in enumerate(dots):
        barrier()
        store(partial, dot.value, thread)
        barrier()
        mine = let(thread - turn * at_once)
        with when((mine >= 0) & (mine < at_once)):
            for other in range(LANES):
                score.add(partial[mine * LANES + other])


def make_group_rows(operator: GroupRows, spec: TargetSpec) -> tirx.PrimFunc:
    """Counting sort in one block: a thread counts and places its experts' pairs.

    Grid: 1. Shared: one int32 an expert. Reference: `GroupRows.plain`.
    """
    rows, top_k, experts = symbolic_rows(None), operator.top_k, operator.experts
    threads = power_of_two_at_most(min(max(experts, 1), spec.max_threads_per_block))
    with function(scheduled=True) as build:
        ids = build.arg("ids", (rows, top_k), "int32")
        order = build.arg("order", (rows * top_k,), "int32")
        tile_count = operator.tile_count(rows * top_k)
        tiles = build.arg("tiles", (tile_count, 3), "int32")
        with launch(threads, 1) as (_, _, thread):
            counts = shared((experts,), "int32")
            with strided(thread, threads, experts) as e:
                count = Cell("int32", i32(0))
                with T.serial(0, rows) as i, T.serial(0, top_k) as k:
                    count.add(tirx.Select(ids[i, k] == e, i32(1), i32(0)))
                store(counts, count.value, e)
            barrier()

            def tiles_for(count: Any) -> Any:
                return tirx.floordiv(count + (operator.tile - 1), i32(operator.tile))

            with strided(thread, threads, experts) as e:
                first, tile = Cell("int32", i32(0)), Cell("int32", i32(0))
                with T.serial(0, e) as other:
                    first.add(counts[other])
                    tile.add(tiles_for(counts[other]))
                # A loop's bound may not read shared memory, so it goes through registers.
                own_tiles = Cell("int32", tiles_for(counts[e]))
                end = Cell("int32", first.value + counts[e])
                with T.serial(0, own_tiles.value) as t:
                    begin = let(first.value + t * operator.tile)
                    store(tiles, e, tile.value + t, 0)
                    store(tiles, begin, tile.value + t, 1)
                    store(tiles, tirx.min(begin + operator.tile, end.value), tile.value + t, 2)
                with T.serial(0, rows) as i, T.serial(0, top_k) as k, when(ids[i, k] == e):
                    store(order, i32(i) * top_k + k, first.value)
                    first.add(i32(1))
            used = Cell("int32", i32(0))
            with T.serial(0, experts) as e:
                used.add(tiles_for(counts[e]))
            unused = let(i32(tile_count) - used.value)
            with T.serial(0, tirx.floordiv(unused + (threads - 1), i32(threads))) as turn:
                t = let(used.value + turn * threads + thread)
                with when(t < i32(tile_count)):
                    for c in range(3):
                        store(tiles, i32(0), t, c)
    return build.result


def make_combine_experts(operator: CombineExperts, _spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: width / COMBINE_THREADS x rows. Reference: `CombineExperts.plain`."""
    rows, top_k, width = symbolic_rows(operator.rows), operator.top_k, operator.width
    with function(scheduled=True) as build:
        outputs = build.arg("outputs", (rows * top_k, width), "float32")
        weights = build.arg("weights", (rows, top_k), "float32")
        y = build.arg("y", (rows, width), "float32")
        with launch(COMBINE_THREADS, -(-width // COMBINE_THREADS), rows) as (block, i, thread):
            j = let(block * COMBINE_THREADS + thread)
            with when(j < width):
                total = Cell("float32", zero())
                for k in range(top_k):
                    total.add(weights[i, k] * outputs[i * top_k + k, j])
                store(y, total.value, i, j)
    return build.result


def make_expert_residual_norm(operator: ExpertResidualNorm, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: rows. Shared: one float32 a thread. Reference: `ExpertResidualNorm.plain`.

    Each thread reads back only what it wrote itself, so the new residual needs no barrier.
    """
    rows, width = symbolic_rows(operator.rows), operator.width
    shape = (rows, width)
    threads = row_threads(width, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        dense, experts, residual = (
            build.arg(name, shape, "float32") for name in ("dense", "experts", "residual")
        )
        w_dense, w_experts, w_branch = (
            build.arg(name, (width,), "float32") for name in ("w_dense", "w_experts", "w_branch")
        )
        scalar = build.arg("scalar", (1,), "float32")
        w_next = build.arg("w_next", (width,), "float32")
        out = build.arg("out", shape, "float32")
        hidden = build.arg("hidden", shape, operator.next_dtype)
        with launch(threads, rows) as (i, _, thread):
            reduce = BlockReduction(thread, threads)

            def inverse(square: Any) -> Any:
                total = Cell("float32", zero())
                with strided(thread, threads, width) as j:
                    value = let(square(j))
                    total.add(value * value)
                return let(tirx.rsqrt(reduce(total.value) / f32(width) + f32(operator.eps)))

            inverse_dense = inverse(lambda j: dense[i, j])
            inverse_experts = inverse(lambda j: experts[i, j])

            def both(j: Any) -> Any:
                first = dense[i, j] * inverse_dense * w_dense[j]
                return first + experts[i, j] * inverse_experts * w_experts[j]

            inverse_both = inverse(both)
            with strided(thread, threads, width) as j:
                total = residual[i, j] + both(j) * inverse_both * w_branch[j]
                store(out, total * scalar[0], i, j)
            inverse_out = inverse(lambda j: out[i, j])
            with strided(thread, threads, width) as j:
                value = out[i, j] * inverse_out * w_next[j]
                store(hidden, value.astype(operator.next_dtype), i, j)
    return build.result
