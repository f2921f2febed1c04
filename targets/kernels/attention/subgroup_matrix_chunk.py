"""Attention of a prefill chunk in subgroup matrices: float16 operands, float32 sums.

Definition: `PrefillAttention` in operators/attention.py, of operators with `rounds_to_halves`. All
query heads of a KV head are rows, sixteen of which a group of subgroups has: in matrices each holds
queries, and sums of its own channels of the results. Scores go through shared memory to the threads
that share a row, which write the softmax's weights back as halves.

Sums stay in matrices, which cannot be scaled by row. So a row's weights are relative to the highest
score of some earlier tile, as long as no later score is above it by `SLACK`: they fit into float16
until then. Where one is, sums of the sixteen rows go through shared memory to be rescaled.

Shared memory holds one tile. While keys are scored the values are read, which take their place, and
while those are multiplied the next keys.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import LocalVar, bind, function, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr, Operation
from gemma4_compile.targets.kernels.attention.group_rows import GroupArguments, GroupRows
from gemma4_compile.targets.kernels.attention.subgroup_matrix_chunk_shape import (
    SubgroupChunkShape,
    subgroup_chunk_shape,
)
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
    SIDE,
    SIDE_PIECES,
    SIDE_SUM_PIECES,
    SUBGROUP,
    SUM_PIECE,
    after_barrier,
    clear,
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
SLACK = 11.0  # a score may be above its row's reference by this: e^11 is a float16
NONE_SEEN = -1.0e30  # reference of a row that has seen no key: the weight of a hidden one is 0
OWN_PIECES = SIDE * SIDE_SUM_PIECES // SUBGROUP  # of a matrix of sums in memory, a thread's


class _Block:
    """Registers and shared memory of a block's rows.

    Parameters
    ----------
    first_row : of the rows of the KV head, position by position and head by head
    """

    def __init__(
        self, rows: GroupRows, shape: SubgroupChunkShape, thread: Expr, first_row: Expr
    ) -> None:
        self.rows_of, self.args, self.shape = rows, rows.args, shape
        self.thread, self.first_row = thread, first_row
        self.lane = bind(tirx.floormod(thread, SUBGROUP))
        subgroup = bind(tirx.floordiv(thread, SUBGROUP))
        self.group = bind(tirx.floordiv(subgroup, shape.parts))
        self.part = bind(tirx.floormod(subgroup, shape.parts))
        self.score_part = bind(tirx.floormod(self.part, shape.score_parts))
        self.key_part = bind(tirx.floordiv(self.part, shape.score_parts))
        # The thread's row as it makes weights; threads beyond the last row make none.
        self.row = bind(tirx.min(tirx.floordiv(thread, shape.sharing), shape.rows - 1))
        self.share = bind(tirx.floormod(thread, shape.sharing))
        self.tile = shared_pieces(shape.keys * shape.pitch)
        self.scores = shared_pieces(shape.score_parts * shape.rows * shape.score_pitch, FLOAT)
        self.weights = shared_pieces(shape.rows * shape.weight_pitch)
        self.keeps = shared((shape.rows,))
        # The last step in which sums are rescaled: of a group's rows, and of any.
        self.group_rescaled = shared((shape.rows // SIDE,), "int32")
        self.rescaled = shared((1,), "int32")
        self.own_area = bind(
            (self.score_part * shape.rows + self.group * SIDE) * shape.score_pitch
            + self.key_part * (shape.score_keys // SUM_PIECE)
        )
        self.iterations = -(-shape.keys * shape.row_pieces // shape.threads)
        self.next = local((self.iterations * VECTOR,), "uint32")
        self.reference = LocalVar(FLOAT, f32(NONE_SEEN))
        self.weight_sum = LocalVar(FLOAT, f32(0.0))
        self.keep = LocalVar(FLOAT, f32(1.0))
        self.seen = rows.seen_by(rows.token(first_row + self.row))
        self.totals = shape.channels // SIDE  # matrices; those of scores follow
        self.queries = shape.score_channels // SIDE  # matrices; that of weights follows
        for total in range(self.totals):
            clear(total)

    def _makes_weights(self) -> AbstractContextManager[object]:
        """Only threads that have a row."""
        active = self.shape.rows * self.shape.sharing
        return nullcontext() if active == self.shape.threads else when(self.thread < active)

    # --- From global memory ---

    def load_queries(self) -> None:
        """Round the queries and load them into matrices; all threads have arrived afterwards."""
        shape = self.shape
        together = min(shape.rows, shape.keys)
        pieces = together * shape.row_pieces
        registers = local((PIECE,), HALF)
        for begin in range(0, shape.rows, together):
            with T.serial(0, -(-pieces // shape.threads)) as iteration:
                item = bind(self.thread + iteration * shape.threads)
                with when(item < pieces):
                    row, piece = bind(item // shape.row_pieces), bind(item % shape.row_pieces)
                    source = bind(self.first_row + begin + row)
                    token = self.rows_of.token(source)
                    column = bind(self.rows_of.head(source) * shape.dim + piece * PIECE)
                    for half in range(2):
                        four = self.args.q[token, T.ramp(column + half * VECTOR, 1, VECTOR)]
                        put(registers, half, four.astype(f"{HALF}x{VECTOR}"))
                    halves = [vector(registers, half) for half in range(2)]
                    store(self.tile, piece_of(halves), row * shape.pitch + piece)
            barrier()
            row = bind(self.group * SIDE - begin)
            with when((row >= 0) & (row < together)):
                for index in range(self.queries):
                    channel = self.score_part * shape.score_channels + index * SIDE
                    at = row * shape.pitch + tirx.floordiv(channel, PIECE)
                    load_left(index, self.tile, at, shape.pitch)
            barrier()

    def _item(self, iteration: int) -> tuple[Expr, Expr, Expr | None]:
        """Row and piece of a tile that this thread moves; whether it is there, if not all are."""
        shape = self.shape
        item, inside = bind(self.thread + iteration * shape.threads), None
        if (iteration + 1) * shape.threads > shape.keys * shape.row_pieces:
            inside = item < shape.keys * shape.row_pieces
        row, piece = tirx.floordiv(item, shape.row_pieces), tirx.floormod(item, shape.row_pieces)
        return bind(row), bind(piece), inside

    def read(self, source: Buffer, base: Expr, last: Expr) -> None:
        """Read the thread's pieces of the keys or values from `base` on."""
        for iteration in range(self.iterations):
            row, piece, _ = self._item(iteration)
            position = materialize(tirx.min(base + row, last))
            slot = materialize(self.rows_of.operator.cache.row(position))
            put(self.next, iteration, read_piece(source, slot, self.args.g, piece * PIECE))

    def write(self) -> None:
        """Write what was read last into the tile."""
        for iteration in range(self.iterations):
            row, piece, inside = self._item(iteration)
            with nullcontext() if inside is None else when(inside):
                store(self.tile, vector(self.next, iteration), row * self.shape.pitch + piece)

    # --- Parts of a step ---

    def score(self) -> None:
        """Score the subgroup's keys of the tile, in its channels."""
        shape = self.shape
        sixteens = range(shape.score_keys // SIDE)
        for j in sixteens:
            clear(self.totals + j)
        first = bind(
            self.key_part * (shape.score_keys * shape.pitch)
            + self.score_part * (shape.score_channels // PIECE)
        )
        for index in range(self.queries):
            for j in sixteens:
                at = first + (j * SIDE * shape.pitch + index * SIDE_PIECES)
                load_right(0, self.tile, at, shape.pitch)
                multiply_add(self.totals + j, index, 0)
        for j in sixteens:
            at = self.own_area + j * SIDE_SUM_PIECES
            store_sums(self.totals + j, self.scores, at, shape.score_pitch)

    def weigh(self, base: Expr, step: Expr, is_whole: Expr) -> None:
        """Turn scores into weights, relative to a score that no other exceeds by `SLACK`.

        Parameters
        ----------
        is_whole : every row sees all keys of the tile
        """
        shape = self.shape
        count = shape.keys // PIECE // shape.sharing  # pieces of weights of this thread
        own = local((count * PIECE,))
        places = [bind(self.share + index * shape.sharing) for index in range(count)]
        with self._makes_weights():
            for index, place in enumerate(places):
                for half in range(2):
                    at = bind(self.row * shape.score_pitch + place * 2 + half)
                    apart = shape.rows * shape.score_pitch
                    terms = [self.scores[at + c * apart] for c in range(shape.score_parts)]
                    put(own, index * 2 + half, tree(terms, add))
        with when(tirx.Not(is_whole)):
            first, end = self.seen
            for index, place in enumerate(places):
                for half in range(2):
                    key = bind(base + place * PIECE + half * VECTOR)
                    four = vector(own, index * 2 + half)
                    lanes = [
                        tirx.Select(
                            (key + i >= first) & (key + i < end), lane_of(four, i), f32(LOWEST)
                        )
                        for i in range(VECTOR)
                    ]
                    put(own, index * 2 + half, joined(lanes))
        highest = LocalVar(FLOAT, tree([own[i] for i in range(count * PIECE)], tirx.max))
        self._over_row(highest, tirx.max)
        self.keep.set(f32(1.0))
        with when(highest.value > self.reference.value + f32(SLACK)):
            self.keep.set(tirx.exp(self.reference.value - highest.value))
            with self._makes_weights(), when(self.reference.value > f32(NONE_SEEN)):
                store(self.rescaled, step, 0)  # whoever stores, stores the same
                store(self.group_rescaled, step, tirx.floordiv(self.row, SIDE))
            self.reference.set(highest.value)
            self.weight_sum.set(self.weight_sum.value * self.keep.value)
        weights = local((PIECE,), HALF)
        for index, place in enumerate(places):
            for half in range(2):
                own_at = index * 2 + half
                put(own, own_at, tirx.exp(vector(own, own_at) - splat(self.reference.value)))
                put(weights, half, vector(own, own_at).astype(f"{HALF}x{VECTOR}"))
            with self._makes_weights():
                halves = [vector(weights, half) for half in range(2)]
                store(self.weights, piece_of(halves), self.row * shape.weight_pitch + place)
        self.weight_sum.add(tree([own[i] for i in range(count * PIECE)], add))
        self._share_with_sums(self.keep.value)

    def _share_with_sums(self, factor: Expr) -> None:
        """Store a factor of the thread's row for those who have its sums."""
        with self._makes_weights(), when(self.share == 0):
            store(self.keeps, factor, self.row)

    def _over_row(self, value: LocalVar, combine: Operation) -> None:
        """Combine the values of the threads that share a row; each gets the result."""
        distance = 1
        while distance < self.shape.sharing:
            value.set(combine(value.value, from_neighbour(value.value, distance)))
            distance *= 2

    def rescale(self, step: Expr) -> None:
        """Scale the sums of groups of which a row's reference was raised; also a barrier."""
        shape = self.shape
        rescaled = LocalVar("int32", after_barrier(self.rescaled))
        with when((rescaled.value == step) & (step > 0)):
            own = materialize(self.group_rescaled[self.group]) == step
            keep = materialize(self.keeps[self.group * SIDE + self._sum_row()], FLOAT)
            for total in range(self.totals):
                with when(own):
                    store_sums(total, self.scores, self.own_area, shape.score_pitch)
                barrier()
                places = self._own_places()
                scaled = [materialize(self.scores[place] * splat(keep), FLOATS) for place in places]
                barrier()  # which TVM asks for
                for place, four in zip(places, scaled, strict=True):
                    store(self.scores, four, place)
                barrier()
                with when(own):
                    load_sums(total, self.scores, self.own_area, shape.score_pitch)
                barrier()

    def _sum_row(self) -> Expr:
        """The row of a matrix of sums that the thread has pieces of, in memory."""
        return tirx.floormod(self.lane, SIDE)

    def _own_pieces(self) -> list[Expr]:
        """The thread's pieces of the row."""
        first = tirx.floordiv(self.lane, SIDE) * OWN_PIECES
        return [bind(first + index) for index in range(OWN_PIECES)]

    def _own_places(self) -> list[Expr]:
        """The same pieces in the subgroup's part of the scores' memory."""
        first = bind(self.own_area + self._sum_row() * self.shape.score_pitch)
        return [bind(first + piece) for piece in self._own_pieces()]

    def accumulate(self) -> None:
        """Add the weighted values to the subgroup's channels."""
        shape = self.shape
        weights = bind(self.group * (SIDE * shape.weight_pitch))
        first = bind(self.part * (shape.channels // PIECE))
        for k in range(shape.keys // SIDE):
            at = weights + k * SIDE_PIECES
            load_left(self.queries, self.weights, at, shape.weight_pitch)
            for total in range(self.totals):
                at = first + (k * SIDE * shape.pitch + total * SIDE_PIECES)
                load_right_transposed(0, self.tile, at, shape.pitch)
                multiply_add(total, self.queries, 0)

    def finish(self, out: Buffer, end: Expr) -> None:
        """Divide and store the block's rows before `end`."""
        shape, dtype = self.shape, str(out.dtype)
        self._over_row(self.weight_sum, add)
        self._share_with_sums(self.weight_sum.value)
        in_block = bind(self.group * SIDE + self._sum_row())
        row = bind(self.first_row + in_block)
        token, head = self.rows_of.token(row), bind(self.rows_of.head(row))
        channel = bind(head * shape.dim + self.part * shape.channels)
        pieces, places = self._own_pieces(), self._own_places()
        for total in range(self.totals):
            barrier()  # the memory may still be being read
            store_sums(total, self.scores, self.own_area, shape.score_pitch)
            barrier()
            with when(row < end):
                weight_sum = splat(bind(self.keeps[in_block]))
                for piece, place in zip(pieces, places, strict=True):
                    four = materialize(self.scores[place] / weight_sum, FLOATS)
                    values = [lane_of(four, i).astype(dtype) for i in range(VECTOR)]
                    column = channel + piece * SUM_PIECE + total * SIDE
                    store(out, joined(values), token, T.ramp(column, 1, VECTOR))


def make_subgroup_matrix_chunk_attention(
    operator: PrefillAttention, spec: TargetSpec
) -> tirx.PrimFunc:
    """Causal (and sliding) attention of all positions of a chunk, and that of pictures.

    Grid: KV heads x rows of a KV head / rows of a block; those with the most keys begin first.
    Shared: a tile of keys or of values, parts of scores, weights. Reference:
    `PrefillAttention.definition`.
    """
    shape = subgroup_chunk_shape(operator.head_dim, operator.heads, spec)
    assert shape is not None, "`fits_subgroup_matrices`"
    with function(scheduled=True) as build:
        args = GroupArguments.declare(build, operator)
        grid = operator.kv_heads, args.tiles(shape.rows)
        with launch(shape.threads, *grid) as (g, turn, thread):
            rows, first_row, end_row = args.rows_of(g, turn, shape.rows)
            block = _Block(rows, shape, thread, first_row)
            # Neither end of what a row sees falls from one row to the next.
            begin, seen_by_all = rows.seen_by(rows.token(first_row))
            begin_of_all, end = rows.seen_by(rows.token(first_row + (shape.rows - 1)))
            last = bind(end - 1)
            block.read(args.key, begin, last)
            block.load_queries()
            block.write()
            barrier()
            steps = tirx.floordiv(end - begin + (shape.keys - 1), shape.keys)
            with T.serial(0, steps) as step:
                base = materialize(begin + step * shape.keys)
                block.read(args.value, base, last)
                block.score()
                barrier()
                is_whole = (base >= begin_of_all) & (base + shape.keys <= seen_by_all)
                block.weigh(base, step, is_whole)
                block.write()
                block.read(args.key, base + shape.keys, last)
                block.rescale(step)
                block.accumulate()
                barrier()  # values and weights may still be being read
                block.write()
                barrier()
            block.finish(args.out, end_row)
    return build.result
