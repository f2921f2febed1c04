"""Attention of a prefill chunk on tensor cores: float16 operands, float32 sums.

Definition: `PrefillAttention` in operators/attention.py, of operators with `rounds_to_halves`. A
warp has 16 rows (query heads at positions, all of one KV head) and a part of their channels in
registers: its queries, and the sums of its results. It multiplies its channels of the queries by
those of a tile of keys; the warps of a row add up what they have in shared memory, find the same
weights, and multiply them by their channels of the values. While a tile of keys is multiplied the
one of values is read, and while that is multiplied the next one of keys.
"""

from __future__ import annotations

from contextlib import nullcontext
from math import log2

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr, Operation
from gemma4_compile.targets.kernels.attention.group_rows import GroupArguments, GroupRows
from gemma4_compile.targets.kernels.attention.tensor_core_chunk_shape import (
    TURNED,
    TensorCoreChunkShape,
    tensor_core_chunk_shape,
)
from gemma4_compile.targets.kernels.common.blocks import (
    add,
    barrier,
    launch,
    local,
    tree,
)
from gemma4_compile.targets.kernels.common.builtins import from_neighbour
from gemma4_compile.targets.kernels.tiles.loaders import below
from gemma4_compile.targets.kernels.tiles.tensor_cores import (
    A_WORDS,
    PIECE,
    PIECE_WORDS,
    SUMS,
    WARP,
    K,
    M,
    N,
    address,
    begin_copy,
    copy_piece,
    end_copy,
    load_matrices,
    multiply_add,
    packed,
    shared_pieces,
    wait_for_copies,
)
from gemma4_compile.targets.spec import TargetSpec

LANES = 4  # threads that share a row of scores
LOG2_E = 1.4426950408889634
LARGEST_WEIGHT = 2.0**15
"""Weight of the highest score: in float16 the smallest are then 2^-24 of 2^-15, and none is lost
that many of could matter."""


def fits_tensor_cores(operator: PrefillAttention, spec: TargetSpec) -> bool:
    """Return whether operands are rounded to float16, which matrix units take."""
    return spec.tensor_cores and operator.rounds_to_halves


class ChunkBlock:
    """Registers and shared memory of a block's rows.

    Parameters
    ----------
    first_row : of the rows of the KV head, position by position and head by head
    key_end : the key after the last one of the block's split, where there are several
    """

    def __init__(
        self,
        rows: GroupRows,
        shape: TensorCoreChunkShape,
        thread: Expr,
        first_row: Expr,
        key_end: Expr | None = None,
    ) -> None:
        self.rows_of, self.operator, self.args = rows, rows.operator, rows.args
        self.shape, self.thread = shape, thread
        warp = tirx.floordiv(thread, WARP)
        self.lane = bind(tirx.floormod(thread, WARP))
        self.part = bind(below(warp, shape.parts))
        self.warp_row = bind(tirx.floordiv(warp, shape.parts) * M)
        self.rows = [
            bind(first_row + self.warp_row + tirx.floordiv(self.lane, LANES) + half * N)
            for half in range(2)
        ]
        self.keys, self.values = (shared_pieces(shape.tile_pieces) for _ in range(2))
        self.partial = (
            shared_pieces(shape.threads * shape.scores // SUMS, "float32")
            if shape.parts > 1
            else None
        )
        self.iterations = -(-shape.tile_pieces // shape.threads)
        self.next = local((self.iterations * PIECE_WORDS,), "uint32")
        self.queries = local((shape.steps * A_WORDS,), "uint32")
        self.scores = local((shape.scores,))
        self.totals = local((shape.channels // N * SUMS,))
        self.matrices = local((A_WORDS,), "uint32")
        # In powers of two; the weight of the highest score is `LARGEST_WEIGHT`.
        self.highest = [LocalVar("float32", f32(LOWEST)) for _ in range(2)]
        self.weight_sums = [LocalVar("float32", f32(0.0)) for _ in range(2)]
        for index in range(shape.channels // N * SUMS):
            store(self.totals, f32(0.0), index)
        self.seen = [self.rows_of.seen_by(self.rows_of.token(row)) for row in self.rows]
        if key_end is not None:
            self.seen = [(first, bind(tirx.min(end, key_end))) for first, end in self.seen]
        self._place_in_tiles()
        self._load_queries()

    # --- Rows ---

    def column(self, row: Expr) -> Expr:
        """The first of the warp's channels of a row's head."""
        head = self.rows_of.head(row)
        return bind(head * self.shape.head_dim + self.part * self.shape.channels)

    def _load_queries(self) -> None:
        """Read and round the queries, each to the thread that multiplies it."""
        tokens = [self.rows_of.token(row) for row in self.rows]
        columns = [self.column(row) + tirx.floormod(self.lane, LANES) * 2 for row in self.rows]
        for step in range(self.shape.steps):
            for word in range(A_WORDS):
                at = columns[word % 2] + step * K + word // 2 * N
                pair = (self.args.q[tokens[word % 2], at + i] for i in range(2))
                store(self.queries, packed(*pair), step * A_WORDS + word)

    # --- Tiles ---

    def _place_in_tiles(self) -> None:
        """Where the thread's rows of matrices begin, in pieces, and how they are turned."""
        shape, lane = self.shape, self.lane
        part = self.part * (shape.channels // PIECE)
        halves = tirx.floormod(tirx.floordiv(lane, N), 2), tirx.floordiv(lane, M)
        key_row = tirx.floordiv(lane, M) * N + tirx.floormod(lane, N)
        value_row = tirx.floormod(lane, M)
        self.key_row = materialize(key_row * shape.row_pieces + part)
        self.value_row = materialize(value_row * shape.row_pieces + part)
        self.key_turns, self.value_turns = (
            [
                materialize(tirx.bitwise_xor(piece + half, tirx.floormod(lane, TURNED)))
                for piece in range(0, TURNED, 2)
            ]
            for half in halves
        )

    def _matrix(self, tile: Buffer, row: Expr, turns: list[Expr], rows: int, piece: int) -> Expr:
        """Place of the thread's row of the matrices from a row and an even piece on."""
        at = rows * self.shape.row_pieces + piece // TURNED * TURNED
        return address(tile, row + at + turns[piece % TURNED // 2])

    def _item(self, iteration: int) -> tuple[Expr, Expr, Expr | None]:
        """Row and piece of a tile that this thread moves; whether it is there, if not all are."""
        shape = self.shape
        item = self.thread + iteration * shape.threads
        inside = None
        if (iteration + 1) * shape.threads > shape.tile_pieces:
            inside = item < shape.tile_pieces
            item = tirx.min(item, shape.tile_pieces - 1)
        row, piece = tirx.floordiv(item, shape.row_pieces), tirx.floormod(item, shape.row_pieces)
        return bind(row), bind(piece), inside

    def begin(self, tile: Buffer, source: Buffer, base: Expr, last: Expr) -> None:
        """Begin to copy the thread's pieces of the keys or values from `base` on to a tile."""
        for iteration in range(self.iterations):
            row, piece, inside = self._item(iteration)
            slot = materialize(self.operator.cache.row(tirx.min(base + row, last)))
            registers = address(self.next, iteration * PIECE_WORDS)
            at = address(source, slot, self.args.g, piece * PIECE)
            with nullcontext() if inside is None else when(inside):
                begin_copy(registers, self._place(tile, row, piece), at)

    def end(self, tile: Buffer) -> None:
        """End what was begun last; all threads see the tile."""
        for iteration in range(self.iterations):
            row, piece, inside = self._item(iteration)
            with nullcontext() if inside is None else when(inside):
                registers = address(self.next, iteration * PIECE_WORDS)
                end_copy(self._place(tile, row, piece), registers)
        wait_for_copies()
        barrier()

    def _place(self, tile: Buffer, row: Expr, piece: Expr) -> Expr:
        turned = tirx.bitwise_xor(piece, tirx.floormod(row, TURNED))
        return address(tile, row * self.shape.row_pieces + turned)

    # --- Steps of a tile ---

    def score(self) -> None:
        """Step 1: the warp's channels of q.k."""
        shape = self.shape
        for index in range(shape.scores):
            store(self.scores, f32(0.0), index)
        for step in range(shape.steps):
            for j in range(0, shape.keys // N, 2):
                piece = step * (K // PIECE)
                place = self._matrix(self.keys, self.key_row, self.key_turns, j * N, piece)
                load_matrices(address(self.matrices, 0), place)
                for half in range(2):
                    multiply_add(
                        address(self.scores, (j + half) * SUMS),
                        address(self.queries, step * A_WORDS),
                        address(self.matrices, half * 2),
                    )
        if self.partial is not None:
            for j in range(shape.keys // N):
                copy_piece(self._of_warp(self.part, j), address(self.scores, j * SUMS))

    def _of_warp(self, part: Expr | int, j: int) -> Expr:
        """Place of the thread's part of some scores, and that of the others of its row."""
        assert self.partial is not None, "several warps share a row"
        warp = tirx.floordiv(self.warp_row, M) * self.shape.parts + part
        return address(self.partial, (warp * (self.shape.keys // N) + j) * WARP + self.lane)

    def add_parts(self) -> None:
        """Step 2, after a barrier: add up the parts of the scores.

        Every warp of a row finds the same sums: of two parts, and of two pairs, in either order.
        """
        if self.partial is None:
            return
        others = [local((SUMS,)) for _ in range(self.shape.parts)]
        in_pairs = self.shape.parts in (2, 4)
        for j in range(self.shape.keys // N):
            sums = [self.scores[j * SUMS + i] for i in range(SUMS)]
            for part in range(1 if in_pairs else 0, self.shape.parts):
                source = tirx.bitwise_xor(self.part, i32(part)) if in_pairs else part
                copy_piece(address(others[part], 0), self._of_warp(source, j))
            for i, own in enumerate(sums):
                terms = [other[i] for other in others]
                if in_pairs:
                    terms[0] = own
                store(self.scores, tree(terms, add), j * SUMS + i)

    def mask(self, base: Expr) -> None:
        """Lower the scores of keys that a row does not see."""
        column = bind(base + tirx.floormod(self.lane, LANES) * 2)
        for index in range(self.shape.scores):
            first, end = self.seen[index % SUMS // 2]
            key = column + (index // SUMS * N + index % 2)
            seen = (key >= first) & (key < end)
            store(self.scores, tirx.Select(seen, self.scores[index], f32(LOWEST)), index)

    def weigh(self) -> None:
        """Step 3: turn the scores into weights, and rescale what was summed before."""
        shape, keeps = self.shape, []
        for half, (highest, total) in enumerate(zip(self.highest, self.weight_sums, strict=True)):
            mine = [j * SUMS + half * 2 + i for j in range(shape.keys // N) for i in range(2)]
            top = LocalVar("float32", tree([self.scores[index] for index in mine], tirx.max))
            over_row(top, tirx.max)
            top.set(tirx.max(highest.value, top.value * f32(LOG2_E) - f32(log2(LARGEST_WEIGHT))))
            keeps.append(LocalVar("float32", tirx.exp2(highest.value - top.value)))
            highest.set(top.value)
            for index in mine:
                weight = tirx.exp2(self.scores[index] * f32(LOG2_E) - highest.value)
                store(self.scores, weight, index)
            weights = tree([self.scores[index] for index in mine], add)
            total.set(total.value * keeps[half].value + weights)
        # The highest scores are soon found.
        with when((keeps[0].value < f32(1.0)) | (keeps[1].value < f32(1.0))):
            for index in range(shape.channels // N * SUMS):
                keep = keeps[index % SUMS // 2].value
                store(self.totals, self.totals[index] * keep, index)

    def accumulate(self) -> None:
        """Step 4: add the weighted values. A warp's scores are the A of the next product."""
        weights = local((A_WORDS,), "uint32")
        for part in range(self.shape.keys // K):
            for index in range(A_WORDS):
                first = (part * 2 + index // 2) * SUMS + index % 2 * 2
                store(weights, packed(self.scores[first], self.scores[first + 1]), index)
            for j in range(0, self.shape.channels // N, 2):
                place = self._matrix(self.values, self.value_row, self.value_turns, part * K, j)
                load_matrices(address(self.matrices, 0), place, transposed=True)
                for half in range(2):
                    multiply_add(
                        address(self.totals, (j + half) * SUMS),
                        address(weights, 0),
                        address(self.matrices, half * 2),
                    )

    def finish(self, out: Buffer, end: Expr) -> None:
        """Divide and store the warp's rows before `end`."""
        for half, (row, total) in enumerate(zip(self.rows, self.weight_sums, strict=True)):
            over_row(total, add)
            with when(row < end):
                token = materialize(tirx.floordiv(row, self.rows_of.group))
                column = self.column(row) + tirx.floormod(self.lane, LANES) * 2
                for j in range(self.shape.channels // N):
                    for i in range(2):
                        value = self.totals[j * SUMS + half * 2 + i] / total.value
                        store(out, value.astype(out.dtype), token, column + (j * N + i))


def over_row(value: LocalVar, combine: Operation) -> None:
    """Combine the values of the threads that share a row; each gets the result."""
    for distance in (1, 2):
        value.set(combine(value.value, from_neighbour(value.value, distance)))


def make_tensor_core_chunk_attention(operator: PrefillAttention, spec: TargetSpec) -> tirx.PrimFunc:
    """Causal (and sliding) attention of all positions of a chunk, and that of pictures.

    Grid: KV heads x rows of a KV head / rows of a block; those with the most keys begin first.
    Shared: a tile of keys and one of values, and parts of scores. Reference:
    `PrefillAttention.definition`.
    """
    with function(scheduled=True) as build:
        args = GroupArguments.declare(build, operator)
        attend_whole(args, tensor_core_chunk_shape(operator, spec))
    return build.result


def attend_whole(args: GroupArguments, shape: TensorCoreChunkShape) -> None:
    """Launch a kernel whose blocks each go over all keys of their rows."""
    grid = args.operator.kv_heads, args.tiles(shape.rows)
    with launch(shape.threads, *grid) as (g, turn, thread):
        rows, first_row, end_row = args.rows_of(g, turn, shape.rows)
        block = ChunkBlock(rows, shape, thread, first_row)
        # Neither end of what a row sees falls from one row to the next.
        begin, seen_by_all = rows.seen_by(rows.token(first_row))
        begin_of_all, end = rows.seen_by(rows.token(first_row + (shape.rows - 1)))
        attend(block, args, (begin, end), (begin_of_all, seen_by_all))
        block.finish(args.out, end_row)


def attend(
    block: ChunkBlock,
    args: GroupArguments,
    keys: tuple[Expr, Expr],
    seen_by_all: tuple[Expr, Expr],
) -> None:
    """Go over the keys of a block, from the first one to before the second; what all rows see."""
    shape, (begin, end) = block.shape, keys
    last = bind(end - 1)
    block.begin(block.keys, args.key, begin, last)
    block.end(block.keys)
    steps = tirx.floordiv(end - begin + (shape.keys - 1), shape.keys)
    with T.serial(0, steps) as step:
        base = materialize(begin + step * shape.keys)
        block.begin(block.values, args.value, base, last)
        block.score()
        block.end(block.values)
        block.begin(block.keys, args.key, base + shape.keys, last)
        block.add_parts()
        with when((base < seen_by_all[0]) | (base + shape.keys > seen_by_all[1])):
            block.mask(base)
        block.weigh()
        block.accumulate()
        block.end(block.keys)
