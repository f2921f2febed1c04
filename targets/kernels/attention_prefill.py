"""Attention of a prefill chunk: flash attention reading the ring (or the whole context) directly.

The chunk's own keys are in the KV state already, so there is no separate part for them. Plain form:
`ChunkAttention.plain` in model_spec/operators/attention.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.model_spec.operators.attention import LOWEST, ChunkAttention
from gemma4_compile.model_spec.operators.base import symbolic_rows
from gemma4_compile.model_spec.operators.math import as_f32, f32
from gemma4_compile.model_spec.operators.tir import Cell, function, i32, let, store, when
from gemma4_compile.targets.kernels.blocks import barrier, launch, local, shared, strided, zero
from gemma4_compile.targets.spec import TargetSpec

THREADS = 128
KEYS = 32  # keys of a tile
CHANNELS = 32  # channels of q and K in shared memory at a time
PITCH = CHANNELS + 1  # one more, so that rows start in different banks
ACCUMULATORS = 32  # output channels times rows that a thread keeps in registers


@dataclass(frozen=True)
class _Tiling:
    """Query rows of a block, output channels of a thread, and threads that score one row's keys."""

    rows: int
    owned: int

    @property
    def lanes(self) -> int:
        return THREADS // self.rows


def _tiling(head_dim: int) -> _Tiling:
    owned = -(-head_dim // THREADS)
    return _Tiling(rows=min(16, ACCUMULATORS // owned), owned=owned)


class _Block:
    """What the phases of the kernel share: one block's operands, shared memory and position."""

    def __init__(self, operator: ChunkAttention, tiling: _Tiling, args: dict[str, Any]) -> None:
        self.operator, self.tiling = operator, tiling
        self.q, self.key, self.value = args["q"], args["key"], args["value"]
        self.h, self.g, self.thread = args["h"], args["g"], args["thread"]
        self.first_row, self.last_row, self.position = (
            args["first_row"],
            args["last_row"],
            args["position"],
        )
        self.q_tile, self.k_tile = shared((tiling.rows, PITCH)), shared((KEYS, PITCH))
        self.scores, self.weights = (shared((tiling.rows, KEYS + 1)) for _ in range(2))
        self.row_factors = shared((tiling.rows,))
        self.highest, self.weight_sum = Cell("float32", f32(LOWEST)), Cell("float32", zero())
        self.dots = local((KEYS // tiling.lanes,))
        self.total = local((tiling.rows * tiling.owned,))

    def start(self) -> None:
        """Empty sums."""
        for index in range(self.tiling.rows * self.tiling.owned):
            store(self.total, zero(), index)

    def score(self, base: Any, end: Any) -> None:
        """Step 1: q.k for the tile of keys from `base`, a run of channels at a time."""
        dim, tiling, thread = self.operator.head_dim, self.tiling, self.thread
        row, lane = (
            let(tirx.floordiv(thread, tiling.lanes)),
            let(tirx.floormod(thread, tiling.lanes)),
        )
        count = KEYS // tiling.lanes
        width = min(CHANNELS, dim)
        for index in range(count):
            store(self.dots, zero(), index)
        with T.serial(0, -(-dim // CHANNELS)) as run:
            barrier()
            with strided(thread, THREADS, tiling.rows * width) as item:
                i, d = let(tirx.floordiv(item, width)), let(tirx.floormod(item, width))
                token = tirx.min(self.first_row + i, self.last_row)
                store(self.q_tile, self._channel(self.q, run * CHANNELS + d, token), i, d)
            with strided(thread, THREADS, KEYS * width) as item:
                t, d = let(tirx.floordiv(item, width)), let(tirx.floormod(item, width))
                slot = let(self.operator.cache.row(tirx.min(base + t, end - 1)))
                store(self.k_tile, self._channel(self.key, run * CHANNELS + d, slot), t, d)
            barrier()
            with T.serial(0, width) as d:
                query = let(self.q_tile[row, d])
                for index in range(count):
                    product = query * self.k_tile[lane + index * tiling.lanes, d]
                    store(self.dots, self.dots[index] + product, index)
        at = let(self.position + row)
        for index in range(count):
            t = let(base + lane + index * tiling.lanes)
            seen = (t <= at) & (t >= self.operator.first_key(at)) & (t < end)
            store(self.scores, tirx.Select(seen, self.dots[index], f32(LOWEST)), row, t - base)
        barrier()

    def _channel(self, tensor: Any, d: Any, row: Any) -> Any:
        dim = self.operator.head_dim
        channel = d if dim % CHANNELS == 0 or dim < CHANNELS else tirx.min(d, dim - 1)
        item = (
            tensor[row, self.h * dim + channel]
            if tensor is self.q
            else as_f32(tensor[row, self.g, channel])
        )
        if dim % CHANNELS == 0 or dim < CHANNELS:
            return item
        return tirx.Select(d < dim, item, zero())

    def weigh(self) -> None:
        """Step 2: one thread a row turns scores into weights, and notes how to rescale.

        That thread keeps the row's maximum and sum of weights in registers.
        """
        with when(self.thread < self.tiling.rows):
            row = self.thread
            higher, added = Cell("float32", self.highest.value), Cell("float32", zero())
            with T.serial(0, KEYS) as t:
                higher.set(tirx.max(higher.value, self.scores[row, t]))
            with T.serial(0, KEYS) as t:
                score = let(self.scores[row, t])
                weight = let(
                    tirx.Select(score > f32(LOWEST), tirx.exp(score - higher.value), zero())
                )
                store(self.weights, weight, row, t)
                added.add(weight)
            keep = let(tirx.exp(self.highest.value - higher.value))
            store(self.row_factors, keep, row)
            self.weight_sum.set(self.weight_sum.value * keep + added.value)
            self.highest.set(higher.value)
        barrier()

    def accumulate(self, base: Any, end: Any) -> None:
        """Step 3: add the weighted values to the channels that this thread owns."""
        dim, tiling = self.operator.head_dim, self.tiling
        for i in range(tiling.rows):
            for c in range(tiling.owned):
                index = i * tiling.owned + c
                store(self.total, self.total[index] * self.row_factors[i], index)
        with T.serial(0, tirx.min(i32(KEYS), end - base)) as t:
            slot = let(self.operator.cache.row(base + t))
            for c in range(tiling.owned):
                d = self.thread + c * THREADS
                channel = d if dim % THREADS == 0 else tirx.min(d, dim - 1)
                item = let(as_f32(self.value[slot, self.g, channel]))
                for i in range(tiling.rows):
                    index = i * tiling.owned + c
                    store(self.total, self.total[index] + self.weights[i, t] * item, index)

    def finish(self, out: Any) -> None:
        """Divide and store the block's rows."""
        dim, tiling = self.operator.head_dim, self.tiling
        barrier()
        with when(self.thread < tiling.rows):
            store(self.row_factors, self.weight_sum.value, self.thread)
        barrier()
        for i in range(tiling.rows):
            with when(self.first_row + i <= self.last_row):
                for c in range(tiling.owned):
                    d = let(self.thread + c * THREADS)
                    with when(d < dim):
                        result = self.total[i * tiling.owned + c] / self.row_factors[i]
                        store(
                            out,
                            result.astype(self.operator.out_dtype),
                            self.first_row + i,
                            self.h * dim + d,
                        )


def make_chunk_attention(operator: ChunkAttention, _spec: TargetSpec) -> tirx.PrimFunc:
    """Causal (and sliding) attention of all positions of a chunk.

    Grid: heads x chunk rows / tile rows. Shared: tiles of q, K and scores, 10.7 KiB. Reference:
    `ChunkAttention.plain`.
    """
    n, dim, heads = symbolic_rows(operator.rows), operator.head_dim, operator.heads
    tiling = _tiling(dim)
    with function(scheduled=True) as build:
        q = build.arg("q", (n, heads * dim), "float32")
        shape = operator.cache.shape()
        key = build.arg("key", shape, operator.cache_dtype)
        value = build.arg("value", shape, operator.cache_dtype)
        positions = build.arg("positions", (4,), "int32")
        out = build.arg("out", (n, heads * dim), operator.out_dtype)
        with launch(THREADS, heads, tirx.floordiv(n + (tiling.rows - 1), tiling.rows)) as (
            h,
            tile,
            thread,
        ):
            first_row = let(tile * tiling.rows)
            last_row = let(i32(n) - 1)
            position = let(positions[2] - i32(n) + first_row)
            block = _Block(
                operator,
                tiling,
                {
                    "q": q,
                    "key": key,
                    "value": value,
                    "h": h,
                    "g": let(tirx.floordiv(h, heads // operator.kv_heads)),
                    "thread": thread,
                    "first_row": first_row,
                    "last_row": last_row,
                    "position": position,
                },
            )
            begin = let(operator.first_key(position))
            end = let(tirx.min(position + tiling.rows, positions[2]))
            block.start()
            with T.serial(0, tirx.floordiv(end - begin + (KEYS - 1), i32(KEYS))) as step:
                base = let(begin + step * KEYS)
                block.score(base, end)
                block.weigh()
                block.accumulate(base, end)
            block.finish(out)
    return build.result
