"""Attention of one position: split its keys among thread blocks, then merge. Flash decoding.

Plain forms: `SplitAttention.plain`, `DecodeAttention.plain` and `MergeSplits.plain` in
model_spec/operators/attention.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.model_spec.operators.attention import (
    LOWEST,
    DecodeAttention,
    MergeSplits,
    SplitAttention,
)
from gemma4_compile.model_spec.operators.math import as_f32, f32
from gemma4_compile.model_spec.operators.tir import Cell, function, i32, let, store, when
from gemma4_compile.targets.kernels.blocks import (
    BlockReduction,
    barrier,
    launch,
    local,
    row_threads,
    shared,
    strided,
    sum_over_block,
    zero,
)
from gemma4_compile.targets.spec import TargetSpec

THREADS = 128
KEYS = 32  # keys of a tile: scored together, then used together
LANES = 16  # threads that share the dot product of one key
ROUND = THREADS // LANES  # keys scored at a time


@dataclass(frozen=True)
class _Head:
    """One block's operands: a query head, its KV head, and where q lies in shared memory."""

    operator: SplitAttention
    key: Any
    value: Any
    g: Any
    thread: Any
    query: Any


class _OnlineSoftmax:
    """The running maximum, sum of weights and weighted sum of values of one block.

    A thread owns the output channels thread, thread + THREADS, ...
    """

    def __init__(self, head: _Head) -> None:
        self.head = head
        self.dim = head.operator.head_dim
        self.owned = -(-self.dim // THREADS)
        self.total = local((self.owned,))
        for index in range(self.owned):
            store(self.total, zero(), index)
        self.highest, self.weight_sum = Cell("float32", f32(LOWEST)), Cell("float32", zero())

    def channel(self, index: int) -> Any:
        """The owned channel, clamped where the head is narrower than the block."""
        d = self.head.thread + index * THREADS
        return d if self.dim % THREADS == 0 else tirx.min(d, self.dim - 1)

    def rescale(self, higher: Any) -> None:
        """Take a new maximum."""
        keep = let(tirx.exp(self.highest.value - higher))
        self.highest.set(higher)
        self.weight_sum.set(self.weight_sum.value * keep)
        for index in range(self.owned):
            store(self.total, self.total[index] * keep, index)

    def add(self, weight: Any, value_of: Any) -> None:
        """Add one key's value, `value_of` a channel."""
        self.weight_sum.add(weight)
        for index in range(self.owned):
            store(self.total, self.total[index] + weight * value_of(self.channel(index)), index)

    def run(self, begin: Any, end: Any) -> None:
        """Go over the keys [begin, end) of the cache, a tile at a time."""
        head, cache = self.head, self.head.operator.cache
        partial = shared((KEYS // ROUND, THREADS))
        scores, weights = shared((KEYS,)), shared((KEYS,))
        with T.serial(0, tirx.floordiv(end - begin + (KEYS - 1), i32(KEYS))) as tile:
            base = let(begin + tile * KEYS)
            self._score(partial, scores, base, end)
            higher = Cell("float32", self.highest.value)
            for t in range(KEYS):
                higher.set(tirx.max(higher.value, scores[t]))
            with when(head.thread < KEYS):
                weight = tirx.exp(scores[head.thread] - higher.value)
                inside = base + head.thread < end
                store(weights, tirx.Select(inside, weight, zero()), head.thread)
            barrier()
            self.rescale(higher.value)
            with T.serial(0, tirx.min(i32(KEYS), end - base)) as t:
                slot = let(cache.row(base + t))
                self.add(weights[t], lambda d, slot=slot: as_f32(head.value[slot, head.g, d]))

    def _score(self, partial: Any, scores: Any, base: Any, end: Any) -> None:
        """q.k of a tile: LANES threads a key, then one thread a key adds their shares."""
        head, cache, thread = self.head, self.head.operator.cache, self.head.thread
        barrier()
        for turn in range(KEYS // ROUND):
            t = let(tirx.min(base + turn * ROUND + tirx.floordiv(thread, LANES), end - 1))
            slot, lane = let(cache.row(t)), let(tirx.floormod(thread, LANES))
            dot = Cell("float32", zero())
            with strided(lane, LANES, self.dim) as d:
                dot.add(head.query[d] * as_f32(head.key[slot, head.g, d]))
            store(partial, dot.value, turn, thread)
        barrier()
        with when(thread < KEYS):
            score = Cell("float32", zero())
            row, first = tirx.floordiv(thread, ROUND), tirx.floormod(thread, ROUND) * LANES
            for lane in range(LANES):
                score.add(partial[row, first + lane])
            inside = base + thread < end
            store(scores, tirx.Select(inside, score.value, f32(LOWEST)), thread)
        barrier()

    def finish(self, sums: Any, stats: Any, split: Any, h: Any) -> None:
        """Store the split's results."""
        for index in range(self.owned):
            d = let(self.head.thread + index * THREADS)
            with when(d < self.dim):
                store(sums, self.total[index], split, h, d)
        with when(self.head.thread == 0):
            store(stats, self.highest.value, split, h, 0)
            store(stats, self.weight_sum.value, split, h, 1)


def make_split_attention(operator: SplitAttention, _spec: TargetSpec) -> tirx.PrimFunc:
    """Online softmax over one split's keys, for one query head.

    Grid: splits x heads. Shared: q, KEYS scores and weights, THREADS x KEYS / ROUND partial dot
    products (4.3 KiB for head_dim 512). Reference: `SplitAttention.plain`.
    """
    dim, heads = operator.head_dim, operator.heads
    with function(scheduled=True) as build:
        q = build.arg("q", (1, heads * dim), "float32")
        shape = operator.cache.shape()
        key = build.arg("key", shape, operator.cache_dtype)
        value = build.arg("value", shape, operator.cache_dtype)
        positions = build.arg("positions", (4,), "int32")
        sums = build.arg("sums", (operator.splits, heads, dim), "float32")
        stats = build.arg("stats", (operator.splits, heads, 2), "float32")
        with launch(THREADS, operator.splits, heads) as (split, h, thread):
            query = shared((dim,))
            g = let(tirx.floordiv(h, heads // operator.kv_heads))
            bounds = operator.split_range(let(positions[2] - 1), split)
            with strided(thread, THREADS, dim) as d:
                store(query, q[0, h * dim + d], d)
            softmax = _OnlineSoftmax(_Head(operator, key, value, g, thread, query))
            softmax.run(let(bounds[0]), let(bounds[1]))
            softmax.finish(sums, stats, split, h)
    return build.result


def make_decode_attention(operator: DecodeAttention, _spec: TargetSpec) -> tirx.PrimFunc:
    """`make_split_attention` with the norms and rotations of q, k and v in front of it.

    Every block makes the new key and value for itself; the block of the KV head's first query head
    whose split ends with the new position writes them to the cache, which nobody else reads there.
    Grid and shared memory as `make_split_attention`, and the new key and value. Reference:
    `DecodeAttention.plain`.
    """
    dim, heads, owns = operator.head_dim, operator.heads, operator.owns_kv
    with function(scheduled=True) as build:
        qkv = build.arg("qkv", (1, operator.columns.width), "float32")
        q_norm = build.arg("q_norm", (dim,), "float32")
        k_norm = build.arg("k_norm", (dim,), "float32") if owns else None
        positions = build.arg("positions", (4,), "int32")
        table = (tirx.Var("chunk", "int64"), operator.rotary_total, 2)
        rotary = build.arg("rotary", table, "float32")
        shape = operator.cache.shape()
        key = build.arg("key", shape, operator.cache_dtype)
        value = build.arg("value", shape, operator.cache_dtype)
        sums = build.arg("sums", (operator.splits, heads, dim), "float32")
        stats = build.arg("stats", (operator.splits, heads, 2), "float32")
        with launch(THREADS, operator.splits, heads) as (split, h, thread):
            position, step = let(positions[2] - 1), let(positions[1] - 1)
            g = let(tirx.floordiv(h, heads // operator.kv_heads))
            bounds = operator.split_range(position, split)
            begin, end = let(bounds[0]), let(bounds[1])
            query = shared((dim,))
            rows = [(h * dim, q_norm, rotary, query)]
            if owns:
                new_key, new_value = shared((dim,)), shared((dim,))
                k_column, v_column = operator.columns.of_kv(g)
                rows += [(k_column, k_norm, rotary, new_key), (v_column, None, None, new_value)]
            _prepare(operator, qkv, rows, step, thread)
            softmax = _OnlineSoftmax(_Head(operator, key, value, g, thread, query))
            softmax.run(begin, let(tirx.min(end, position)) if owns else end)
            if owns:
                mine = let((begin <= position) & (position < end))
                _add_new(softmax, new_key, new_value, mine)
                first = tirx.floormod(h, heads // operator.kv_heads) == 0
                slot = let(operator.cache.row(position))
                with when(mine & first):
                    with strided(thread, THREADS, dim) as d:
                        store(key, new_key[d].astype(operator.cache_dtype), slot, g, d)
                    with strided(thread, THREADS, dim) as d:
                        store(value, new_value[d].astype(operator.cache_dtype), slot, g, d)
            softmax.finish(sums, stats, split, h)
    return build.result


def _prepare(
    operator: DecodeAttention, qkv: Any, rows: list[tuple[Any, ...]], step: Any, thread: Any
) -> None:
    """Norm and rotate heads of qkv into shared memory: (column, weight, rotary or None, target).

    The new key and value are rounded as the cache rounds them; q stays float32.
    """
    dim, half, dtype = operator.head_dim, operator.head_dim // 2, operator.cache_dtype
    squares = []
    for column, *_ in rows:
        total = Cell("float32", zero())
        with strided(thread, THREADS, dim) as d:
            total.add(qkv[0, column + d] * qkv[0, column + d])
        squares.append(total.value)
    for (column, weight, rotary, target), square in zip(
        rows, sum_over_block(squares, thread, THREADS), strict=True
    ):
        inverse = let(tirx.rsqrt(square / f32(dim) + f32(operator.eps)))

        def rounded(y: Any, is_query: bool = target is rows[0][3]) -> Any:
            return y if is_query else as_f32(y.astype(dtype))

        with strided(thread, THREADS, half) as j:
            low, high = qkv[0, column + j] * inverse, qkv[0, column + j + half] * inverse
            if weight is not None:
                low, high = low * weight[j], high * weight[j + half]
            low, high = let(low), let(high)
            if rotary is not None:
                cos, sin = operator.head.cos_sin(rotary, step, j)
                low, high = low * cos - high * sin, high * cos + low * sin
            store(target, rounded(low), j)
            store(target, rounded(high), j + half)


def _add_new(softmax: _OnlineSoftmax, new_key: Any, new_value: Any, mine: Any) -> None:
    """The new position's own key, if this split has it; it is not in the cache yet."""
    head = softmax.head
    dot = Cell("float32", zero())
    barrier()
    with strided(head.thread, THREADS, softmax.dim) as d:
        dot.add(head.query[d] * new_key[d])
    score = BlockReduction(head.thread, THREADS)(dot.value)
    highest = softmax.highest.value
    higher = let(tirx.Select(mine, tirx.max(highest, score), highest))
    weight = let(tirx.Select(mine, tirx.exp(tirx.min(score - higher, zero())), zero()))
    softmax.rescale(higher)
    softmax.add(weight, lambda d: new_value[d])


def merged_channel(sums: Any, stats: Any, splits: int, h: Any, d: Any) -> Any:
    """One channel of a head over all splits, each weighed by its maximum: float32."""
    highest: Any = stats[0, h, 0]
    for split in range(1, splits):
        highest = tirx.max(highest, stats[split, h, 0])
    highest = let(highest)
    weights = [let(tirx.exp(stats[split, h, 0] - highest)) for split in range(splits)]
    weight_sum = sum((weights[s] * stats[s, h, 1] for s in range(splits)), zero())
    return let(sum((weights[s] * sums[s, h, d] for s in range(splits)), zero()) / weight_sum)


def make_merge_splits(operator: MergeSplits, spec: TargetSpec) -> tirx.PrimFunc:
    """Weigh each split by its maximum. Grid: heads. Reference: `MergeSplits.plain`."""
    dim, heads, splits = operator.head_dim, operator.heads, operator.splits
    threads = row_threads(dim, spec.max_threads_per_block)
    with function(scheduled=True) as build:
        sums = build.arg("sums", (splits, heads, dim), "float32")
        stats = build.arg("stats", (splits, heads, 2), "float32")
        out = build.arg("out", (1, heads * dim), operator.out_dtype)
        with launch(threads, heads) as (h, _, thread), strided(thread, threads, dim) as d:
            total = merged_channel(sums, stats, splits, h, d)
            store(out, total.astype(operator.out_dtype), 0, h * dim + d)
    return build.result
