"""Matrix times many rows in subgroup matrices: float16 operands, float32 sums.

Definition: `BoundedLinear` in operators/bounded_linear.py. As in tensor_core_gemm.py both tiles lie
in shared memory row by row as halves, weights are decoded on their way there, and what the next
step needs is read before a step's products. At the end the sums go through the tiles' memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.linear import DENSE, INTEGERS, WeightLayout
from gemma4_compile.operators.packings import BYTES
from gemma4_compile.operators.tir import bind, function, i32, materialize, store
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import barrier, launch, local
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.bounded_operands import BoundedOperands
from gemma4_compile.targets.kernels.tiles.loaders import (
    VECTOR,
    RowOf,
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
    clear,
    halves_of,
    has_subgroup_matrices,
    load_left,
    load_right,
    multiply_add,
    piece_of,
    read_piece,
    store_sums,
)
from gemma4_compile.targets.kernels.tiles.tensor_cores import PIECE, shared_pieces
from gemma4_compile.targets.spec import TargetSpec
from gemma4_compile.targets.tuning import TensorCoreTuning

HALF, FLOATS = "float16", f"float32x{VECTOR}"
WEIGHTS = 16  # of a row, that a thread reads at a time: four words of bytes
SUM_PADDING = 2  # pieces after each row of sums: so rows begin in different banks
# As a half, 0x6400 is 1024, whose last ten bits count ones.
COUNTING, COUNTED = 0x64006400, 1024


def fits_subgroup_matrices(operator: BoundedLinear, spec: TargetSpec) -> bool:
    """Return whether the target has them and the operands are halves that move in pieces."""
    layout = operator.layout
    halves = operator.in_dtype == layout.dtype == HALF
    is_bytes = layout.form == INTEGERS and layout.packing == BYTES
    is_bytes = is_bytes and layout.group_size % WEIGHTS == 0
    forms = layout.form == DENSE or is_bytes
    return has_subgroup_matrices(spec) and halves and forms and operator.cols % WEIGHTS == 0


class _Loader:
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
        tile_rows = [
            bind(tirx.floordiv(thread + index * size.threads, self._units))
            for index in range(self.count)
        ]
        self.rows = [bind(row_of(row)) for row in tile_rows]
        self._places = [
            bind(row * size.row_pieces + self._unit * (unit // PIECE) + first) for row in tile_rows
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


class _RowsLoader(_Loader):
    """Rows of x within bounds; 0 beyond the last channel."""

    def __init__(
        self,
        size: TensorCoreTuning,
        x: Buffer,
        memory: Buffer,
        thread: Expr,
        row_of: RowOf,
        bounds: Sequence[Expr],
    ) -> None:
        super().__init__(size, PIECE, int(x.shape[1]), memory, 0, size.rows, thread, row_of)
        self._x, self._bounds = x, bounds[:2]
        self._raw = local((self.count * VECTOR,), "uint32")

    def read(self, step: Expr) -> None:
        """Read a step's units."""
        at = self.at(step)
        for index, row in enumerate(self.rows):
            put(self._raw, index, read_piece(self._x, row, at * PIECE))

    def write(self, step: Expr) -> None:
        """Write the units that were read for a step."""
        inside = self.inside(step) if self.cols % self.size.depth else None
        for index in range(self.count):
            piece = vector(self._raw, index)
            if self._bounds:
                piece = piece_of([self._bounded(four) for four in halves_of(piece)])
            if inside is not None:
                piece = tirx.Select(inside, piece, splat(tirx.const(0, "uint32")))
            self.put(index, 0, piece)

    def _bounded(self, four: Expr) -> Expr:
        low, high = (splat(bound) for bound in self._bounds)
        wide = tirx.max(tirx.min(four.astype(FLOATS), high), low)
        return materialize(wide.astype(f"{HALF}x{VECTOR}"), f"{HALF}x{VECTOR}")


class _WeightsLoader(_Loader):
    """Rows of a stored matrix; beyond the last channel some of its values."""

    def __init__(
        self,
        size: TensorCoreTuning,
        weights: WeightReader,
        memory: Buffer,
        thread: Expr,
        row_of: RowOf,
    ) -> None:
        first = size.rows * size.row_pieces
        super().__init__(
            size, WEIGHTS, weights.layout.cols, memory, first, size.columns, thread, row_of
        )
        self._weights = weights
        self._is_integers = weights.layout.form == INTEGERS
        if self._is_integers:
            self._words = local((self.count * VECTOR,), "uint32")
            self._scales = local((self.count,), HALF)
        else:
            self._raw = local((self.count * WEIGHTS // 2,), "uint32")

    def read(self, step: Expr) -> None:
        """Read a step's units, and their scales."""
        layout, at = self._weights.layout, self.at(step)
        for index, row in enumerate(self.rows):

            def read(
                split: Sequence[Buffer], begin: int, index: int = index, row: Expr = row
            ) -> None:
                if not self._is_integers:
                    for piece in range(WEIGHTS // PIECE):
                        first = at * WEIGHTS + piece * PIECE
                        value = read_piece(split[0], row - begin, first)
                        put(self._raw, index * 2 + piece, value)
                    return
                words = split[0][row - begin, T.ramp(at * VECTOR, 1, VECTOR)]
                put(self._words, index, words)
                group = tirx.floordiv(at, layout.group_size // WEIGHTS)
                store(self._scales, split[1][row - begin, group], index)

            self._weights.in_split(row, read)

    def write(self) -> None:
        """Write the units that were read for a step."""
        for index in range(self.count):
            for piece in range(WEIGHTS // PIECE):
                if self._is_integers:
                    value = self._decoded(index, piece)
                else:
                    value = vector(self._raw, index * 2 + piece)
                self.put(index, piece, value)

    def _decoded(self, index: int, piece: int) -> Expr:
        """Eight scaled bytes of two words as the halves of a piece."""
        layout: WeightLayout = self._weights.layout
        zero = T.Broadcast(tirx.const(COUNTED + layout.packing.zero_point, HALF), 2)
        scale = T.Broadcast(self._scales[index], 2)
        found = []
        for half in range(2):
            word = bind(lane_of(vector(self._words, index), piece * 2 + half))
            for low in (0, 16):
                two = tirx.shift_right(word, _bits(low)) if low else word
                two = bind(two)
                spread = tirx.bitwise_or(
                    tirx.bitwise_and(two, _bits(0xFF)),
                    tirx.bitwise_and(tirx.shift_left(two, _bits(8)), _bits(0xFF0000)),
                )
                counting = tirx.reinterpret("float16x2", tirx.bitwise_or(spread, _bits(COUNTING)))
                found.append(tirx.reinterpret("uint32", (counting - zero) * scale))
        return joined(found)


def _bits(value: int) -> Expr:
    return tirx.const(value, "uint32")


class _SubgroupSums:
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

    def finish(
        self,
        memory: Buffer,
        args: BoundedOperands,
        first: tuple[Expr, Expr],
        limits: Sequence[Expr],
        last: Expr,
    ) -> None:
        """Store the epilogue of all sums; `first` is the tile's first row and weight row.

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
                self._store(memory, base, at_once, pitch, args, (row, column), limits, last)

    def _store(
        self,
        memory: Buffer,
        base: Expr,
        matrices: int,
        pitch: int,
        args: BoundedOperands,
        first: tuple[Expr, Expr],
        limits: Sequence[Expr],
        last: Expr,
    ) -> None:
        """Neighbouring threads store neighbouring vectors of a row."""
        together = args.vectors_at_once
        groups = matrices * SIDE_SUM_PIECES // together  # of a row
        with T.serial(0, SIDE * groups // SUBGROUP) as iteration:
            item = bind(iteration * SUBGROUP + self.lane)
            row, group = bind(tirx.floordiv(item, groups)), bind(tirx.floormod(item, groups))
            place = bind(base + row * pitch + group * together)
            vectors = [
                materialize(tirx.reinterpret(FLOATS, memory[place + i]), FLOATS)
                for i in range(together)
            ]
            to = bind(first[0] + row), bind(first[1] + group * (together * SUM_PIECE))
            if args.stores_vectors:
                args.store_vectors(*to, vectors, limits, last)
            else:
                sums = [bind(lane_of(four, i)) for four in vectors for i in range(SUM_PIECE)]
                args.store_sums(*to, sums, limits, last)


def _tile_pieces(size: TensorCoreTuning) -> int:
    """Pieces of both tiles."""
    return (size.rows + size.columns) * size.row_pieces


def _matrices_at_once(size: TensorCoreTuning) -> int:
    """Matrices of sums in a row of a subgroup's that fit into the tiles' memory."""
    subgroups, wide = size.threads // SUBGROUP, size.warp_columns // SIDE
    fitting = [
        count
        for count in range(1, wide + 1)
        if wide % count == 0
        and subgroups * SIDE * (count * SIDE_SUM_PIECES + SUM_PADDING) <= _tile_pieces(size)
    ]
    assert fitting, "memory for a matrix of sums of every subgroup"
    return max(fitting)


def make_subgroup_matrix_gemm(operator: BoundedLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """Clip x on its way to shared memory, sums before the epilogue.

    Grid: W's rows / tile x rows / tile. Shared: both tiles. Reference: `BoundedLinear.definition`.
    """
    rows, cols = operator.layout.rows, operator.cols
    size = spec.tuning.subgroup_matrices.tile(rows)
    with function(scheduled=True) as build:
        args = BoundedOperands.declare(build, operator)
        n, x, weights = args.rows, args.x, args.weights
        grid = -(-rows // size.columns), tirx.floordiv(n + (size.rows - 1), size.rows)
        with launch(size.threads, *grid) as (block_n, tile, thread):
            block_m = bind(i32(tile))
            limits, last = args.limits(), bind(i32(n) - 1)
            first_m, first_n = bind(block_m * size.rows), bind(block_n * size.columns)
            memory = shared_pieces(_tile_pieces(size))
            left = _RowsLoader(
                size, x, memory, thread, lambda i: tirx.min(first_m + i, last), limits
            )
            right = _WeightsLoader(
                size, weights, memory, thread, lambda i: tirx.min(first_n + i, rows - 1)
            )
            sums, steps = _SubgroupSums(size, thread), -(-cols // size.depth)
            left.read(i32(0))
            right.read(i32(0))
            with T.serial(0, steps) as step:
                barrier()  # the tiles of the step before may still be being read
                left.write(step)
                right.write()
                barrier()
                following = bind(tirx.min(step + 1, steps - 1))
                left.read(following)
                right.read(following)
                sums.multiply(memory)
            sums.finish(memory, args, (first_m, first_n), limits, last)
    return build.result
