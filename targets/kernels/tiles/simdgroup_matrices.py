"""The product of a tile of x with a tile of W in Metal's simdgroup matrices.

A simdgroup multiplies matrices of 8 x 8, here of float32 (docs/adr/0038): sums are those of
products.py but for their order. How its threads share a matrix is Apple's secret, so that a kernel
touches them by load, store and multiply alone, with all 32 threads. Both tiles lie in threadgroup
memory channel by channel as in products.py, and the same loaders decode every packing; a product of
8 channels reads them as they lie, x transposed. What the next step needs is read before a step's
products. At the end each simdgroup takes its sums through the tiles' memory, 8 rows at a time,
because an epilogue wants them by place.

References
----------
Metal Shading Language Specification 2.3, "SIMD-group Matrix Data Types", "SIMD-group Matrix
Functions".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import bind
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import barrier, shared
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.tiles.loaders import (
    BANK_VECTORS,
    QUAD,
    VECTOR,
    Change,
    DenseLoader,
    Move,
    RowOf,
    Tile,
    WeightLoader,
    lane_of,
)
from gemma4_compile.targets.kernels.tiles.products import ITEM_BYTES, Finish, PipelinedProduct
from gemma4_compile.targets.simdgroup_tuning import SimdgroupTuning
from gemma4_compile.targets.spec import TargetSpec

SIMDGROUP = 32  # threads
SIDE = 8  # rows, columns and channels of a matrix
SIDE_VECTORS = SIDE // VECTOR
AS_FLOATS = "(threadgroup float*)"
PADDING = 1  # vectors after each channel: so channels begin in different banks


class Matrices(Protocol):
    """Matrices of a simdgroup, which calls name by their variable and a number."""

    @property
    def data(self) -> Expr:
        """The variable."""


def matrices(count: int) -> Matrices:
    """So many of them; NaN until something fills them."""
    return T.alloc_buffer((count * SIDE * SIDE,), "float32", scope="metal.simdgroup")


def clear(to: Matrices, number: int) -> None:
    """Set a matrix to 0."""
    T.evaluate(T.metal.make_filled_simdgroup_matrix(to.data, number, f32(0.0)))


def load(
    to: Matrices, number: int, memory: Buffer, place: Index, pitch: int, transposed: bool = False
) -> None:
    """Load a matrix from memory of float32 vectors, from vector `place` on.

    Parameters
    ----------
    pitch : vectors from a row to the next
    transposed : whether rows of memory are its columns
    """
    at = _address(memory, place)
    T.evaluate(
        T.metal.simdgroup_load(to.data, number, at, pitch * VECTOR, transpose_matrix=transposed)
    )


def load_rows(to: Matrices, number: int, first: Expr, pitch: int) -> None:
    """Load a matrix from a tensor of float32.

    Parameters
    ----------
    first : the element that it begins with
    pitch : elements from a row to the next
    """
    at = T.address_of(first)
    T.evaluate(T.metal.simdgroup_load(to.data, number, at, pitch, transpose_matrix=False))


def save(source: Matrices, number: int, memory: Buffer, place: Index, pitch: int) -> None:
    """Store a matrix as `load` finds it; other threads see it after a barrier."""
    at = _address(memory, place)
    T.evaluate(T.metal.simdgroup_store(source.data, number, at, pitch * VECTOR))


def multiply(
    total: tuple[Matrices, int],
    left: tuple[Matrices, int],
    right: tuple[Matrices, int],
    added: tuple[Matrices, int] | None = None,
) -> None:
    """``total = left right + added``, added to the total itself where nothing is given."""
    operands = (total, left, right, total if added is None else added)
    places = [part for one, number in operands for part in (one.data, number)]
    T.evaluate(T.metal.simdgroup_multiply_accumulate(*places))


@dataclass(frozen=True)
class SimdgroupShape:
    """Division of a threadgroup's work.

    Attributes
    ----------
    rows, columns, depth : rows of x, rows of W and channels of a step; multiples of 8
    part_rows, part_columns : of them, one simdgroup's
    """

    rows: int
    columns: int
    depth: int
    part_rows: int
    part_columns: int

    group: ClassVar[int] = 0  # no scales lie beside the tiles

    @classmethod
    def of(cls, size: SimdgroupTuning) -> SimdgroupShape:
        """The division by some sizes."""
        return cls(size.rows, size.columns, size.depth, size.part_rows, size.part_columns)

    @property
    def threads(self) -> int:
        """Threads of a threadgroup."""
        return self.rows // self.part_rows * (self.columns // self.part_columns) * SIMDGROUP

    @property
    def sum_pitch(self) -> int:
        """Float32 vectors from a row of a simdgroup's sums in memory to the next."""
        return self.part_columns // VECTOR + PADDING

    @property
    def vectors(self) -> int:
        """Memory of both tiles, or of 8 rows of sums of every simdgroup, in vectors."""
        tiles = self.depth * ((self.rows + self.columns) // VECTOR + 2 * PADDING)
        return max(tiles, self.threads // SIMDGROUP * SIDE * self.sum_pitch)

    @property
    def shared_bytes(self) -> int:
        """Threadgroup memory."""
        return self.vectors * VECTOR * ITEM_BYTES


def has_simdgroup_matrices(spec: TargetSpec, shape: SimdgroupShape) -> bool:
    """Return whether the target has them, and room for a tile."""
    fits = shape.shared_bytes <= spec.max_shared_memory_bytes
    return spec.simdgroup_matrices and fits and shape.threads <= spec.max_threads_per_block


class _MatrixTile(Tile):
    """A tile whose rows lie in eights side by side, in another order for each 8 channels.

    Threads that write the same rows of neighbouring channels hit as many banks as eights allow, and
    with the padding a matrix's 64 floats lie in every bank twice.
    """

    @property
    def pitch(self) -> int:
        """Vectors from a channel to the next."""
        return self.rows // VECTOR + PADDING

    def twisted(self, row_vector: Expr, twist: Expr) -> Expr:
        """See `Tile`; `twist` counts vectors of channels (`swizzle`)."""
        if self.depth != BANK_VECTORS * VECTOR:
            return row_vector
        return tirx.bitwise_xor(row_vector, tirx.bitwise_and(twist, BANK_VECTORS - SIDE_VECTORS))

    def place(self, item: Expr, row_vector: Expr) -> Expr:
        """See `Tile`."""
        return self.first + item * self.pitch + row_vector

    def matrix(self, part: Expr, row_vector: Expr) -> Expr:
        """Return where a matrix begins: of eight channels, by their number, and eight rows."""
        return self.place(part * SIDE, self.twisted(row_vector, part * SIDE_VECTORS))


class SimdgroupTileProduct(PipelinedProduct):
    """The sums of one tile of ``x W^T``; `TileProduct` with matrices.

    Parameters
    ----------
    x : one tensor (any, cols), the left matrix
    row_of_x, row_of_w : rows of the tensors by rows of the tile; clamped, so that all exist
    change : of x, four channels at a time, or None
    """

    def __init__(
        self,
        shape: SimdgroupShape,
        x: Sequence[Buffer],
        weights: WeightReader,
        thread: Expr,
        row_of_x: RowOf,
        row_of_w: RowOf,
        change: Change | None = None,
    ) -> None:
        self._shape = shape
        self._x = _MatrixTile(0, shape.rows, shape.depth)
        self._w = _MatrixTile(shape.depth * self._x.pitch, shape.columns, shape.depth)
        self._memory = shared((shape.vectors,), QUAD)
        simdgroup = bind(tirx.floordiv(thread, SIMDGROUP))
        self._simdgroup, self._lane = simdgroup, bind(tirx.floormod(thread, SIMDGROUP))
        across = shape.columns // shape.part_columns
        self._first_row = bind(tirx.floordiv(simdgroup, across) * shape.part_rows)
        self._first_column = bind(tirx.floormod(simdgroup, across) * shape.part_columns)
        self._tall, self._wide = shape.part_rows // SIDE, shape.part_columns // SIDE
        self._sums = matrices(self._tall * self._wide)
        self._left, self._right = matrices(self._tall), matrices(self._wide)
        for total in range(self._tall * self._wide):
            clear(self._sums, total)
        move_x = Move(self._x, thread, shape.threads, 0, row_of_x)
        move_w = Move(self._w, thread, shape.threads, self._x.blocks, row_of_w)
        self._loaders = DenseLoader(move_x, x[0], change), WeightLoader(move_w, weights)

    def _multiply(self) -> None:
        """Add the products of a step's channels, 8 at a time."""
        first_x = bind(self._first_row // VECTOR)
        first_w = bind(self._first_column // VECTOR)
        sides = (
            (self._left, self._tall, self._x, first_x, True),
            (self._right, self._wide, self._w, first_w, False),
        )
        with T.serial(0, self._shape.depth // SIDE) as part:
            for side, count, tile, first, transposed in sides:
                for i in range(count):
                    place = tile.matrix(part, first + i * SIDE_VECTORS)
                    load(side, i, self._memory, place, tile.pitch, transposed)
            for i in range(self._tall):
                for j in range(self._wide):
                    total = self._sums, i * self._wide + j
                    multiply(total, (self._left, i), (self._right, j))

    def finish(self, body: Finish) -> None:
        """Run ``body(row, first column, 4 sums)`` all over the tile; places are within it."""
        pitch, memory = self._shape.sum_pitch, self._memory
        base = bind(self._simdgroup * (SIDE * pitch))
        across = self._shape.part_columns // VECTOR
        for i in range(self._tall):
            barrier()  # the memory may still be being read
            for j in range(self._wide):
                save(self._sums, i * self._wide + j, memory, base + j * SIDE_VECTORS, pitch)
            barrier()
            with T.serial(0, SIDE * across // SIMDGROUP) as iteration:
                item = bind(iteration * SIMDGROUP + self._lane)
                row, four = bind(tirx.floordiv(item, across)), bind(tirx.floormod(item, across))
                sums = bind(memory[base + row * pitch + four])
                body(
                    bind(self._first_row + i * SIDE + row),
                    bind(self._first_column + four * VECTOR),
                    [bind(lane_of(sums, lane)) for lane in range(VECTOR)],
                )


def _address(memory: Buffer, place: Index) -> Expr:
    """Address of a vector's first element, by a cast of C's, which is printed as a call."""
    return tirx.call_extern("void", AS_FLOATS, T.address_of(memory[place]))
