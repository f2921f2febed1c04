"""Attention of one position: split its keys among thread blocks, then merge. Flash decoding.

Plain forms: `SplitAttention.plain` and `MergeSplits.plain` in model_spec/operators/attention.py.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.model_spec.operators.attention import LOWEST, MergeSplits, SplitAttention
from gemma4_compile.model_spec.operators.math import as_f32, f32
from gemma4_compile.model_spec.operators.tir import Cell, function, i32, let, store, when
from gemma4_compile.targets.kernels.blocks import (
    barrier,
    launch,
    local,
    row_threads,
    shared,
    strided,
    zero,
)
from gemma4_compile.targets.spec import TargetSpec

THREADS = 128
KEYS = 32  # keys of a tile: scored together, then used together
LANES = 16  # threads that share the dot product of one key
ROUND = THREADS // LANES  # keys scored at a time


def make_split_attention(operator: SplitAttention, _spec: TargetSpec) -> tirx.PrimFunc:
    """Online softmax over one split's keys, for one query head.

    Grid: splits x heads. Shared: q, KEYS scores and weights, THREADS x KEYS / ROUND partial dot
    products (4.3 KiB for head_dim 512). A thread owns the output channels thread, thread + THREADS,
    ... Reference: `SplitAttention.plain`.
    """
    dim, heads = operator.head_dim, operator.heads
    owned = -(-dim // THREADS)
    with function(scheduled=True) as build:
        q = build.arg("q", (1, heads * dim), "float32")
        shape = operator.cache.shape()
        key = build.arg("key", shape, operator.cache_dtype)
        value = build.arg("value", shape, operator.cache_dtype)
        positions = build.arg("positions", (4,), "int32")
        sums = build.arg("sums", (operator.splits, heads, dim), "float32")
        stats = build.arg("stats", (operator.splits, heads, 2), "float32")
        with launch(THREADS, operator.splits, heads) as (split, h, thread):
            query, partial = shared((dim,)), shared((KEYS // ROUND, THREADS))
            scores, weights = shared((KEYS,)), shared((KEYS,))
            total = local((owned,))
            g = let(tirx.floordiv(h, heads // operator.kv_heads))
            bounds = operator.split_range(let(positions[2] - 1), split)
            begin, end = let(bounds[0]), let(bounds[1])
            with strided(thread, THREADS, dim) as d:
                store(query, q[0, h * dim + d], d)
            for index in range(owned):
                store(total, zero(), index)
            highest, weight_sum = Cell("float32", f32(LOWEST)), Cell("float32", zero())
            with T.serial(0, tirx.floordiv(end - begin + (KEYS - 1), i32(KEYS))) as tile:
                base = let(begin + tile * KEYS)
                barrier()
                for turn in range(KEYS // ROUND):
                    t = let(tirx.min(base + turn * ROUND + tirx.floordiv(thread, LANES), end - 1))
                    slot, lane = let(operator.cache.row(t)), let(tirx.floormod(thread, LANES))
                    dot = Cell("float32", zero())
                    with strided(lane, LANES, dim) as d:
                        dot.add(query[d] * as_f32(key[slot, g, d]))
                    store(partial, dot.value, turn, thread)
                barrier()
                with when(thread < KEYS):
                    score = Cell("float32", zero())
                    for lane in range(LANES):
                        row, column = (
                            tirx.floordiv(thread, ROUND),
                            tirx.floormod(thread, ROUND) * LANES + lane,
                        )
                        score.add(partial[row, column])
                    inside = base + thread < end
                    store(scores, tirx.Select(inside, score.value, f32(LOWEST)), thread)
                barrier()
                higher = Cell("float32", highest.value)
                for t in range(KEYS):
                    higher.set(tirx.max(higher.value, scores[t]))
                with when(thread < KEYS):
                    weight = tirx.exp(scores[thread] - higher.value)
                    store(weights, tirx.Select(base + thread < end, weight, zero()), thread)
                barrier()
                keep = let(tirx.exp(highest.value - higher.value))
                highest.set(higher.value)
                weight_sum.set(weight_sum.value * keep)
                for index in range(owned):
                    store(total, total[index] * keep, index)
                with T.serial(0, tirx.min(i32(KEYS), end - base)) as t:
                    weight_sum.add(weights[t])
                    slot = let(operator.cache.row(base + t))
                    for index in range(owned):
                        d = thread + index * THREADS
                        channel = d if dim % THREADS == 0 else tirx.min(d, dim - 1)
                        store(
                            total,
                            total[index] + weights[t] * as_f32(value[slot, g, channel]),
                            index,
                        )
            for index in range(owned):
                d = let(thread + index * THREADS)
                with when(d < dim):
                    store(sums, total[index], split, h, d)
            with when(thread == 0):
                store(stats, highest.value, split, h, 0)
                store(stats, weight_sum.value, split, h, 1)
    return build.result


def make_merge_splits(operator: MergeSplits, spec: TargetSpec) -> tirx.PrimFunc:
    """Weigh each split by its maximum. Grid: heads. Reference: `MergeSplits.plain`."""
    dim, heads, splits = operator.head_dim, operator.heads, operator.splits
    threads = row_threads(dim, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        sums = build.arg("sums", (splits, heads, dim), "float32")
        stats = build.arg("stats", (splits, heads, 2), "float32")
        out = build.arg("out", (1, heads * dim), operator.out_dtype)
        with launch(threads, heads) as (h, _, thread):
            highest: Any = stats[0, h, 0]
            for split in range(1, splits):
                highest = tirx.max(highest, stats[split, h, 0])
            highest = let(highest)
            weights = [let(tirx.exp(stats[split, h, 0] - highest)) for split in range(splits)]
            weight_sum = let(sum((weights[s] * stats[s, h, 1] for s in range(splits)), zero()))
            with strided(thread, threads, dim) as d:
                total = sum((weights[s] * sums[s, h, d] for s in range(splits)), zero())
                store(out, (total / weight_sum).astype(operator.out_dtype), 0, h * dim + d)
    return build.result
