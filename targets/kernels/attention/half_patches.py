"""Attention of a picture's patches in float16, where threads exchange values in subgroups.

Definition: `PatchAttention` in operators/vision_attention.py. A block has 64 queries, and takes 64
keys a step; a thread has 8 queries, and of these the scores of 8 keys and then an eighth of the
result's channels. Products are summed in float16 over 16 channels or keys, and then in float32.

A sum of 16 products of q / 16 with k is at most a sixteenth of the two norms' product: for heads
of 72 channels, whose norms are at most sqrt(72) times the largest weight of a norm, it overflows
only if these weights' product is above 14,000. Weights of the softmax are at most 1, and values
have a norm of sqrt(72).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.bounded_linear import LARGEST_F16
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.operators.vision_attention import PatchAttention
from gemma4_compile.targets.kernels.common.blocks import (
    add,
    barrier,
    launch,
    local,
    max_over_neighbours,
    shared,
    tree,
)
from gemma4_compile.targets.kernels.common.builtins import from_neighbour
from gemma4_compile.targets.kernels.common.tile_loaders import (
    VECTOR,
    joined,
    lane_of,
    put,
    splat,
    transposed,
    vector,
)
from gemma4_compile.targets.spec import TargetSpec

HALF = "float16"
ROWS = KEYS = THREADS = 64
LANES = 8  # threads that share 8 queries
OWN = 8  # queries of a thread: two vectors
PARTS = OWN // VECTOR
ROW_VECTORS = ROWS // VECTOR
RUN = 16  # products that are summed in float16
SHARE = 16  # q is held as q / 16
ITEM_BYTES = 2
PREFETCH = False
UNROLL = 1  # items of a vector that are in the kernel's text


@dataclass(frozen=True)
class HeadShape:
    """Division of a head's channels over 8 threads: vectors each, and what is left over singly."""

    dim: int

    @property
    def vec4s(self) -> int:
        """Vectors of a head."""
        return self.dim // VECTOR

    @property
    def vectors(self) -> int:
        """Vectors of a thread."""
        return self.vec4s // LANES

    @property
    def singles(self) -> int:
        """Single channels of a thread, after all vectors."""
        return self.dim // LANES - self.vectors * VECTOR

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        items = ROWS * self.dim + max(self.dim, KEYS) * ROWS + KEYS * self.dim
        return items * ITEM_BYTES + KEYS * 4


def fits_subgroups(operator: PatchAttention, spec: TargetSpec) -> bool:
    """Return whether threads can exchange values, and shared memory holds the tiles as halves."""
    shape = HeadShape(operator.head_dim)
    exchange = "subgroups" in spec.features and spec.simd_width >= LANES
    fits = shape.shared_bytes <= spec.max_shared_memory_bytes
    return exchange and operator.cache_dtype == HALF and shape.dim % LANES == 0 and fits


class _Block:
    """One block's registers and shared memory."""

    def __init__(self, shape: HeadShape, thread: Expr, head: Expr, end: Expr) -> None:
        self.shape, self.thread, self.head, self.end = shape, thread, head, end
        self.group, self.lane = bind(thread // LANES), bind(thread % LANES)
        self.q = shared((shape.dim * ROWS,), HALF)  # by channel
        self.k = shared((max(shape.dim, KEYS) * ROWS,), HALF)  # by channel, then weights by key
        self.v = shared((max(1, shape.vectors) * LANES * VECTOR * KEYS,), HALF)  # by key
        self.singles = shared((max(1, shape.singles) * LANES * KEYS,), HALF)
        self.hidden = shared((KEYS,))
        self.blocks = blocks = ROW_VECTORS * shape.vec4s  # of 4 rows by 4 channels
        self.iterations = -(-blocks // THREADS)
        self.items = [bind(thread + index * THREADS) for index in range(self.iterations)]
        self.inside = [
            None if (index + 1) * THREADS <= blocks else self.items[index] < blocks
            for index in range(self.iterations)
        ]
        size = self.iterations * VECTOR * VECTOR
        self.next_k, self.next_v = local((size,), HALF), local((size,), HALF)
        self.scores = local((OWN * PARTS * VECTOR,))
        results = OWN * shape.vectors + PARTS * shape.singles
        self.runs = local((max(OWN * PARTS, results) * VECTOR,), HALF)
        self.totals = local((results * VECTOR,))
        for index in range(results):
            put(self.totals, index, splat(f32(0.0)))
        self.highest = [LocalVar("float32", f32(LOWEST)) for _ in range(OWN)]
        self.weight_sums = [LocalVar("float32", f32(0.0)) for _ in range(OWN)]

    def _place(self, index: int) -> tuple[Expr, Expr]:
        """Vector of rows and of channels of a block of 4 by 4 that this thread moves."""
        item, vec4s = self.items[index], self.shape.vec4s
        row = tirx.min(item // vec4s, ROW_VECTORS - 1)
        return bind(row), bind(item % vec4s)

    def _source(self, first: Expr, row: Expr, i: int) -> Expr:
        return bind(tirx.min(first + row * VECTOR + i, self.end - 1))

    # --- From global memory ---

    def load_queries(self, q: Buffer, first: Expr) -> None:
        """Write the queries to shared memory, rounded, by channel."""
        with T.serial(0, self.iterations) as index:
            item = bind(self.thread + index * THREADS)
            with when(item < self.blocks):
                row, vec4 = bind(item // self.shape.vec4s), bind(item % self.shape.vec4s)
                at = T.ramp((self.head * self.shape.vec4s + vec4) * VECTOR, 1, VECTOR)
                values = [q[self._source(first, row, i), at] for i in range(VECTOR)]
                self._put_by_channel(self.q, row, vec4, [_rounded(value) for value in values])

    def _put_by_channel(self, tile: Buffer, row: Expr, vec4: Expr, values: Sequence[Expr]) -> None:
        for j, value in enumerate(transposed(values)):
            put(tile, _twisted(vec4 * VECTOR + j, row, vec4), value)

    def read(self, key: Buffer, value: Buffer, first: Expr) -> None:
        """Read the blocks of a tile of keys and values."""
        for index in range(self.iterations):
            row, vec4 = self._place(index)
            for i in range(VECTOR):
                at = self._source(first, row, i), self.head, T.ramp(vec4 * VECTOR, 1, VECTOR)
                put(self.next_k, index * VECTOR + i, key[at])
                put(self.next_v, index * VECTOR + i, value[at])

    def write(self, positions: Buffer, first: Expr, patches: int) -> None:
        """Write the tile that was read, and which of its keys are hidden."""
        shape = self.shape
        barrier()  # the tile before may still be being read
        for index in range(self.iterations):
            row, vec4 = self._place(index)
            keys, values = (
                [vector(raw, index * VECTOR + i) for i in range(VECTOR)]
                for raw in (self.next_k, self.next_v)
            )
            with _guard(self.inside[index]):
                self._put_by_channel(self.k, row, vec4, keys)
                across = shape.vectors * LANES
                if shape.singles:
                    with when(vec4 >= across):
                        self._put_singles(row, vec4 - across, values)
                with _guard(vec4 < across if shape.singles else None):
                    for i, item in enumerate(values if across else ()):
                        put(self.v, (row * VECTOR + i) * across + vec4, item)
        key = bind(first + self.thread)
        block = bind(tirx.truncdiv(tirx.min(key, self.end - 1), patches))
        seen = (key < self.end) & (positions[block, 0] >= 0)
        store(self.hidden, tirx.Select(seen, f32(0.0), f32(LOWEST)), self.thread)
        barrier()

    def _put_singles(self, row: Expr, vec4: Expr, values: Sequence[Expr]) -> None:
        width = self.shape.singles * LANES
        for i, value in enumerate(values):
            named = bind(value)
            for j in range(VECTOR):
                place = (row * VECTOR + i) * width + vec4 * VECTOR + j
                store(self.singles, lane_of(named, j), place)

    # --- Steps of a tile ---

    def score(self) -> None:
        """Step 1: q.k."""
        for j in range(PARTS):
            hidden = bind(vector(self.hidden, self.lane + j * LANES))
            for i in range(OWN):
                put(self.scores, i * PARTS + j, hidden)
        sums = [(i * PARTS + j) for i in range(OWN) for j in range(PARTS)]
        vec4s = self.shape.vec4s
        at_once = next(count for count in range(RUN // VECTOR, 0, -1) if vec4s % count == 0)
        with T.serial(0, vec4s // at_once) as run:
            self._clear(sums)
            with T.serial(0, at_once) as part:
                vec4 = bind(run * at_once + part)
                _each_of_four(partial(self._add_channel, vec4))
            for index in sums:
                run_sum = vector(self.runs, index).astype(f"float32x{VECTOR}")
                put(self.scores, index, vector(self.scores, index) + run_sum * splat(f32(SHARE)))

    def _add_channel(self, vec4: Expr, c: Index) -> None:
        a, b = (
            [
                bind(vector(tile, _twisted(vec4 * VECTOR + c, mine + part * LANES, vec4)))
                for part in range(PARTS)
            ]
            for tile, mine in ((self.q, self.group), (self.k, self.lane))
        )
        for i in range(OWN):
            query = splat(lane_of(a[i // VECTOR], i % VECTOR))
            for j in range(PARTS):
                self._add(i * PARTS + j, query * b[j])

    def _clear(self, sums: Sequence[int]) -> None:
        for index in sums:
            put(self.runs, index, splat(tirx.const(0.0, HALF)))

    def _add(self, index: int, product: Expr) -> None:
        put(self.runs, index, vector(self.runs, index) + product)

    def weigh(self) -> None:
        """Step 2: turn the scores into weights, and rescale what was summed before."""
        for i, (highest, total) in enumerate(zip(self.highest, self.weight_sums, strict=True)):
            own = [bind(vector(self.scores, i * PARTS + j)) for j in range(PARTS)]
            top = tree([lane_of(part, c) for part in own for c in range(VECTOR)], tirx.max)
            higher = LocalVar("float32", tirx.max(max_over_neighbours(top, LANES), highest.value))
            keep = LocalVar("float32", tirx.exp(highest.value - higher.value))
            highest.set(higher.value)
            total.set(total.value * keep.value)
            for j, part in enumerate(own):
                weights = [tirx.exp(lane_of(part, c) - highest.value) for c in range(VECTOR)]
                put(self.scores, i * PARTS + j, joined(weights))
                lanes = bind(vector(self.scores, i * PARTS + j))
                total.add(tree([lane_of(lanes, c) for c in range(VECTOR)], add))
            for index in range(self.shape.vectors):
                at = i * self.shape.vectors + index
                put(self.totals, at, vector(self.totals, at) * splat(keep.value))
            self._keep_singles(i, keep.value)
        barrier()  # keys have been read, and weights go there
        for j in range(PARTS):
            for side in range(PARTS):
                own = [
                    bind(vector(self.scores, (side * VECTOR + i) * PARTS + j))
                    for i in range(VECTOR)
                ]
                for c, value in enumerate(transposed(own)):
                    key = (self.lane + j * LANES) * VECTOR + c
                    place = _twisted(key, self.group + side * LANES, self.lane * 2)
                    put(self.k, place, value.astype(f"{HALF}x{VECTOR}"))
        barrier()

    def _keep_singles(self, i: int, keep: Expr) -> None:
        """Rescale the single channels of one query, which lie by vectors of queries."""
        one = f32(1.0)
        factors = joined([keep if lane == i % VECTOR else one for lane in range(VECTOR)])
        for single in range(self.shape.singles):
            at = self._single(single, i // VECTOR)
            put(self.totals, at, vector(self.totals, at) * factors)

    def _single(self, single: int, part: int) -> int:
        """The sums of a single channel for a vector of queries."""
        return OWN * self.shape.vectors + single * PARTS + part

    def accumulate(self) -> None:
        """Step 3: add the weighted values."""
        sums = range(OWN * self.shape.vectors + PARTS * self.shape.singles)
        with T.serial(0, KEYS // RUN) as run:
            self._clear(sums)
            with T.serial(0, RUN // VECTOR) as part:
                vec4 = bind(run * (RUN // VECTOR) + part)
                _each_of_four(partial(self._add_key, vec4))
            for index in sums:
                run_sum = vector(self.runs, index).astype(f"float32x{VECTOR}")
                put(self.totals, index, vector(self.totals, index) + run_sum)

    def _add_key(self, vec4: Expr, c: Index) -> None:
        shape, key = self.shape, vec4 * VECTOR + c
        weights = [
            bind(vector(self.k, _twisted(key, self.group + part * LANES, vec4 % LANES * 2)))
            for part in range(PARTS)
        ]
        for j in range(shape.vectors):
            across = shape.vectors * LANES
            value = bind(vector(self.v, key * across + self.lane + j * LANES))
            for i in range(OWN):
                weight = splat(lane_of(weights[i // VECTOR], i % VECTOR))
                self._add(i * shape.vectors + j, weight * value)
        for single in range(shape.singles):
            place = key * (shape.singles * LANES) + single * LANES + self.lane
            value = splat(bind(self.singles[place]))
            for part in range(PARTS):
                self._add(self._single(single, part), weights[part] * value)

    def finish(self, out: Buffer, first: Expr) -> None:
        """Divide and store."""
        shape, dtype = self.shape, str(out.dtype)
        for i, total in enumerate(self.weight_sums):
            for distance in (1, 2, 4):
                total.set(total.value + from_neighbour(total.value, distance))
            own = (self.group + i // VECTOR * LANES) * VECTOR + i % VECTOR
            row = bind(first + own)
            with when(row < self.end):
                for j in range(shape.vectors):
                    value = vector(self.totals, i * shape.vectors + j) / splat(total.value)
                    at = self.head * shape.dim + (self.lane + j * LANES) * VECTOR
                    store(out, value.astype(f"{dtype}x{VECTOR}"), row, T.ramp(at, 1, VECTOR))
                for single in range(shape.singles):
                    sums = bind(vector(self.totals, self._single(single, i // VECTOR)))
                    value = lane_of(sums, i % VECTOR) / total.value
                    column = (shape.vectors * VECTOR + single) * LANES + self.lane
                    store(out, value.astype(dtype), row, self.head * shape.dim + column)


def _each_of_four(body: Callable[[Index], None]) -> None:
    """Run ``body(c)`` for the items of a vector, `UNROLL` of them in the kernel's text."""
    if UNROLL == VECTOR:
        for c in range(VECTOR):
            body(c)
        return
    with T.serial(0, VECTOR // UNROLL) as part:
        for c in range(UNROLL):
            body(part * UNROLL + c)


def _rounded(query: Expr) -> Expr:
    """A vector of a query as float16, scaled and within its range."""
    low, high = splat(f32(-LARGEST_F16)), splat(f32(LARGEST_F16))
    value = tirx.max(tirx.min(query * splat(f32(1 / SHARE)), high), low)
    return value.astype(f"{HALF}x{VECTOR}")


def _twisted(line: Expr, row_vector: Expr, twist: Expr) -> Expr:
    """The vector of a line of 64 rows; neighbouring threads hit different banks."""
    mixed = tirx.bitwise_xor(row_vector, tirx.floormod(twist, ROW_VECTORS))
    return line * ROW_VECTORS + mixed


@contextmanager
def _guard(condition: Expr | None) -> Iterator[None]:
    """Run the body if `condition` holds; None stands for always."""
    if condition is None:
        yield
    else:
        with when(condition):
            yield


def make_subgroup_attention(operator: PatchAttention, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: heads x patches / 64. Shared: queries, keys and values as float16.

    Reference: `PatchAttention.definition`.
    """
    n, dim, heads = symbolic_rows(None), operator.head_dim, operator.heads
    patches = operator.pooling**2
    rows = n * patches
    with function(scheduled=True) as build:
        positions = build.arg("positions", (n, 2), "int32")
        q = build.arg("q", (rows, heads * dim), "float32")
        key = build.arg("key", (rows, heads, dim), operator.cache_dtype)
        value = build.arg("value", (rows, heads, dim), operator.cache_dtype)
        out = build.arg("out", (rows, heads * dim), operator.out_dtype)
        with launch(THREADS, heads, tirx.floordiv(rows + (ROWS - 1), ROWS)) as (head, tile, thread):
            end, first = bind(i32(rows)), bind(i32(tile) * ROWS)
            block = _Block(HeadShape(dim), thread, head, end)
            if PREFETCH:
                block.read(key, value, i32(0))
            block.load_queries(q, first)
            with T.serial(0, tirx.floordiv(end + (KEYS - 1), KEYS)) as step:
                base = bind(step * KEYS)
                if not PREFETCH:
                    block.read(key, value, base)
                block.write(positions, base, patches)
                if PREFETCH:
                    block.read(key, value, base + KEYS)
                block.score()
                block.weigh()
                block.accumulate()
            block.finish(out, first)
    return build.result
