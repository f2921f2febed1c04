"""Attention of a picture's patches in subgroup matrices: float16 operands, float32 sums.

Definition: `PatchAttention` in operators/vision_attention.py. A block has 64 queries, and takes 32
keys a step. Matrices have no rows that a thread could see, so scores go through shared memory to
the threads that share a query, which write the softmax's weights back as halves.

Sums of results stay in matrices, which cannot be scaled by row. So a query's weights are relative
to a reference, `HEADROOM` above the highest score of some earlier step, as long as no later score
is above it by `SLACK`: weights of up to e^10 fit into float16, and those of e^-4 and less, whose
bits it loses, are small next to the largest. Where one is, all sums go through shared memory to be
rescaled.

A step: products of the step before and scores of this one; a barrier; weights, and the tiles that
were read meanwhile; a barrier.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.bounded_linear import LARGEST_F16
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr, Operation
from gemma4_compile.operators.vision_attention import PatchAttention
from gemma4_compile.targets.kernels.attention.patch_operands import patch_operands
from gemma4_compile.targets.kernels.attention.visible_keys import WORD_DTYPE, WORD_KEYS, VisibleKeys
from gemma4_compile.targets.kernels.common.blocks import add, barrier, launch, local, shared, tree
from gemma4_compile.targets.kernels.common.builtins import from_neighbour
from gemma4_compile.targets.kernels.tiles.loaders import (
    VECTOR,
    joined,
    lane_of,
    put,
    splat,
    vector,
)
from gemma4_compile.targets.kernels.tiles.subgroup_matrices import (
    PIECE_BYTES,
    SIDE,
    SIDE_PIECES,
    SIDE_SUM_PIECES,
    SUBGROUP,
    SUM_PIECE,
    after_barrier,
    clear,
    has_subgroup_matrices,
    load_left,
    load_right,
    load_right_transposed,
    load_sums,
    multiply_add,
    piece_of,
    read_piece,
    store_sums,
)
from gemma4_compile.targets.kernels.tiles.tensor_cores import PIECE, shared_pieces
from gemma4_compile.targets.spec import TargetSpec

HALF, FLOAT, FLOATS = "float16", "float32", f"float32x{VECTOR}"
ROWS = 64  # queries of a block
KEYS = WORD_KEYS  # of a step
SLACK = 10.0  # a score may be above its query's reference by this, before sums are rescaled
HEADROOM = 4.0  # of a new reference above the highest score
AT_ONCE = KEYS // SIDE  # matrices of sums in a row of the memory of scores
SCORE_PITCH = KEYS // SUM_PIECE + 2  # pieces: rows begin in different banks
WEIGHT_PITCH = KEYS // PIECE + 1


class _Shape:
    """Division of a block's work.

    Attributes
    ----------
    subgroup_rows : queries of a subgroup
    threads : of the block
    sharing : neighbouring threads that share a query
    parts : matrices of a head's channels; those beyond the head are 0
    pitch : pieces from a row of a tile to the next
    """

    def __init__(self, operator: PatchAttention, spec: TargetSpec) -> None:
        self.dim = operator.head_dim
        self.subgroup_rows = spec.tuning.patch_attention.subgroup_rows
        self.threads = ROWS // self.subgroup_rows * SUBGROUP
        self.sharing = self.threads // ROWS
        self.parts = -(-self.dim // SIDE)
        self.pitch = self.parts * SIDE_PIECES + 1  # no two of 8 neighbouring rows share banks
        self.row_pieces = self.dim // PIECE

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        operands = 2 * KEYS * self.pitch + ROWS * WEIGHT_PITCH
        return PIECE_BYTES * (operands + ROWS * SCORE_PITCH) + VisibleKeys.nbytes() + 4

    def score_row(self, key: Expr) -> Expr:
        """Row of the tile of keys, and so column of the scores, that has a key of a step.

        The threads that share a query read neighbouring pieces of its scores, which lie in
        different banks, and write neighbouring pieces of its weights, which are twice as many.
        """
        sharing, pair = self.sharing, tirx.floordiv(key, PIECE)
        half = tirx.floormod(tirx.floordiv(key, SUM_PIECE), 2)
        share, piece = tirx.floormod(pair, sharing), tirx.floordiv(pair, sharing)
        place = share + (piece * 2 + half) * sharing
        return place * SUM_PIECE + tirx.floormod(key, SUM_PIECE)


def fits_subgroup_matrices(operator: PatchAttention, spec: TargetSpec) -> bool:
    """Return whether the target has them, and keys and values are halves that move in pieces."""
    if not has_subgroup_matrices(spec) or operator.cache_dtype != HALF or operator.head_dim % PIECE:
        return False
    return _Shape(operator, spec).shared_bytes <= spec.max_shared_memory_bytes


class _Block:
    """Registers and shared memory of 64 queries of a head."""

    def __init__(self, shape: _Shape, thread: Expr, head: Expr, end: Expr) -> None:
        self.shape, self.thread, self.head, self.end = shape, thread, head, end
        self.subgroup = bind(tirx.floordiv(thread, SUBGROUP))
        self.row = bind(tirx.floordiv(thread, shape.sharing))  # the thread's query
        self.share = bind(tirx.floormod(thread, shape.sharing))
        # Keys, values, and weights; at first the queries, until they are in matrices.
        self.values_at = KEYS * shape.pitch
        self.weights_at = 2 * KEYS * shape.pitch
        self.tiles = shared_pieces(self.weights_at + ROWS * WEIGHT_PITCH)
        self.scores = shared_pieces(ROWS * SCORE_PITCH, FLOAT)
        self.visible = VisibleKeys(thread, end)
        self.rescaled_in = shared((1,), "int32")
        self.tall = shape.subgroup_rows // SIDE
        self.score_sums = self.tall * shape.parts  # the first matrix after those of results
        self.weight_left = self.tall * shape.parts  # the first after the queries
        self.reference = LocalVar(FLOAT, f32(LOWEST))
        self.weight_sum = LocalVar(FLOAT, f32(0.0))
        self.keep = LocalVar(FLOAT, f32(1.0))
        self.items = KEYS * shape.row_pieces
        self.iterations = -(-self.items // shape.threads)
        self.next_keys, self.next_values = (
            local((self.iterations * VECTOR,), WORD_DTYPE) for _ in range(2)
        )
        for total in range(self.tall * shape.parts):
            clear(total)

    # --- From global memory ---

    def load_queries(self, q: Buffer, first: Expr) -> None:
        """Round the queries and load them into matrices; all threads have arrived afterwards."""
        shape, limit = self.shape, splat(f32(LARGEST_F16))
        row_pieces, items = shape.row_pieces, ROWS * shape.row_pieces
        registers = local((PIECE,), HALF)
        with T.serial(0, -(-items // shape.threads)) as iteration:
            item = bind(self.thread + iteration * shape.threads)
            with when(item < items):
                row, piece = bind(item // row_pieces), bind(item % row_pieces)
                source = bind(tirx.min(first + row, self.end - 1))
                for half in range(2):
                    at = (self.head * row_pieces + piece) * PIECE + half * VECTOR
                    four = q[source, T.ramp(at, 1, VECTOR)]
                    four = tirx.max(tirx.min(four, limit), splat(f32(-LARGEST_F16)))
                    put(registers, half, four.astype(f"{HALF}x{VECTOR}"))
                halves = [vector(registers, half) for half in range(2)]
                store(self.tiles, piece_of(halves), row * shape.pitch + piece)
        barrier()
        own = self._own_rows(shape.pitch)
        for i in range(self.tall):
            for part in range(shape.parts):
                at = own + (i * SIDE * shape.pitch + part * SIDE_PIECES)
                load_left(i * shape.parts + part, self.tiles, at, shape.pitch)
        barrier()

    def _own_rows(self, pitch: int) -> Expr:
        """The subgroup's first query in memory whose rows are `pitch` apart."""
        return bind(self.subgroup * (self.shape.subgroup_rows * pitch))

    def _item(self, iteration: int) -> tuple[Expr, Expr, Expr | None]:
        """Row and piece of a tile that this thread moves, and whether it is there."""
        shape = self.shape
        item = bind(self.thread + iteration * shape.threads)
        row, piece = tirx.floordiv(item, shape.row_pieces), tirx.floormod(item, shape.row_pieces)
        if (iteration + 1) * shape.threads <= self.items:
            return bind(row), bind(piece), None
        return bind(tirx.min(row, KEYS - 1)), bind(piece), item < self.items

    def read(self, to: Buffer, source: Buffer, first: Expr) -> None:
        """Read the thread's pieces of a tile of keys or values."""
        for iteration in range(self.iterations):
            row, piece, _ = self._item(iteration)
            at = bind(tirx.min(first + row, self.end - 1))
            put(to, iteration, read_piece(source, at, self.head, piece * PIECE))

    def write_keys(self) -> None:
        """Write the tile of keys that was read."""
        self._write(self.next_keys, 0, self.shape.score_row)

    def write_values(self) -> None:
        """Write the tile of values that was read."""
        self._write(self.next_values, self.values_at, lambda row: row)

    def _write(self, registers: Buffer, first: int, tile_row: Callable[[Expr], Expr]) -> None:
        for iteration in range(self.iterations):
            row, piece, inside = self._item(iteration)
            value = vector(registers, iteration)
            place = tile_row(row) * self.shape.pitch + piece + first
            if inside is None:
                store(self.tiles, value, place)
            else:
                with when(inside):
                    store(self.tiles, value, place)

    # --- Parts of a step ---

    def accumulate(self) -> None:
        """Add the weighted values of the step before."""
        shape = self.shape
        own = bind(self._own_rows(WEIGHT_PITCH) + self.weights_at)
        for k in range(AT_ONCE):
            for i in range(self.tall):
                at = own + (i * SIDE * WEIGHT_PITCH + k * SIDE_PIECES)
                load_left(self.weight_left + i, self.tiles, at, WEIGHT_PITCH)
            for part in range(shape.parts):
                at = i32(self.values_at + k * SIDE * shape.pitch + part * SIDE_PIECES)
                load_right_transposed(0, self.tiles, at, shape.pitch)
                for i in range(self.tall):
                    multiply_add(i * shape.parts + part, self.weight_left + i, 0)

    def score(self) -> None:
        """Score the tile's keys."""
        shape = self.shape
        for total in range(self.tall * AT_ONCE):
            clear(self.score_sums + total)
        for part in range(shape.parts):
            for j in range(AT_ONCE):
                at = i32(j * SIDE * shape.pitch + part * SIDE_PIECES)
                load_right(0, self.tiles, at, shape.pitch)
                for i in range(self.tall):
                    multiply_add(self.score_sums + i * AT_ONCE + j, i * shape.parts + part, 0)
        own = self._own_rows(SCORE_PITCH)
        for i in range(self.tall):
            for j in range(AT_ONCE):
                at = own + (i * SIDE * SCORE_PITCH + j * SIDE_SUM_PIECES)
                store_sums(self.score_sums + i * AT_ONCE + j, self.scores, at, SCORE_PITCH)

    def weigh(self, step: Expr) -> None:
        """Turn scores into weights, relative to a score that no other exceeds by `SLACK`."""
        shape = self.shape
        count = KEYS // PIECE // shape.sharing  # pieces of weights of this thread
        first = bind(self.row * SCORE_PITCH)
        own = local((count * PIECE,))
        at = [bind(self.share + piece * shape.sharing) for piece in range(count)]
        for piece in range(count):
            for half in range(2):
                at_score = first + self.share + (piece * 2 + half) * shape.sharing
                put(own, piece * 2 + half, self.scores[at_score])
        self.visible.hide(own, at, step)
        highest = LocalVar(FLOAT, tree([own[i] for i in range(count * PIECE)], tirx.max))
        self._over_row(highest, tirx.max)
        self.keep.set(f32(1.0))
        with when((step == 0) | (highest.value > self.reference.value + f32(SLACK))):
            raised = LocalVar(FLOAT, highest.value + f32(HEADROOM))
            self.keep.set(tirx.exp(self.reference.value - raised.value))
            self.reference.set(raised.value)
            self.weight_sum.set(self.weight_sum.value * self.keep.value)
            with when(step > 0):
                store(self.rescaled_in, step, 0)  # whoever stores, stores the same
        weights = local((PIECE,), HALF)
        for piece, place in enumerate(at):
            for half in range(2):
                index = piece * 2 + half
                put(own, index, tirx.exp(vector(own, index) - splat(self.reference.value)))
                put(weights, half, vector(own, index).astype(f"{HALF}x{VECTOR}"))
            to = self.row * WEIGHT_PITCH + place + self.weights_at
            store(self.tiles, piece_of([vector(weights, half) for half in range(2)]), to)
        self.weight_sum.add(tree([own[i] for i in range(count * PIECE)], add))

    def _over_row(self, value: LocalVar, combine: Operation) -> None:
        """Combine the values of the threads that share a query; each gets the result."""
        distance = 1
        while distance < self.shape.sharing:
            value.set(combine(value.value, from_neighbour(value.value, distance)))
            distance *= 2

    def rescale(self, step: Expr) -> None:
        """Scale the sums of rows whose reference was raised in this step; also a barrier."""
        rescaled_in = LocalVar("int32", after_barrier(self.rescaled_in))
        with when((rescaled_in.value == step) & (step > 0)):
            for strip in self._strips():
                self._store_strip(strip)
                barrier()
                places = self._own_pieces(strip)
                scaled = [
                    materialize(self.scores[place] * splat(self.keep.value), FLOATS)
                    for place, _ in places
                ]
                barrier()  # which TVM asks for
                for (place, _), four in zip(places, scaled, strict=True):
                    store(self.scores, four, place)
                barrier()
                for total, at in self._matrices(strip):
                    load_sums(total, self.scores, at, SCORE_PITCH)
                barrier()

    def finish(self, out: Buffer, first: Expr) -> None:
        """Divide and store."""
        shape, dtype = self.shape, str(out.dtype)
        self._over_row(self.weight_sum, add)
        row = bind(first + self.row)
        for strip in self._strips():
            barrier()  # the memory may still be being read
            self._store_strip(strip)
            barrier()

            for place, column in self._own_pieces(strip):
                with when((row < self.end) & (column < shape.dim)):
                    four = materialize(self.scores[place] / splat(self.weight_sum.value), FLOATS)
                    values = [lane_of(four, i).astype(dtype) for i in range(VECTOR)]
                    at = self.head * shape.dim + column
                    store(out, joined(values), row, T.ramp(at, 1, VECTOR))

    def _strips(self) -> list[range]:
        """Matrices of channels whose sums fit into the memory of scores together."""
        parts = self.shape.parts
        return [range(part, min(part + AT_ONCE, parts)) for part in range(0, parts, AT_ONCE)]

    def _matrices(self, strip: range) -> list[tuple[int, Expr]]:
        """The subgroup's sums of some channels, and their places in the memory of scores."""
        own = self._own_rows(SCORE_PITCH)
        return [
            (
                i * self.shape.parts + part,
                own + (i * SIDE * SCORE_PITCH + (part - strip[0]) * SIDE_SUM_PIECES),
            )
            for i in range(self.tall)
            for part in strip
        ]

    def _store_strip(self, strip: range) -> None:
        for total, at in self._matrices(strip):
            store_sums(total, self.scores, at, SCORE_PITCH)

    def _own_pieces(self, strip: range) -> list[tuple[Expr, Expr]]:
        """Places of the thread's pieces of its row, and their first channels."""
        found = []
        for index in range(len(strip) * SIDE_SUM_PIECES // self.shape.sharing):
            piece = bind(self.share + index * self.shape.sharing)
            place = bind(self.row * SCORE_PITCH + piece)
            found.append((place, bind(piece * SUM_PIECE + strip[0] * SIDE)))
        return found


def make_subgroup_matrix_attention(operator: PatchAttention, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: heads x patches / 64. Shared: a tile of keys, one of values, scores and weights.

    Reference: `PatchAttention.definition`.
    """
    shape, patches = _Shape(operator, spec), operator.pooling**2
    with function(scheduled=True) as build:
        args = patch_operands(build, operator)
        tiles = tirx.floordiv(args.rows + (ROWS - 1), ROWS)
        with launch(shape.threads, operator.heads, tiles) as (head, tile, thread):
            end, first = bind(i32(args.rows)), bind(i32(tile) * ROWS)
            block = _Block(shape, thread, head, end)
            block.read(block.next_keys, args.key, i32(0))
            block.load_queries(args.q, first)
            block.write_keys()
            block.read(block.next_values, args.value, i32(0))
            block.read(block.next_keys, args.key, i32(KEYS))
            barrier()
            with T.serial(0, tirx.floordiv(end + (KEYS - 1), KEYS)) as step:
                base = bind(step * KEYS)
                with when(step > 0):  # before, there are none
                    block.accumulate()
                block.score()
                block.visible.find(args.positions, step, patches)
                barrier()
                block.weigh(step)
                block.write_values()
                block.write_keys()
                block.read(block.next_values, args.value, base + KEYS)
                block.read(block.next_keys, args.key, base + 2 * KEYS)
                block.rescale(step)
            block.accumulate()
            block.finish(args.out, first)
    return build.result
