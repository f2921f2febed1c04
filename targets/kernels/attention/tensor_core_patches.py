"""Attention of a picture's patches on tensor cores: float16 operands, float32 sums.

Definition: `PatchAttention` in operators/vision_attention.py. A warp has 16 queries in registers,
and the sums of their results; a block's warps share tiles of keys and values, of which the next is
read while one is used. A score's sum begins with what hides a key of padding.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.bounded_linear import LARGEST_F16
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Operation
from gemma4_compile.operators.vision_attention import PatchAttention
from gemma4_compile.targets.kernels.attention.patch_operands import patch_operands
from gemma4_compile.targets.kernels.common.blocks import add, barrier, launch, local, shared
from gemma4_compile.targets.kernels.common.builtins import from_neighbour
from gemma4_compile.targets.kernels.tiles.tensor_cores import (
    A_WORDS,
    PIECE,
    PIECE_WORDS,
    SUMS,
    WARP,
    WORD_HALVES,
    K,
    M,
    N,
    address,
    copy_piece,
    load_matrices,
    multiply_add,
    packed,
    shared_pieces,
)
from gemma4_compile.targets.spec import TargetSpec

WARPS = 4
ROWS = WARPS * M  # queries of a block
KEYS = 64  # of a tile
THREADS = WARPS * WARP
LARGEST_HEAD = 128  # channels whose sums fit into registers
LANES = 4  # threads that share a row of scores


def fits_tensor_cores(operator: PatchAttention, spec: TargetSpec) -> bool:
    """Return whether the target has them, and keys and values are halves that move in pieces."""
    dim = operator.head_dim
    halves = operator.cache_dtype == "float16"
    return spec.tensor_cores and halves and dim % PIECE == 0 and dim <= LARGEST_HEAD


class _Block:
    """Registers and shared memory of 64 queries of a head."""

    def __init__(self, dim: int, thread: Expr, head: Expr, end: Expr) -> None:
        self.dim, self.thread, self.head, self.end = dim, thread, head, end
        self.parts = -(-dim // K)  # of 16 channels; those beyond the head are 0
        self.row_pieces = self.parts * K // PIECE + 1  # no two of 8 neighbouring rows share banks
        self.lane = bind(tirx.floormod(thread, WARP))
        self.warp_row = bind(tirx.floordiv(thread, WARP) * M)
        # Queries lie where keys do until they are in registers.
        self.keys, self.values = (shared_pieces(KEYS * self.row_pieces) for _ in range(2))
        self.hidden = shared((KEYS,))
        self.queries = local((self.parts * A_WORDS,), "uint32")
        self.scores = local((KEYS // N * SUMS,))
        self.totals = local((dim // N * SUMS,))
        self.matrices = local((A_WORDS,), "uint32")
        self.highest = [LocalVar("float32", f32(LOWEST)) for _ in range(2)]
        self.weight_sums = [LocalVar("float32", f32(0.0)) for _ in range(2)]
        for index in range(dim // N * SUMS):
            store(self.totals, f32(0.0), index)
        self.pieces = dim // PIECE
        self.items = KEYS * self.pieces
        self.iterations = -(-self.items // THREADS)
        self.next = [local((self.iterations * PIECE_WORDS,), "uint32") for _ in range(2)]

    # --- From global memory ---

    def _item(self, iteration: int) -> tuple[Expr, Expr, Expr]:
        """Row and piece of a tile that this thread moves, and whether it is there."""
        item = self.thread + iteration * THREADS
        row = tirx.min(tirx.floordiv(item, self.pieces), KEYS - 1)
        return bind(row), bind(tirx.floormod(item, self.pieces)), item < self.items

    def load_queries(self, q: Buffer, first: Expr) -> None:
        """Read, round and load the queries; clear what is beyond the head in all tiles."""
        zero = local((PIECE_WORDS,), "uint32")
        for word in range(PIECE_WORDS):
            store(zero, tirx.const(0, "uint32"), word)
        if self.pieces * PIECE < self.parts * K:
            with when(self.thread < KEYS):
                for tile in (self.keys, self.values):
                    copy_piece(self._place(tile, self.thread, self.pieces), address(zero, 0))
        for iteration in range(self.iterations):
            row, piece, inside = self._item(iteration)
            source = bind(tirx.min(first + row, self.end - 1))
            words = local((PIECE_WORDS,), "uint32")
            for word in range(PIECE_WORDS):
                at = self.head * self.dim + piece * PIECE + word * WORD_HALVES
                store(words, packed(*(_within(q[source, at + i]) for i in range(2))), word)
            with when(inside):
                copy_piece(self._place(self.keys, row, piece), address(words, 0))
        barrier()
        for part in range(self.parts):
            row = self.warp_row + tirx.floormod(self.lane, M)
            piece = tirx.floordiv(self.lane, M) + part * (K // PIECE)
            to = address(self.queries, part * A_WORDS)
            load_matrices(to, self._place(self.keys, row, piece))

    def _place(self, tile: Buffer, row: Expr, piece: Expr | int) -> Expr:
        return address(tile, row * self.row_pieces + piece)

    def read(self, sources: tuple[Buffer, Buffer], first: Expr) -> None:
        """Read the pieces of a tile of keys and values."""
        for iteration in range(self.iterations):
            row, piece, inside = self._item(iteration)
            at = bind(tirx.min(first + row, self.end - 1))
            with when(inside):
                for registers, source in zip(self.next, sources, strict=True):
                    to = address(registers, iteration * PIECE_WORDS)
                    copy_piece(to, address(source, at, self.head, piece * PIECE))

    def write(self, positions: Buffer, first: Expr, patches: int) -> None:
        """Write the tile that was read, and which of its keys are hidden."""
        barrier()  # the tile before may still be being read
        for iteration in range(self.iterations):
            row, piece, inside = self._item(iteration)
            with when(inside):
                for registers, tile in zip(self.next, (self.keys, self.values), strict=True):
                    place = self._place(tile, row, piece)
                    copy_piece(place, address(registers, iteration * PIECE_WORDS))
        with when(self.thread < KEYS):
            key = bind(first + self.thread)
            block = bind(tirx.floordiv(tirx.min(key, self.end - 1), patches))
            seen = (key < self.end) & (positions[block, 0] >= 0)
            store(self.hidden, tirx.Select(seen, f32(0.0), f32(LOWEST)), self.thread)
        barrier()

    # --- Steps of a tile ---

    def score(self) -> None:
        """Step 1: q.k of the warp's queries with all keys of the tile."""
        column = bind(tirx.floormod(self.lane, LANES) * 2)
        for j in range(KEYS // N):
            for index in range(SUMS):
                value = self.hidden[j * N + column + index % 2]
                store(self.scores, value, j * SUMS + index)
        row = bind(tirx.floordiv(self.lane, M) * N + tirx.floormod(self.lane, N))
        piece = bind(tirx.floormod(tirx.floordiv(self.lane, N), 2))
        for part in range(self.parts):
            for j in range(0, KEYS // N, 2):
                place = self._place(self.keys, row + j * N, piece + part * (K // PIECE))
                load_matrices(address(self.matrices, 0), place)
                for half in range(2):
                    multiply_add(
                        address(self.scores, (j + half) * SUMS),
                        address(self.queries, part * A_WORDS),
                        address(self.matrices, half * 2),
                    )

    def weigh(self) -> None:
        """Step 2: turn the scores into weights, and rescale what was summed before."""
        for half, (highest, total) in enumerate(zip(self.highest, self.weight_sums, strict=True)):
            mine = [j * SUMS + half * 2 + i for j in range(KEYS // N) for i in range(2)]
            top = LocalVar("float32", highest.value)
            for index in mine:
                top.set(tirx.max(top.value, self.scores[index]))
            _over_row(top, tirx.max)
            keep = LocalVar("float32", tirx.exp(highest.value - top.value))
            highest.set(top.value)
            total.set(total.value * keep.value)
            for index in mine:
                store(self.scores, tirx.exp(self.scores[index] - highest.value), index)
                total.add(self.scores[index])
            for j in range(self.dim // N):
                for i in range(2):
                    index = j * SUMS + half * 2 + i
                    store(self.totals, self.totals[index] * keep.value, index)

    def accumulate(self) -> None:
        """Step 3: add the weighted values. A warp's scores are the A of the next product."""
        weights = local((A_WORDS,), "uint32")
        row = bind(tirx.floormod(self.lane, M))
        piece = bind(tirx.floordiv(self.lane, M))
        for part in range(KEYS // K):
            for index in range(A_WORDS):
                first = (part * 2 + index // 2) * SUMS + index % 2 * 2
                store(weights, packed(self.scores[first], self.scores[first + 1]), index)
            for j in range(0, self.dim // N, 2):
                place = self._place(self.values, row + part * K, piece + j)
                load_matrices(address(self.matrices, 0), place, transposed=True)
                for half in range(min(2, self.dim // N - j)):
                    multiply_add(
                        address(self.totals, (j + half) * SUMS),
                        address(weights, 0),
                        address(self.matrices, half * 2),
                    )

    def finish(self, out: Buffer, first: Expr) -> None:
        """Divide and store the warp's rows."""
        for half, total in enumerate(self.weight_sums):
            _over_row(total, add)
            row = bind(first + self.warp_row + tirx.floordiv(self.lane, LANES) + half * N)
            with when(row < self.end):
                for j in range(self.dim // N):
                    for i in range(2):
                        value = self.totals[j * SUMS + half * 2 + i] / total.value
                        column = self.head * self.dim + j * N + i
                        column = column + tirx.floormod(self.lane, LANES) * 2
                        store(out, value.astype(out.dtype), row, column)


def _within(value: Expr) -> Expr:
    """`value` within the range of float16."""
    return tirx.max(tirx.min(value, f32(LARGEST_F16)), f32(-LARGEST_F16))


def _over_row(value: LocalVar, combine: Operation) -> None:
    """Combine the values of the threads that share a row; each gets the result."""
    for distance in (1, 2):
        value.set(combine(value.value, from_neighbour(value.value, distance)))


def make_tensor_core_attention(operator: PatchAttention, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: heads x patches / 64. Shared: a tile of keys and one of values.

    Reference: `PatchAttention.definition`.
    """
    dim, heads, patches = operator.head_dim, operator.heads, operator.pooling**2
    with function(scheduled=True) as build:
        args = patch_operands(build, operator)
        rows, sources = args.rows, (args.key, args.value)
        with launch(THREADS, heads, tirx.floordiv(rows + (ROWS - 1), ROWS)) as (head, tile, thread):
            end, first = bind(i32(rows)), bind(i32(tile) * ROWS)
            block = _Block(dim, thread, head, end)
            block.read(sources, i32(0))
            block.load_queries(args.q, first)
            with T.serial(0, tirx.floordiv(end + (KEYS - 1), KEYS)) as step:
                base = bind(step * KEYS)
                block.write(args.positions, base, patches)
                block.read(sources, base + KEYS)
                block.score()
                block.weigh()
                block.accumulate()
            block.finish(args.out, first)
    return build.result
