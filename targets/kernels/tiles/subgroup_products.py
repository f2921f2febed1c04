"""What matmuls in subgroup matrices share: how tiles get into shared memory, and the sums.

Both tiles lie in shared memory row by row as halves, in pieces of 8 (tensor_cores.py). At the end
the sums go through the tiles' memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.tir import bind, materialize, store
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import barrier, local
from gemma4_compile.targets.kernels.tiles.loaders import VECTOR, RowOf, put, splat, vector
from gemma4_compile.targets.kernels.tiles.subgroup_matrices import (
    SIDE,
    SIDE_PIECES,
    SIDE_SUM_PIECES,
    SUBGROUP,
    SUM_PIECE,
    clear,
    load_left,
    load_right,
    multiply_add,
    read_piece,
    store_sums,
)
from gemma4_compile.targets.kernels.tiles.tensor_cores import PIECE
from gemma4_compile.targets.tuning import TensorCoreTuning

FLOATS = f"float32x{VECTOR}"
WEIGHTS = 16  # of a row, that a thread reads at a time: four words of bytes
SUM_PADDING = 2  # pieces after each row of sums: so rows begin in different banks
# As a half, 0x6400 is 1024, whose last ten bits count ones.
COUNTING, COUNTED = 0x64006400, 1024

Store = Callable[[Expr, Expr, Sequence[Expr]], None]
"""Stores neighbouring vectors of four sums: row, first column, vectors."""


class PieceLoader:
    """Moves rows of a matrix into a tile of halves; a thread moves `unit` channels at a time.

    Parameters
    ----------
    memory, first : the tile begins in this piece
    rows : of the tile
    row_of : from a row of the tile to one of the matrix; clamped, so that it exists
    """

    def __init__(
        self,
        size: TensorCoreTuning,
        unit: int,
        cols: int,
        memory: Buffer,
        first: int,
        rows: int,
        thread: Expr,
        row_of: RowOf,
    ) -> None:
        self.size, self.unit, self.cols, self._memory = size, unit, cols, memory
        self._units = size.depth // unit
        self.count = rows * self._units // size.threads
        assert self.count * size.threads == rows * self._units, "every thread has as many units"
        self._unit = bind(tirx.floormod(thread, self._units))  # threads: a multiple of the units
        self.tile_rows = [
            bind(tirx.floordiv(thread + index * size.threads, self._units))
            for index in range(self.count)
        ]
        self.rows = [bind(row_of(row)) for row in self.tile_rows]
        self._places = [
            bind(row * size.row_pieces + self._unit * (unit // PIECE) + first)
            for row in self.tile_rows
        ]

    def at(self, step: Expr) -> Expr:
        """The thread's unit of a row in a step, the last one beyond the end."""
        return bind(tirx.min(step * self._units + self._unit, self.cols // self.unit - 1))

    def inside(self, step: Expr) -> Expr:
        """Return whether the row has the thread's unit in a step."""
        return bind(step * self._units + self._unit) < self.cols // self.unit

    def put(self, index: int, piece: int, value: Expr) -> None:
        """Write a piece of a unit into the tile."""
        store(self._memory, value, self._places[index] + piece)


class HalvesLoader(PieceLoader):
    """Rows of halves (any, cols); 0 beyond the last channel."""

    def __init__(
        self, size: TensorCoreTuning, x: Buffer, memory: Buffer, thread: Expr, row_of: RowOf
    ) -> None:
        super().__init__(size, PIECE, int(x.shape[1]), memory, 0, size.rows, thread, row_of)
        self._x, self._raw = x, local((self.count * VECTOR,), "uint32")

    def read(self, step: Expr) -> None:
        """Read a step's units."""
        at = self.at(step)
        for index, row in enumerate(self.rows):
            put(self._raw, index, read_piece(self._x, row, at * PIECE))

    def write(self, step: Expr) -> None:
        """Write the units that were read for a step."""
        inside = self.inside(step) if self.cols % self.size.depth else None
        for index in range(self.count):
            piece = self.meant(vector(self._raw, index))
            if inside is not None:
                piece = tirx.Select(inside, piece, splat(tirx.const(0, "uint32")))
            self.put(index, 0, piece)

    def meant(self, piece: Expr) -> Expr:
        """What is multiplied of a piece that was read: itself."""
        return piece


class SubgroupSums:
    """The sums of one subgroup's part of the tile: matrix i * wide + j is row i, column j."""

    def __init__(self, size: TensorCoreTuning, thread: Expr) -> None:
        self.size = size
        self.lane = bind(tirx.floormod(thread, SUBGROUP))
        self.subgroup = bind(tirx.floordiv(thread, SUBGROUP))
        across = size.columns // size.warp_columns
        self.first_row = bind(tirx.floordiv(self.subgroup, across) * size.warp_rows)
        self.first_column = bind(tirx.floormod(self.subgroup, across) * size.warp_columns)
        self.tall, self.wide = size.warp_rows // SIDE, size.warp_columns // SIDE
        for total in range(self.tall * self.wide):
            clear(total)

    def multiply(self, memory: Buffer) -> None:
        """Add the products of a step's tiles."""
        size, pitch = self.size, self.size.row_pieces
        x = bind(self.first_row * pitch)
        w = bind(self.first_column * pitch + size.rows * pitch)
        for part in range(size.depth // SIDE):
            for i in range(self.tall):
                load_left(i, memory, x + (i * SIDE * pitch + part * SIDE_PIECES), pitch)
            for j in range(self.wide):
                load_right(j, memory, w + (j * SIDE * pitch + part * SIDE_PIECES), pitch)
            for i in range(self.tall):
                for j in range(self.wide):
                    multiply_add(i * self.wide + j, i, j)

    def finish(self, memory: Buffer, first: tuple[Expr, Expr], together: int, body: Store) -> None:
        """Run `body` on all sums, `together` vectors at a time; places begin at `first`.

        As many matrices at a time as the tiles' memory holds of every subgroup.
        """
        at_once = _matrices_at_once(self.size)
        pitch = at_once * SIDE_SUM_PIECES + SUM_PADDING
        base = bind(self.subgroup * (SIDE * pitch))
        for i in range(self.tall):
            for j in range(0, self.wide, at_once):
                barrier()  # the memory may still be being read
                for k in range(at_once):
                    store_sums(i * self.wide + j + k, memory, base + k * SIDE_SUM_PIECES, pitch)
                barrier()
                row = bind(first[0] + self.first_row + i * SIDE)
                column = bind(first[1] + self.first_column + j * SIDE)
                self._each(memory, base, at_once, pitch, (row, column), together, body)

    def _each(
        self,
        memory: Buffer,
        base: Expr,
        matrices: int,
        pitch: int,
        first: tuple[Expr, Expr],
        together: int,
        body: Store,
    ) -> None:
        """Neighbouring threads take neighbouring vectors of a row."""
        groups = matrices * SIDE_SUM_PIECES // together  # of a row
        with T.serial(0, SIDE * groups // SUBGROUP) as iteration:
            item = bind(iteration * SUBGROUP + self.lane)
            row, group = bind(tirx.floordiv(item, groups)), bind(tirx.floormod(item, groups))
            place = bind(base + row * pitch + group * together)
            vectors = [
                materialize(tirx.reinterpret(FLOATS, memory[place + i]), FLOATS)
                for i in range(together)
            ]
            body(bind(first[0] + row), bind(first[1] + group * (together * SUM_PIECE)), vectors)


def tile_pieces(size: TensorCoreTuning) -> int:
    """Pieces of both tiles."""
    return (size.rows + size.columns) * size.row_pieces


def _matrices_at_once(size: TensorCoreTuning) -> int:
    """Matrices of sums in a row of a subgroup's that fit into the tiles' memory."""
    subgroups, wide = size.threads // SUBGROUP, size.warp_columns // SIDE
    fitting = [
        count
        for count in range(1, wide + 1)
        if wide % count == 0
        and subgroups * SIDE * (count * SIDE_SUM_PIECES + SUM_PADDING) <= tile_pieces(size)
    ]
    assert fitting, "memory for a matrix of sums of every subgroup"
    return max(fitting)
