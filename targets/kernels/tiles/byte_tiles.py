"""The product of a tile of packed x with a tile of W on tensor cores.

A block's warps have parts of the tile. Of a group of channels a warp multiplies 16 rows of x by 8
of W at once: signed bytes, integer sums, which are scaled and added as floats. Sums of groups come
one after the other, as in int8_products.py. What the next step needs is read before a
step's products and written behind them, where there is room into another stage of shared memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.math import as_f32
from gemma4_compile.operators.tir import bind, i32, store
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import barrier, local
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.tiles.byte_tile_loaders import (
    LevelWords,
    Loader,
    RowScales,
    RowWords,
    Side,
    Stage,
    StepRowWords,
    WeightScales,
    WeightWords,
    column_place,
    row_place,
)
from gemma4_compile.targets.kernels.tiles.byte_tile_shape import (
    GROUP_PIECES,
    ByteTileShape,
)
from gemma4_compile.targets.kernels.tiles.loaders import RowOf
from gemma4_compile.targets.kernels.tiles.products import Finish
from gemma4_compile.targets.kernels.tiles.tensor_cores import (
    A_WORDS,
    B_WORDS,
    PIECE_WORDS,
    SUMS,
    WARP,
    M,
    N,
    add_scaled,
    address,
    copy_piece,
    load_matrices,
    multiply_add_group,
    multiply_add_levels,
    shared_pieces,
    sum_rows,
)

HALVES = 2  # of the 16 rows of a product: a lane has sums of a row of each
PAIR = 2  # neighbouring columns of a lane's sums


class WarpTileProduct(ABC):
    """The sums of one tile of ``x W^T``; `TileProduct` on tensor cores.

    Parameters
    ----------
    row_of_x, row_of_w : rows of the tensors by rows of the tile; clamped, so that all exist
    dtype : of the sums
    """

    def __init__(
        self, shape: ByteTileShape, thread: Expr, row_of_x: RowOf, row_of_w: RowOf, dtype: str
    ) -> None:
        self._shape = shape
        scales = shape.stages * shape.stage_scales // PIECE_WORDS
        self._stage = Stage(
            shared_pieces(shape.stages * shape.stage_pieces),
            shared_pieces(scales, "float32") if shape.scaled else None,
        )
        rows, columns = shape.rows, shape.columns
        self._left = Side(shape, rows, 0, 0, 0, partial(row_place, shape), row_of_x)
        self._right = Side(
            shape,
            columns,
            rows * shape.row_pieces,
            rows * shape.groups,
            (rows + columns) * shape.groups,
            partial(column_place, shape),
            row_of_w,
        )
        self._loaders: Sequence[Loader] = ()
        self._tall, self._wide = shape.part_rows // M, shape.part_columns // N
        self._lane = bind(tirx.floormod(thread, WARP))
        warp, across = bind(tirx.floordiv(thread, WARP)), columns // shape.part_columns
        self._first_row = bind(tirx.floordiv(warp, across) * shape.part_rows)
        self._first_column = bind(tirx.floormod(warp, across) * shape.part_columns)
        self._sums = local((self._tall * self._wide * SUMS,), dtype)
        self._a = local((self._tall * A_WORDS,), "uint32")
        self._b = local((self._wide * B_WORDS,), "uint32")
        for index in range(self._tall * self._wide * SUMS):
            store(self._sums, tirx.const(0, dtype), index)

    def run(self, steps: Expr) -> None:
        """Add the products of all steps; the number is the same in the whole block."""
        first, alone = i32(0), self._shape.stages == 1
        self._read(first)
        self._write(first, first)
        barrier()
        with T.serial(0, steps) as step:
            following = bind(tirx.min(step + 1, steps - 1))
            self._read(following)
            number = first if alone else bind(tirx.bitwise_and(step, i32(1)))
            self._multiply(number)
            if alone:
                barrier()  # the stage is still being read
            self._write(following, first if alone else bind(i32(1) - number))
            barrier()

    def _read(self, step: Expr) -> None:
        for loader in self._loaders:
            loader.read(step)

    def _write(self, step: Expr, number: Expr) -> None:
        for loader in self._loaders:
            loader.write(step, self._stage, number)

    def _multiply(self, number: Expr) -> None:
        """Add the products of a stage's groups."""
        shape, lane, pieces = self._shape, self._lane, self._stage.pieces
        first = bind(number * shape.stage_pieces)
        a_row = bind(self._first_row + tirx.floormod(lane, M))
        a_piece = bind(tirx.floordiv(lane, M))
        b_row = self._first_column + tirx.floordiv(lane, M) * N + tirx.floormod(lane, N)
        b_row, b_piece = bind(b_row), bind(tirx.floormod(tirx.floordiv(lane, N), B_WORDS))
        with T.serial(0, shape.groups) as group:
            own = bind(group * GROUP_PIECES)
            # Rows that are some times 16 apart have their pieces in the same order.
            b_place = bind(first + self._right.first_piece + shape.place(b_row, own + b_piece))
            a_place = bind(first + shape.place(a_row, own + a_piece))
            for j in range(0, self._wide, 2):
                at = b_place + j * N * shape.row_pieces
                load_matrices(address(self._b, j * B_WORDS), address(pieces, at))
            self._load_scales(number, group)
            for i in range(self._tall):
                at = a_place + i * M * shape.row_pieces
                load_matrices(address(self._a, i * A_WORDS), address(pieces, at))
            for i in range(self._tall):
                self._begin_rows(i)
                for j in range(self._wide):
                    self._multiply_block(i, j)

    @abstractmethod
    def _load_scales(self, number: Expr, group: Expr) -> None:
        """Read a lane's scales of a stage's group, of its rows and of its columns."""

    @abstractmethod
    def _begin_rows(self, i: int) -> None:
        """Make what all products with one A want."""

    @abstractmethod
    def _multiply_block(self, i: int, j: int) -> None:
        """Add the product of one A and one B to their sums."""

    def _operands(self, i: int, j: int) -> tuple[Expr, Expr, Expr]:
        """Addresses of sums, A and B."""
        return (
            address(self._sums, (i * self._wide + j) * SUMS),
            address(self._a, i * A_WORDS),
            address(self._b, j * B_WORDS),
        )

    def finish(self, body: Finish) -> None:
        """Run ``body(row, first column, 2 sums)`` all over the tile; places are within it."""
        row = bind(self._first_row + tirx.floordiv(self._lane, 4))
        column = bind(self._first_column + tirx.floormod(self._lane, 4) * PAIR)
        for i in range(self._tall):
            for half in range(HALVES):
                for j in range(self._wide):
                    first = (i * self._wide + j) * SUMS + half * PAIR
                    sums = [bind(as_f32(self._sums[first + k])) for k in range(PAIR)]
                    body(bind(row + (i * M + half * N)), bind(column + j * N), sums)


class ByteTileProduct(WarpTileProduct):
    """Both tiles have a scale for each row and group.

    Parameters
    ----------
    x : words (any, cols / 4) uint32 and scales (any, cols / GROUP) float32
    """

    def __init__(
        self,
        shape: ByteTileShape,
        x: Sequence[Buffer],
        weights: WeightReader,
        thread: Expr,
        row_of_x: RowOf,
        row_of_w: RowOf,
    ) -> None:
        super().__init__(shape, thread, row_of_x, row_of_w, "float32")
        self._is_exact = shape.minima or weights.layout.dtype == "float16"
        self._loaders = (
            RowWords(self._left, thread, x[0], weights.layout.products.interleaved),
            WeightWords(self._right, thread, weights),
            RowScales(self._left, thread, x[1]),
            WeightScales(self._right, thread, weights),
        )
        self._row_scales = local((self._tall * HALVES,))
        self._column_scales = local((self._wide * PAIR,))
        self._row_sums = local((HALVES,)) if shape.minima else None
        self._offsets = local((self._wide * PAIR,)) if shape.minima else None

    def _load_scales(self, number: Expr, group: Expr) -> None:
        first, rows, columns = bind(number * self._shape.stage_scales), self._left, self._right
        row = self._first_row + tirx.floordiv(self._lane, 4) * (self._tall * HALVES)
        column = self._first_column + tirx.floormod(self._lane, 4) * (self._wide * PAIR)
        row = bind(first + group * rows.rows + row)
        column = bind(first + group * columns.rows + column)
        self._load(self._row_scales, row + rows.first_scale)
        self._load(self._column_scales, column + columns.first_scale)
        if self._offsets is not None:
            self._load(self._offsets, column + columns.first_offset)

    def _load(self, to: Buffer, first: Expr) -> None:
        scales = self._stage.scales
        assert scales is not None, "of tiles that have some"
        for at in range(0, int(to.shape[0]), PIECE_WORDS):
            piece = bind(tirx.floordiv(first + at, PIECE_WORDS))
            copy_piece(address(to, at), address(scales, piece))

    def _begin_rows(self, i: int) -> None:
        if self._row_sums is not None:
            scales = address(self._row_scales, i * HALVES)
            sum_rows(address(self._row_sums, 0), address(self._a, i * A_WORDS), scales)

    def _multiply_block(self, i: int, j: int) -> None:
        sums, a, b = self._operands(i, j)
        rows = address(self._row_scales, i * HALVES)
        columns = address(self._column_scales, j * PAIR)
        multiply_add_group(sums, a, b, rows, columns, self._is_exact)
        if self._row_sums is not None and self._offsets is not None:
            add_scaled(sums, address(self._row_sums, 0), address(self._offsets, j * PAIR))


class SteppedByteTileProduct(WarpTileProduct):
    """Both tiles are whole steps of a checkpoint: a row's sum is one integer, scaled at the end.

    Parameters
    ----------
    x : words (any, cols / 4) uint32
    """

    def __init__(
        self,
        shape: ByteTileShape,
        x: Sequence[Buffer],
        weights: WeightReader,
        thread: Expr,
        row_of_x: RowOf,
        row_of_w: RowOf,
    ) -> None:
        super().__init__(shape, thread, row_of_x, row_of_w, "int32")
        self._loaders = (
            StepRowWords(self._left, thread, x[0], weights.layout.levels),
            LevelWords(self._right, thread, weights),
        )

    def _load_scales(self, number: Expr, group: Expr) -> None:
        """There are none."""

    def _begin_rows(self, i: int) -> None:
        """Nothing."""

    def _multiply_block(self, i: int, j: int) -> None:
        multiply_add_levels(*self._operands(i, j))
