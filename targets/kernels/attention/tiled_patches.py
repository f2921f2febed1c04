"""Attention of a picture's patches with sums of tiles in registers, without tensor cores.

Definition: `PatchAttention` in operators/vision_attention.py. A block has 64 queries, and takes 32
or 64 keys a step. A thread has 8 queries: of these the scores of its keys, and then an eighth of
the result's channels. All sums are float32; queries, keys, values and the softmax's weights lie in
shared memory as float16, as in tensor_core_patches.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.bounded_linear import LARGEST_F16
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index, Operation
from gemma4_compile.operators.vision_attention import PatchAttention
from gemma4_compile.targets.kernels.attention.patch_operands import patch_operands
from gemma4_compile.targets.kernels.attention.patch_shape import (
    FLOAT,
    HALF,
    LANES,
    OWN,
    PARTS,
    ROW_VECTORS,
    ROWS,
    THREADS,
    HeadShape,
)
from gemma4_compile.targets.kernels.common.blocks import add, barrier, launch, local, shared, tree
from gemma4_compile.targets.kernels.common.builtins import from_neighbour
from gemma4_compile.targets.kernels.tiles.loaders import (
    VECTOR,
    Tile,
    below,
    joined,
    lane_of,
    put,
    splat,
    swizzle,
    transposed,
    vector,
)
from gemma4_compile.targets.kernels.tiles.products import LANES_M, LANES_N


class _Block:
    """One block's registers and shared memory."""

    def __init__(self, shape: HeadShape, thread: Expr, head: Expr, end: Expr) -> None:
        self.shape, self.thread, self.head, self.end = shape, thread, head, end
        row, lane = _lanes_of(thread)
        self.group = bind(tirx.floordiv(thread, LANES_M * LANES_N) * LANES_M + row)
        self.lane = bind(lane)
        self.q, self.q_tile = shared((shape.dim * ROWS,), HALF), Tile(0, ROWS, shape.dim)
        self.k, self.k_tile = (
            shared((shape.shared_keys,), HALF),
            Tile(0, shape.keys, shape.dim),
        )
        self.weights_tile = Tile(0, ROWS, shape.keys)  # where the keys were
        across = shape.vectors * LANES
        self.v = shared((across * VECTOR * shape.keys,), HALF) if across else None
        width = shape.singles * LANES
        self.singles = shared((width * shape.keys,), HALF) if width else None
        self.row_values = None if shape.exchanges else shared((ROWS * LANES,))
        self.blocks = shape.keys // VECTOR * shape.vec4s
        self.iterations = -(-self.blocks // THREADS)
        size = self.iterations * VECTOR * VECTOR
        self.next_k, self.next_v = (local((size,), HALF) for _ in range(2))
        self.scores = local((OWN * shape.key_parts * VECTOR,))
        results = OWN * shape.vectors + PARTS * shape.singles
        self.totals = local((results * VECTOR,))
        for index in range(results):
            put(self.totals, index, splat(f32(0.0)))
        self.highest = [LocalVar(FLOAT, f32(LOWEST)) for _ in range(OWN)]
        self.weight_sums = [LocalVar(FLOAT, f32(0.0)) for _ in range(OWN)]

    # --- From global memory ---

    def load_queries(self, q: Buffer, first: Expr) -> None:
        """Write the queries to shared memory, by channel."""
        shape, blocks = self.shape, ROW_VECTORS * self.shape.vec4s
        with T.serial(0, -(-blocks // THREADS)) as iteration:
            item = bind(self.thread + iteration * THREADS)
            with when(item < blocks):
                row, vec4 = bind(item // shape.vec4s), bind(item % shape.vec4s)
                at = T.ramp((self.head * shape.vec4s + vec4) * VECTOR, 1, VECTOR)
                values = [
                    self._within_range(q[self._source(first, row, i), at]) for i in range(VECTOR)
                ]
                self._put_by_channel(self.q, self.q_tile, row, vec4, values)

    def _put_by_channel(
        self, memory: Buffer, tile: Tile, row: Expr, vec4: Expr, values: Sequence[Expr]
    ) -> None:
        at = bind(tile.twisted(row, swizzle(vec4, tile.vec4s)))
        for j, value in enumerate(transposed(values)):
            put(
                memory,
                tile.place(vec4 * VECTOR + j, at),
                value.astype(f"{HALF}x{VECTOR}"),
            )

    def _within_range(self, value: Expr) -> Expr:
        """A vector of a query, within float16's range."""
        return tirx.max(tirx.min(value, splat(f32(LARGEST_F16))), splat(f32(-LARGEST_F16)))

    def _source(self, first: Expr, row: Expr, i: int) -> Expr:
        return bind(tirx.min(first + row * VECTOR + i, self.end - 1))

    def _place(self, iteration: int) -> tuple[Expr, Expr, Expr | None]:
        """Vectors of rows and of channels of a block of 4 by 4 of this thread, if it has one."""
        item, vec4s = bind(self.thread + iteration * THREADS), self.shape.vec4s
        if (iteration + 1) * THREADS <= self.blocks:
            return bind(item // vec4s), bind(item % vec4s), None
        row = tirx.min(item // vec4s, self.shape.keys // VECTOR - 1)
        return bind(row), bind(item % vec4s), item < self.blocks

    def read(self, key: Buffer, value: Buffer, first: Expr) -> None:
        """Read the thread's blocks of a tile of keys and values."""
        for iteration in range(self.iterations):
            row, vec4, _ = self._place(iteration)
            for i in range(VECTOR):
                at = self._source(first, row, i), self.head, T.ramp(vec4 * VECTOR, 1, VECTOR)
                put(self.next_k, iteration * VECTOR + i, key[at])
                put(self.next_v, iteration * VECTOR + i, value[at])

    def write(self) -> None:
        """Write the tile that was read."""
        shape, across = self.shape, self.shape.vectors * LANES
        barrier()  # the tile before may still be being read
        for iteration in range(self.iterations):
            row, vec4, inside = self._place(iteration)
            keys, values = (
                [bind(vector(raw, iteration * VECTOR + i)) for i in range(VECTOR)]
                for raw in (self.next_k, self.next_v)
            )
            with _guard(inside):
                self._put_by_channel(self.k, self.k_tile, row, vec4, keys)
                if self.singles is not None:
                    with _guard(vec4 >= across if across else None):
                        self._put_singles(self.singles, row, vec4 - across, values)
                if self.v is not None:
                    with _guard(vec4 < across if shape.singles else None):
                        for i, item in enumerate(values):
                            put(self.v, (row * VECTOR + i) * across + vec4, item)
        barrier()

    def _put_singles(self, memory: Buffer, row: Expr, vec4: Expr, values: Sequence[Expr]) -> None:
        width = self.shape.singles * LANES
        for i, value in enumerate(values):
            for j in range(VECTOR):
                store(memory, lane_of(value, j), (row * VECTOR + i) * width + vec4 * VECTOR + j)

    # --- Steps of a tile ---

    def score(self, positions: Buffer, first: Expr, patches: int) -> None:
        """Step 1: q.k; what hides a key of padding comes first."""
        shape, parts = self.shape, self.shape.key_parts
        for j in range(parts):
            hidden = bind(
                joined(
                    [
                        self._hidden(positions, bind(first + key), patches)
                        for key in self._own_keys(j)
                    ]
                )
            )
            for i in range(OWN):
                put(self.scores, i * parts + j, hidden)
        with T.serial(0, shape.vec4s) as vec4:
            twist = bind(swizzle(vec4, shape.vec4s))
            left = self._row_vectors(self.q_tile, twist)
            right = [bind(self.k_tile.twisted(self.lane + j * LANES, twist)) for j in range(parts)]
            self._each_item(vec4, partial(self._add_channel, left, right))

    def _own_keys(self, part: int) -> list[Expr]:
        return [(self.lane + part * LANES) * VECTOR + c for c in range(VECTOR)]

    def _hidden(self, positions: Buffer, key: Expr, patches: int) -> Expr:
        block = bind(tirx.truncdiv(tirx.min(key, self.end - 1), patches))
        seen = (key < self.end) & (positions[block, 0] >= 0)
        return tirx.Select(seen, f32(0.0), f32(LOWEST))

    def _row_vectors(self, tile: Tile, twist: Expr) -> list[Expr]:
        return [bind(tile.twisted(self.group + part * LANES, twist)) for part in range(PARTS)]

    def _each_item(self, vec4: Expr, body: Callable[[Expr], None]) -> None:
        """Run ``body(item)`` for the items of a vector, `unroll` of them in the text."""
        unroll = self.shape.unroll
        if unroll == VECTOR:
            for c in range(VECTOR):
                body(vec4 * VECTOR + c)
            return
        with T.serial(0, VECTOR // unroll) as part:
            for c in range(unroll):
                body(vec4 * VECTOR + part * unroll + c)

    def _add_channel(self, left: Sequence[Expr], right: Sequence[Expr], channel: Expr) -> None:
        parts = self.shape.key_parts
        a = [_float(self.q, self.q_tile.place(channel, at)) for at in left]
        b = [_float(self.k, self.k_tile.place(channel, at)) for at in right]
        for i in range(OWN):
            query = splat(lane_of(a[i // VECTOR], i % VECTOR))
            for j in range(parts):
                self._add(self.scores, i * parts + j, query * b[j])

    def _add(self, sums: Buffer, index: int, product: Expr) -> None:
        put(sums, index, vector(sums, index) + product)

    def weigh(self) -> None:
        """Step 2: turn the scores into weights, and rescale what was summed before."""
        parts = self.shape.key_parts
        own = [[bind(vector(self.scores, i * parts + j)) for j in range(parts)] for i in range(OWN)]
        tops = [tree([lane_of(v, c) for v in row for c in range(VECTOR)], tirx.max) for row in own]
        for i, top in enumerate(self._over_lanes(tops, tirx.max)):
            higher = LocalVar(FLOAT, tirx.max(top, self.highest[i].value))
            keep = LocalVar(FLOAT, tirx.exp(self.highest[i].value - higher.value))
            self.highest[i].set(higher.value)
            total = LocalVar(FLOAT, self.weight_sums[i].value * keep.value)
            for j in range(parts):
                weights = [tirx.exp(lane_of(own[i][j], c) - higher.value) for c in range(VECTOR)]
                put(self.scores, i * parts + j, joined(weights))
                lanes = bind(vector(self.scores, i * parts + j))
                total.add(tree([lane_of(lanes, c) for c in range(VECTOR)], add))
            self.weight_sums[i].set(total.value)
            self._keep(i, keep.value)
        if self.shape.exchanges:
            barrier()  # keys have been read, and weights go there
        self._put_weights()
        barrier()

    def _over_lanes(self, values: Sequence[Expr], combine: Operation) -> list[Expr]:
        """Combine a value of each own query over the threads that share the query.

        Where it goes through shared memory, all threads have arrived in between.
        """
        memory = self.row_values
        if memory is None:
            cells = [LocalVar(FLOAT, value) for value in values]
            for cell in cells:
                for bit in (2, 4, 8):  # see `_lanes_of`
                    cell.set(combine(cell.value, from_neighbour(cell.value, bit)))
            return [cell.value for cell in cells]
        places = [self.group + part * LANES for part in range(PARTS)]
        for part, place in enumerate(places):
            four = joined(values[part * VECTOR : (part + 1) * VECTOR])
            put(memory, self.lane * ROW_VECTORS + place, four)
        barrier()
        combined = [
            bind(tree([vector(memory, lane * ROW_VECTORS + at) for lane in range(LANES)], combine))
            for at in places
        ]
        return [lane_of(combined[i // VECTOR], i % VECTOR) for i in range(OWN)]

    def _keep(self, i: int, keep: Expr) -> None:
        """Rescale the sums of one query; single channels lie by vectors of queries."""
        for j in range(self.shape.vectors):
            at = i * self.shape.vectors + j
            put(self.totals, at, vector(self.totals, at) * splat(keep))
        factors = joined([keep if lane == i % VECTOR else f32(1.0) for lane in range(VECTOR)])
        for single in range(self.shape.singles):
            at = self._single(single, i // VECTOR)
            put(self.totals, at, vector(self.totals, at) * factors)

    def _single(self, single: int, part: int) -> int:
        """The sums of a single channel for a vector of queries."""
        return OWN * self.shape.vectors + single * PARTS + part

    def _put_weights(self) -> None:
        parts, tile = self.shape.key_parts, self.weights_tile
        for j in range(parts):
            twist = bind(swizzle(self.lane + j * LANES, tile.vec4s))
            for side, at in enumerate(self._row_vectors(tile, twist)):
                rows = range(side * VECTOR, (side + 1) * VECTOR)
                own = [bind(vector(self.scores, i * parts + j)) for i in rows]
                for key, value in zip(self._own_keys(j), transposed(own), strict=True):
                    put(self.k, tile.place(key, at), value.astype(f"{HALF}x{VECTOR}"))

    def accumulate(self) -> None:
        """Step 3: add the weighted values."""
        tile = self.weights_tile
        with T.serial(0, self.shape.keys // VECTOR) as vec4:
            left = self._row_vectors(tile, bind(swizzle(vec4, tile.vec4s)))
            self._each_item(vec4, partial(self._add_key, left))

    def _add_key(self, left: Sequence[Expr], key: Expr) -> None:
        shape = self.shape
        weights = [_float(self.k, self.weights_tile.place(key, at)) for at in left]
        for j in range(shape.vectors):
            assert self.v is not None, "where there are vectors"
            value = _float(self.v, key * (shape.vectors * LANES) + self.lane + j * LANES)
            for i in range(OWN):
                weight = splat(lane_of(weights[i // VECTOR], i % VECTOR))
                self._add(self.totals, i * shape.vectors + j, weight * value)
        for single in range(shape.singles):
            assert self.singles is not None, "where there are single channels"
            place = key * (shape.singles * LANES) + single * LANES + self.lane
            value = splat(bind(self.singles[place].astype(FLOAT)))
            for part in range(PARTS):
                self._add(self.totals, self._single(single, part), weights[part] * value)

    def finish(self, out: Buffer, first: Expr) -> None:
        """Divide and store."""
        shape, dtype = self.shape, str(out.dtype)
        sums = self._over_lanes([total.value for total in self.weight_sums], add)
        for i, total in enumerate(sums):
            own = (self.group + i // VECTOR * LANES) * VECTOR + i % VECTOR
            row = bind(first + own)
            with when(row < self.end):
                for j in range(shape.vectors):
                    value = vector(self.totals, i * shape.vectors + j) / splat(total)
                    at = self.head * shape.dim + (self.lane + j * LANES) * VECTOR
                    store(out, value.astype(f"{dtype}x{VECTOR}"), row, T.ramp(at, 1, VECTOR))
                for single in range(shape.singles):
                    sums_of = bind(vector(self.totals, self._single(single, i // VECTOR)))
                    value = lane_of(sums_of, i % VECTOR) / total
                    column = (shape.vectors * VECTOR + single) * LANES + self.lane
                    store(out, value.astype(dtype), row, self.head * shape.dim + column)


def _lanes_of(thread: Expr) -> tuple[Expr, Expr]:
    """Place of a thread among the 4 x 8 of its 32 neighbours.

    The threads 2 i and 2 i + 1 have the same column, and those whose numbers differ in 2 the same
    row: reads of 16 bytes that so many share can take half the time on NVIDIA's GPUs, which serve
    8 threads at a time otherwise.
    """
    low, high = below(thread, 2), below(tirx.floordiv(thread, 2 * LANES_N), 2)
    return low + high * 2, below(tirx.floordiv(thread, 2), LANES_N)


def _float(memory: Buffer, index: Index) -> Expr:
    """A vector of shared memory as float32."""
    return bind(vector(memory, index).astype(f"{FLOAT}x{VECTOR}"))


@contextmanager
def _guard(condition: Expr | None) -> Iterator[None]:
    """Run the body if `condition` holds; None stands for always."""
    if condition is None:
        yield
    else:
        with when(condition):
            yield


def make_tiled_attention(operator: PatchAttention, shape: HeadShape) -> tirx.PrimFunc:
    """Grid: heads x patches / 64. Shared: queries, a tile of keys or weights, one of values.

    Reference: `PatchAttention.definition`.
    """
    with function(scheduled=True) as build:
        args = patch_operands(build, operator)
        tiles = tirx.floordiv(args.rows + (ROWS - 1), ROWS)
        with launch(THREADS, operator.heads, tiles) as (head, tile, thread):
            end, first = bind(i32(args.rows)), bind(i32(tile) * ROWS)
            block = _Block(shape, thread, head, end)
            block.load_queries(args.q, first)
            block.read(args.key, args.value, i32(0))
            with T.serial(0, tirx.floordiv(end + (shape.keys - 1), shape.keys)) as step:
                base = bind(step * shape.keys)
                block.write()
                block.score(args.positions, base, operator.pooling**2)
                block.weigh()
                block.read(args.key, args.value, base + shape.keys)  # while these are summed
                block.accumulate()
            block.finish(args.out, first)
    return build.result
