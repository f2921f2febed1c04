"""Matrix times many rows on tensor cores: float16 operands, float32 sums.

Definition: `BoundedLinear` in operators/bounded_linear.py. Both tiles lie in shared memory row by
row as halves; weights are decoded on their way there. What the next step needs is read before a
step's products.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.linear import DENSE, INTEGERS
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.packings import BYTES
from gemma4_compile.operators.tir import bind, function, i32, store
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import barrier, launch, local
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.bounded_operands import BoundedOperands
from gemma4_compile.targets.kernels.tiles.loaders import RowOf
from gemma4_compile.targets.kernels.tiles.tensor_cores import (
    A_WORDS,
    B_WORDS,
    PIECE,
    PIECE_WORDS,
    SUMS,
    WARP,
    WORD_HALVES,
    K,
    M,
    N,
    address,
    clipped_word,
    copy_half_piece,
    copy_piece,
    decode_bytes,
    load_matrices,
    multiply_add,
    shared_pieces,
)
from gemma4_compile.targets.spec import TargetSpec
from gemma4_compile.targets.tuning import TensorCoreTuning


def fits_tensor_cores(operator: BoundedLinear, spec: TargetSpec) -> bool:
    """Return whether the target has them and the operands are halves that move in pieces."""
    layout = operator.layout
    halves = operator.in_dtype == layout.dtype == "float16"
    is_bytes = layout.form == INTEGERS and layout.packing == BYTES
    is_bytes = is_bytes and layout.group_size % PIECE == 0
    forms = layout.form == DENSE or is_bytes
    return spec.tensor_cores and halves and forms and operator.cols % PIECE == 0


class _Loader:
    """Moves rows of a matrix into a tile of halves, piece by piece.

    Parameters
    ----------
    rows : of the tile
    row_of : from a row of the tile to one of the matrix; clamped, so that it exists
    """

    def __init__(
        self, size: TensorCoreTuning, cols: int, rows: int, thread: Expr, row_of: RowOf
    ) -> None:
        self.size, self.cols = size, cols
        self.pieces = size.depth // PIECE
        self.count = rows * self.pieces // size.threads
        assert self.count * size.threads == rows * self.pieces, "every thread has as many pieces"
        items = [thread + index * size.threads for index in range(self.count)]
        self.piece = bind(tirx.floormod(thread, self.pieces))  # threads: a multiple of the pieces
        self.tile_rows = [bind(tirx.floordiv(item, self.pieces)) for item in items]
        self.rows = [bind(row_of(row)) for row in self.tile_rows]
        self.tile = shared_pieces(rows * size.row_pieces)
        self.raw = local((self.count * PIECE_WORDS,), "uint32")

    def channel(self, step: Expr) -> Expr:
        """The first channel of the thread's piece in a step, the last piece beyond the end."""
        return bind(self._channel(step, self.cols - PIECE))

    def _channel(self, step: Expr, last: int) -> Expr:
        channel = step * self.size.depth + self.piece * PIECE
        return channel if self.cols % self.size.depth == 0 else tirx.min(channel, last)

    def place(self, index: int) -> Expr:
        """Place that a piece goes to."""
        return address(self.tile, self.tile_rows[index] * self.size.row_pieces + self.piece)

    def raw_at(self, index: int, word: int = 0) -> Expr:
        """Place where a piece waits."""
        return address(self.raw, index * PIECE_WORDS + word)


class _RowsLoader(_Loader):
    """Rows of x within bounds; 0 beyond the last channel."""

    def __init__(
        self,
        size: TensorCoreTuning,
        x: Buffer,
        thread: Expr,
        row_of: RowOf,
        bounds: Sequence[Expr],
    ) -> None:
        super().__init__(size, int(x.shape[1]), size.rows, thread, row_of)
        self._x, self._bounds = x, bounds[:2]

    def read(self, step: Expr) -> None:
        """Read a step's pieces."""
        channel = self.channel(step)
        for index, row in enumerate(self.rows):
            copy_piece(self.raw_at(index), address(self._x, row, channel))

    def write(self, step: Expr) -> None:
        """Write the pieces that were read for a step."""
        inside = bind(step * self.size.depth + self.piece * PIECE) < self.cols
        for index in range(self.count):
            for word in range(PIECE_WORDS):
                at = index * PIECE_WORDS + word
                if self._bounds:
                    store(self.raw, clipped_word(self.raw[at], self._bounds), at)
                if self.cols % self.size.depth:
                    store(self.raw, tirx.Select(inside, self.raw[at], _no_bits()), at)
            copy_piece(self.place(index), self.raw_at(index))


class _WeightsLoader(_Loader):
    """Rows of a stored matrix; beyond the last channel some of its values."""

    def __init__(
        self, size: TensorCoreTuning, weights: WeightReader, thread: Expr, row_of: RowOf
    ) -> None:
        super().__init__(size, weights.layout.cols, size.columns, thread, row_of)
        self._weights = weights
        self._is_integers = weights.layout.form == INTEGERS
        if self._is_integers:
            self._scales = local((self.count,), "float16")

    def read(self, step: Expr) -> None:
        """Read a step's pieces, and their scales."""
        layout, channel = self._weights.layout, self.channel(step)
        for index, row in enumerate(self.rows):

            def read(
                split: Sequence[Buffer], begin: int, index: int = index, row: Expr = row
            ) -> None:
                if not self._is_integers:
                    copy_piece(self.raw_at(index), address(split[0], row - begin, channel))
                    return
                word = tirx.floordiv(channel, layout.packing.run)
                copy_half_piece(self.raw_at(index), address(split[0], row - begin, word))
                group = tirx.floordiv(channel, layout.group_size)
                store(self._scales, split[1][row - begin, group], index)

            self._weights.in_split(row, read)

    def write(self, step: Expr) -> None:
        """Write the pieces that were read for a step."""
        layout = self._weights.layout
        for index in range(self.count):
            if self._is_integers:
                values = local((PIECE_WORDS,), "uint32")
                for word in range(PIECE // layout.packing.run):
                    decode_bytes(
                        address(values, word * WORD_HALVES),
                        self.raw[index * PIECE_WORDS + word],
                        f32(layout.packing.zero_point),
                        self._scales[index],
                    )
                copy_piece(self.place(index), address(values, 0))
            else:
                copy_piece(self.place(index), self.raw_at(index))


class _WarpSums:
    """The sums of one warp's part of the tile."""

    def __init__(self, size: TensorCoreTuning, thread: Expr) -> None:
        self.size = size
        self.lane = bind(tirx.floormod(thread, WARP))
        warp, across = bind(tirx.floordiv(thread, WARP)), size.columns // size.warp_columns
        self.first_row = bind(tirx.floordiv(warp, across) * size.warp_rows)
        self.first_column = bind(tirx.floormod(warp, across) * size.warp_columns)
        self.blocks_m, self.blocks_n = size.warp_rows // M, size.warp_columns // N
        self.sums = local((self.blocks_m * self.blocks_n * SUMS,))
        self._a = local((self.blocks_m * A_WORDS,), "uint32")
        self._b = local((self.blocks_n * B_WORDS,), "uint32")
        for index in range(self.blocks_m * self.blocks_n * SUMS):
            store(self.sums, f32(0.0), index)

    def multiply(self, x: Buffer, w: Buffer) -> None:
        """Add the products of a step's tiles."""
        size, lane = self.size, self.lane
        a_row = bind(self.first_row + tirx.floormod(lane, M))
        a_piece = bind(tirx.floordiv(lane, M))
        b_row = bind(self.first_column + tirx.floordiv(lane, M) * N + tirx.floormod(lane, N))
        b_piece = bind(tirx.floormod(tirx.floordiv(lane, N), 2))
        with T.serial(0, size.depth // K) as part:
            first = part * (K // PIECE)
            for i in range(self.blocks_m):
                place = (a_row + i * M) * size.row_pieces + first + a_piece
                load_matrices(address(self._a, i * A_WORDS), address(x, place))
            for j in range(0, self.blocks_n, 2):
                place = (b_row + j * N) * size.row_pieces + first + b_piece
                load_matrices(address(self._b, j * B_WORDS), address(w, place))
            for i in range(self.blocks_m):
                for j in range(self.blocks_n):
                    multiply_add(
                        address(self.sums, (i * self.blocks_n + j) * SUMS),
                        address(self._a, i * A_WORDS),
                        address(self._b, j * B_WORDS),
                    )

    def pairs(self) -> list[tuple[Expr, Expr, list[Expr]]]:
        """Row and first column within the tile of each two neighbouring sums."""
        below, right = tirx.floordiv(self.lane, 4), tirx.floormod(self.lane, 4) * 2
        row, column = bind(self.first_row + below), bind(self.first_column + right)
        return [
            (
                row + (i * M + half * N),
                column + j * N,
                [self.sums[(i * self.blocks_n + j) * SUMS + half * 2 + k] for k in range(2)],
            )
            for i in range(self.blocks_m)
            for half in range(2)
            for j in range(self.blocks_n)
        ]


def make_tensor_core_gemm(operator: BoundedLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """Clip x on its way to shared memory, sums before the epilogue.

    Grid: W's rows / tile x rows / tile. Shared: both tiles. Reference: `BoundedLinear.definition`.
    """
    rows, cols, size = operator.layout.rows, operator.cols, spec.tuning.tensor_cores
    with function(scheduled=True) as build:
        args = BoundedOperands.declare(build, operator)
        n, x, weights = args.rows, args.x, args.weights
        grid = -(-rows // size.columns), tirx.floordiv(n + (size.rows - 1), size.rows)
        with launch(size.threads, *grid) as (block_n, tile, thread):
            block_m = bind(i32(tile))
            limits, last = args.limits(), bind(i32(n) - 1)
            first_m, first_n = bind(block_m * size.rows), bind(block_n * size.columns)
            left = _RowsLoader(size, x, thread, lambda i: tirx.min(first_m + i, last), limits)
            right = _WeightsLoader(size, weights, thread, lambda i: tirx.min(first_n + i, rows - 1))
            sums, steps = _WarpSums(size, thread), -(-cols // size.depth)
            left.read(i32(0))
            right.read(i32(0))
            with T.serial(0, steps) as step:
                barrier()  # the tiles of the step before may still be being read
                left.write(step)
                right.write(step)
                barrier()
                following = bind(tirx.min(step + 1, steps - 1))
                left.read(following)
                right.read(following)
                sums.multiply(left.tile, right.tile)
            for i, j, pair in sums.pairs():
                args.store_sums(bind(first_m + i), bind(first_n + j), pair, limits, last)
    return build.result


def _no_bits() -> Expr:
    return tirx.const(0, "uint32")
