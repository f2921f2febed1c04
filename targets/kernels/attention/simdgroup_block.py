"""Attention in Metal's simdgroup matrices: one threadgroup's queries over tiles of keys.

Both products are of float32 (docs/adr/0038), so that results are those of the other kernels but for
the order of sums. A tile's scores are summed a step of channels at a time, of queries and keys that
lie row by row in threadgroup memory, and stored there; neighbouring threads make a row's weights of
them, in their place; a step of values at a time is multiplied by them. The sums of the result stay
in matrices, whose elements nobody may name: where a row's highest score has risen they are
multiplied by a diagonal matrix, and at the end they go out through memory, 8 rows at a time.
What a step needs is read while the step before it is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import LocalVar, bind, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr, Operation
from gemma4_compile.targets.kernels.attention.simdgroup_shape import (
    SimdgroupAttentionShape,
    pitch_of,
)
from gemma4_compile.targets.kernels.common.blocks import add, barrier, local, shared, tree
from gemma4_compile.targets.kernels.common.builtins import from_neighbour, smallest_of_subgroup
from gemma4_compile.targets.kernels.tiles.loaders import (
    QUAD,
    VECTOR,
    joined,
    lane_of,
    put,
    splat,
    vector,
)
from gemma4_compile.targets.kernels.tiles.simdgroup_matrices import (
    SIDE,
    SIDE_VECTORS,
    SIMDGROUP,
    clear,
    load,
    load_rows,
    matrices,
    multiply,
    save,
)

Item = tuple[Expr, Expr, Expr | None]  # row, vector; whether it is there, if in doubt
Place = tuple[Expr, Expr]


class Mask(Protocol):
    """Which keys a row does not see."""

    def prepare(self, base: Expr) -> None:
        """Called by all threads before a tile's weights are made, with a barrier after it."""

    def hide(self, base: Expr, numbers: Sequence[Expr], own: Buffer) -> None:
        """Lower those of the thread's scores whose keys its row does not see.

        Parameters
        ----------
        numbers : of the vectors of scores in `own` within the tile's
        """


@dataclass(frozen=True)
class AttentionOperands:
    """Where a threadgroup's queries, keys and values are.

    Attributes
    ----------
    q : (rows, channels of all heads) float32
    key, value : (rows, KV heads, channels)
    g : KV head
    slot : row of K and V of a key's number, which is within range
    place : row of q and the head's first channel of a row of the threadgroup, within range; of
        eight rows from a multiple of eight on, the heads follow each other where the shape is
        `direct`
    """

    q: Buffer
    key: Buffer
    value: Buffer
    g: Expr
    slot: Callable[[Expr], Expr]
    place: Callable[[Expr], Place]


class SimdgroupAttention:
    """Registers and threadgroup memory of one threadgroup's rows."""

    def __init__(
        self, shape: SimdgroupAttentionShape, args: AttentionOperands, thread: Expr
    ) -> None:
        self.shape, self.args, self.thread = shape, args, thread
        self.stage, self.scores, self.diagonal = (
            shared((vectors,), QUAD)
            for vectors in (shape.stage_vectors, shape.score_vectors, shape.diagonal_vectors)
        )
        self.factors = shared((shape.rows,))
        self.lane = bind(tirx.floormod(thread, SIMDGROUP))
        simdgroup = bind(tirx.floordiv(thread, SIMDGROUP))
        self.band = bind(tirx.floordiv(simdgroup, shape.parts) * shape.tall)  # in eights
        self.part = bind(tirx.floormod(simdgroup, shape.parts) * shape.wide)
        across = shape.simdgroups // shape.score_bands
        self.score_band = bind(tirx.floordiv(simdgroup, across) * shape.score_tall)
        self.score_part = bind(tirx.floormod(simdgroup, across) * shape.score_wide)
        self.totals = matrices(shape.tall * shape.wide)
        self.products = matrices(shape.score_tall * shape.score_wide)
        self.left = matrices(max(shape.tall, shape.score_tall))
        self.right = matrices(max(2, shape.score_wide))
        self.vec4s = shape.depth // VECTOR
        staged = self._iterations(shape.staged_rows, self.vec4s)
        self.q_next = local((staged * VECTOR,), "float32") if staged else None
        dtype = str(args.key.dtype)
        self.k_next = local((self._iterations(shape.keys, self.vec4s) * VECTOR,), dtype)
        across_values = shape.dim // VECTOR
        count = self._iterations(shape.keys_at_once, across_values)
        self.v_next = local((count * VECTOR,), dtype)
        # A row's weights are of neighbouring threads.
        self.own_row = bind(tirx.floordiv(thread, shape.lanes))
        self.own_lane = bind(tirx.floormod(thread, shape.lanes))
        self.own_vectors = shape.keys // VECTOR // shape.lanes
        self.own = local((self.own_vectors * VECTOR,))
        self.highest = LocalVar("float32", f32(LOWEST))
        self.weights = LocalVar("float32", f32(0.0))
        for total in range(shape.tall * shape.wide):
            clear(self.totals, total)
        with when(self.own_lane == 0):
            for half in range(SIDE_VECTORS):
                store(self.diagonal, splat(f32(0.0)), self.own_row * SIDE_VECTORS + half)
        self._find_queries()

    # --- From tensors to memory ---

    def _iterations(self, rows: int, vec4s: int) -> int:
        return -(-rows * vec4s // self.shape.threads)

    def _items(self, rows: int, vec4s: int) -> list[Item]:
        """The items that the thread moves of so many rows."""
        threads = self.shape.threads
        found: list[Item] = []
        for iteration in range(self._iterations(rows, vec4s)):
            item = self.thread + iteration * threads
            inside = None
            if (iteration + 1) * threads > rows * vec4s:
                inside = item < rows * vec4s
                item = tirx.min(item, rows * vec4s - 1)
            found.append(
                (bind(tirx.floordiv(item, vec4s)), bind(tirx.floormod(item, vec4s)), inside)
            )
        return found

    def _find_queries(self) -> None:
        self.queries: list[tuple[Item, Place]] = []
        for item in self._items(self.shape.staged_rows, self.vec4s):
            self.queries.append((item, self.args.place(item[0])))
        self.direct: list[Place] = []  # of the first rows of matrices
        for i in range(self.shape.score_tall if self.shape.direct else 0):
            self.direct.append(self.args.place(bind((self.score_band + i) * SIDE)))

    def read_scored(self, step: Expr, base: Expr, last: Expr) -> None:
        """Read the thread's share of a step of channels of queries and keys."""
        channel = bind(step * self.shape.depth)
        for index, ((_, vec4, _), (token, column)) in enumerate(self.queries):
            at = T.ramp(column + channel + vec4 * VECTOR, 1, VECTOR)
            assert self.q_next is not None, "queries are staged"
            put(self.q_next, index, self.args.q[token, at])
        for index, (row, vec4, _) in enumerate(self._items(self.shape.keys, self.vec4s)):
            slot = materialize(self.args.slot(tirx.min(base + row, last)))
            at = T.ramp(channel + vec4 * VECTOR, 1, VECTOR)
            put(self.k_next, index, self.args.key[slot, self.args.g, at])

    def _write_scored(self) -> None:
        pitch, rows = pitch_of(self.shape.depth), self.shape.staged_rows
        for index, ((row, vec4, inside), _) in enumerate(self.queries):
            assert self.q_next is not None, "queries are staged"
            self._write(self.q_next, index, row * pitch + vec4, inside)
        for index, (row, vec4, inside) in enumerate(self._items(self.shape.keys, self.vec4s)):
            self._write(self.k_next, index, (row + rows) * pitch + vec4, inside)

    def _write(self, source: Buffer, index: int, place: Expr, inside: Expr | None) -> None:
        value = vector(source, index).astype(QUAD)
        if inside is None:
            store(self.stage, value, place)
        else:
            with when(inside):
                store(self.stage, value, place)

    def _value_items(self) -> list[Item]:
        return self._items(self.shape.keys_at_once, self.shape.dim // VECTOR)

    def _read_values(self, first: Expr, last: Expr) -> None:
        """Read the thread's share of a step of values, from key `first` on."""
        for index, (row, vec4, _) in enumerate(self._value_items()):
            slot = materialize(self.args.slot(tirx.min(first + row, last)))
            at = T.ramp(vec4 * VECTOR, 1, VECTOR)
            put(self.v_next, index, self.args.value[slot, self.args.g, at])

    def _write_values(self) -> None:
        pitch = pitch_of(self.shape.dim)
        for index, (row, vec4, inside) in enumerate(self._value_items()):
            self._write(self.v_next, index, row * pitch + vec4, inside)

    # --- Steps of a tile ---

    def add_tile(self, base: Expr, last: Expr, mask: Mask) -> None:
        """Add a tile of keys, whose first step `read_scored` has read; it reads the next one's."""
        self._score(base, last)
        self._weigh(base, mask)
        self._accumulate(base, last)

    def _score(self, base: Expr, last: Expr) -> None:
        """Step 1: q.k, into memory."""
        shape = self.shape
        steps = shape.dim // shape.depth
        for product in range(shape.score_tall * shape.score_wide):
            clear(self.products, product)
        with T.serial(0, steps) as step:
            self._write_scored()
            barrier()
            with when(step + 1 < steps):
                self.read_scored(step + 1, base, last)
            with when(step + 1 == steps):
                self._read_values(base, last)
            self._multiply_scored(step)
            barrier()  # the step's queries and keys have been read
        pitch = pitch_of(shape.keys)
        for i in range(shape.score_tall):
            for j in range(shape.score_wide):
                row = (self.score_band + i) * SIDE
                place = row * pitch + (self.score_part + j) * SIDE_VECTORS
                save(self.products, i * shape.score_wide + j, self.scores, place, pitch)

    def _multiply_scored(self, step: Expr) -> None:
        shape, pitch = self.shape, pitch_of(self.shape.depth)
        first_q = bind(self.score_band * (SIDE * pitch))
        first_k = bind((self.score_part + shape.staged_rows // SIDE) * (SIDE * pitch))
        with T.serial(0, shape.depth // SIDE) as eight:
            for i in range(shape.score_tall):
                if shape.direct:
                    token, column = self.direct[i]
                    first = self.args.q[token, column + step * shape.depth + eight * SIDE]
                    load_rows(self.left, i, first, shape.dim)
                else:
                    place = first_q + i * SIDE * pitch + eight * SIDE_VECTORS
                    load(self.left, i, self.stage, place, pitch)
            for j in range(shape.score_wide):
                place = first_k + j * SIDE * pitch + eight * SIDE_VECTORS
                load(self.right, j, self.stage, place, pitch, transposed=True)
            for i in range(shape.score_tall):
                for j in range(shape.score_wide):
                    total = self.products, i * shape.score_wide + j
                    multiply(total, (self.left, i), (self.right, j))

    def _weigh(self, base: Expr, mask: Mask) -> None:
        """Step 2: turn the scores into weights, and note how to rescale."""
        shape, pitch = self.shape, pitch_of(self.shape.keys)
        mask.prepare(base)
        barrier()
        numbers = [self.own_lane + index * shape.lanes for index in range(self.own_vectors)]
        places = [bind(self.own_row * pitch + number) for number in numbers]
        for index, place in enumerate(places):
            put(self.own, index, self.scores[place])
        mask.hide(base, numbers, self.own)
        lanes = [lane_of(vector(self.own, i), c) for i in range(self.own_vectors) for c in range(4)]
        top = self._over_row(tree(lanes, tirx.max), tirx.max)
        higher = LocalVar("float32", tirx.max(self.highest.value, top))
        keep = LocalVar("float32", tirx.exp(self.highest.value - higher.value))
        self.highest.set(higher.value)
        for index, place in enumerate(places):
            four = vector(self.own, index)
            made = [_weight(lane_of(four, c), higher.value) for c in range(VECTOR)]
            put(self.own, index, joined(made))
            store(self.scores, vector(self.own, index), place)
        self.weights.set(self.weights.value * keep.value + tree(lanes, add))
        with when(self.own_lane == 0):
            store(self.factors, keep.value, self.own_row)
            column = bind(tirx.floormod(self.own_row, SIDE))
            ones = [
                tirx.Select(tirx.EQ(tirx.floormod(column, VECTOR), c), keep.value, f32(0.0))
                for c in range(VECTOR)
            ]
            place = self.own_row * SIDE_VECTORS + tirx.floordiv(column, VECTOR)
            store(self.diagonal, joined(ones), place)

    def _over_row(self, value: Expr, combine: Operation) -> Expr:
        """Combine a value of the threads that share a row; each gets the result."""
        combined, distance = LocalVar("float32", value), 1
        while distance < self.shape.lanes:
            combined.set(combine(combined.value, from_neighbour(combined.value, distance)))
            distance *= 2
        return combined.value

    def _accumulate(self, base: Expr, last: Expr) -> None:
        """Step 3: add the weighted values, a step of keys at a time."""
        shape = self.shape
        steps = shape.keys // shape.keys_at_once
        with T.serial(0, steps) as step:
            self._write_values()
            barrier()
            with when(step == 0):
                self._rescale()
            with when(step + 1 < steps):
                self._read_values(base + (step + 1) * shape.keys_at_once, last)
            with when(step + 1 == steps):
                self.read_scored(tirx.const(0, "int32"), base + shape.keys, last)
            self._multiply_values(step)
            barrier()  # the step's values have been read

    def _rescale(self) -> None:
        """Multiply what was summed before by what is kept of it, where any row is rescaled."""
        shape = self.shape
        rows = shape.tall * SIDE
        keep = self.factors[self.band * SIDE + tirx.floormod(self.lane, rows)]
        lowest = LocalVar("float32", smallest_of_subgroup(keep))
        with when(lowest.value < f32(1.0)):  # the highest scores are soon found
            clear(self.right, 0)
            for i in range(shape.tall):
                place = (self.band + i) * SIDE * SIDE_VECTORS
                load(self.left, i, self.diagonal, place, SIDE_VECTORS)
                for j in range(shape.wide):
                    total = self.totals, i * shape.wide + j
                    multiply(total, (self.left, i), total, (self.right, 0))

    def _multiply_values(self, step: Expr) -> None:
        shape, pitch, across = self.shape, pitch_of(self.shape.dim), pitch_of(self.shape.keys)
        first_w = bind(self.band * (SIDE * across) + step * (shape.keys_at_once // VECTOR))
        with T.serial(0, shape.keys_at_once // SIDE) as eight:
            for i in range(shape.tall):
                place = first_w + i * SIDE * across + eight * SIDE_VECTORS
                load(self.left, i, self.scores, place, across)
            for j in range(shape.wide):
                place = eight * (SIDE * pitch) + (self.part + j) * SIDE_VECTORS
                load(self.right, j % 2, self.stage, place, pitch)
                for i in range(shape.tall):
                    multiply((self.totals, i * shape.wide + j), (self.left, i), (self.right, j % 2))

    # --- The result ---

    def finish(self, out: Buffer, end: Expr) -> None:
        """Divide and store the rows before `end`; the tile's last barrier is behind."""
        shape, pitch = self.shape, pitch_of(self.shape.dim)
        total = self._over_row(self.weights.value, add)
        with when(self.own_lane == 0):
            store(self.factors, total, self.own_row)
        across, dtype = shape.dim // VECTOR, str(out.dtype)
        band = bind(tirx.floordiv(self.band, shape.tall) * (SIDE * pitch))
        for i in range(shape.tall):
            for j in range(shape.wide):
                place = band + (self.part + j) * SIDE_VECTORS
                save(self.totals, i * shape.wide + j, self.stage, place, pitch)
            barrier()
            for row, vec4, inside in self._items(shape.bands * SIDE, across):
                own = bind(
                    tirx.floordiv(row, SIDE) * (shape.tall * SIDE)
                    + (tirx.floormod(row, SIDE) + i * SIDE)
                )
                with when(own < end if inside is None else inside & (own < end)):
                    token, column = self.args.place(own)
                    value = self.stage[row * pitch + vec4] / splat(bind(self.factors[own]))
                    at = T.ramp(column + vec4 * VECTOR, 1, VECTOR)
                    store(out, value.astype(f"{dtype}x{VECTOR}"), token, at)
            if i + 1 < shape.tall:
                barrier()  # the memory has been read


def hide_unless(seen: Sequence[Expr], own: Buffer, index: int) -> None:
    """Lower those scores of a vector in `own` whose keys are not seen."""
    four = vector(own, index)
    kept = [tirx.Select(one, lane_of(four, c), f32(LOWEST)) for c, one in enumerate(seen)]
    put(own, index, joined(kept))


def _weight(score: Expr, highest: Expr) -> Expr:
    return tirx.Select(score > f32(LOWEST), tirx.exp(score - highest), f32(0.0))
