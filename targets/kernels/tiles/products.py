"""The product of a tile of x with a tile of W: what matmuls of many rows share.

A block computes `TileShape.rows` rows of x by `TileShape.columns` rows of W, in steps of
`TileShape.depth` channels. Both tiles lie in shared memory channel by channel, so that a thread
reads the values of its rows as vectors. Threads that would be left over share a step's channels in
slices; their sums are added at the end. What the next step needs is read before a step's multiply.
Floats: here. Integers by groups: int8_products.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import bind, i32, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import barrier, local, shared
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.tiles.loaders import (
    BANK_VECTORS,
    VECTOR,
    Change,
    DenseLoader,
    Loader,
    Move,
    RowOf,
    Tile,
    WeightLoader,
    below,
    lane_of,
    put,
    same_bits,
    splat,
    swizzle,
    vector,
)
from gemma4_compile.targets.spec import TargetSpec

LANES_M, LANES_N = 4, 8  # of 32 neighbouring threads: so they read the fewest different vectors
ITEM_BYTES = 4
Finish = Callable[[Expr, Expr, Sequence[Expr]], None]


@dataclass(frozen=True)
class TileShape:
    """Division of a block's work.

    Attributes
    ----------
    rows, columns, depth : rows of x, rows of W and items of a step: channels, or words of int8
    thread_m, thread_n : rows of x and of W that one thread sums
    threads : of the block
    unroll : items of a multiply that stand in the kernel's text, 1 or 4
    group : items that have a scale in shared memory for each row, 0 if none
    minima : whether each row of W has an offset beside the scale
    """

    rows: int
    columns: int
    depth: int
    thread_m: int
    thread_n: int
    threads: int
    unroll: int = VECTOR
    group: int = 0
    minima: bool = False

    @property
    def cover(self) -> int:
        """Threads that cover the tile once."""
        return self.rows // self.thread_m * (self.columns // self.thread_n)

    @property
    def slices(self) -> int:
        """Covers, each with its own items of a step."""
        return self.threads // self.cover

    @property
    def vec4s(self) -> int:
        """Vectors of items in a step."""
        return self.depth // VECTOR

    @property
    def iterations(self) -> int:
        """Vectors of items, or groups, that slices share."""
        return self.depth // self.group if self.group else self.vec4s

    @property
    def vectors(self) -> int:
        """Vectors of sums of a thread."""
        return self.thread_m * self.thread_n // VECTOR

    @property
    def stage_vectors(self) -> int:
        """Vectors of both tiles of a step."""
        return (self.rows + self.columns) * self.vec4s

    @property
    def scale_vectors(self) -> int:
        """Vectors of both tiles' scales of a step."""
        numbers = self.rows + self.columns * (2 if self.minima else 1)
        return numbers // VECTOR * self.iterations if self.group else 0

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return (self.stage_vectors + self.scale_vectors) * VECTOR * ITEM_BYTES

    @property
    def finished_at_once(self) -> int:
        """Vectors of every thread's sums that fit into shared memory together; divides all."""
        fitting = self.stage_vectors // self.threads
        counts = range(self.slices, min(fitting, self.vectors) + 1, self.slices)
        return max((count for count in counts if self.vectors % count == 0), default=0)


def fit_shape(shape: TileShape, spec: TargetSpec) -> TileShape:
    """The shape with as many threads and channels a step as the target allows."""
    while shape.cover > spec.max_threads_per_block:
        shape = replace(shape, rows=shape.rows // 2)
    while shape.shared_bytes > spec.max_shared_memory_bytes:
        shape = replace(shape, depth=shape.depth // 2)
    while (
        shape.threads > spec.max_threads_per_block
        or shape.slices > shape.iterations
        or not shape.finished_at_once
    ):
        assert shape.slices > 1, "shared memory for the sums of a cover"
        shape = replace(shape, threads=shape.threads // 2)
    assert min(shape.rows, shape.columns) >= BANK_VECTORS * VECTOR, "vectors of rows fill the banks"
    assert shape.depth % (shape.group or VECTOR) == 0, "items are moved by vectors and groups"
    assert shape.columns // shape.thread_n % LANES_N == 0, "threads side by side"
    assert shape.rows // shape.thread_m % LANES_M == 0, "threads one below the other"
    assert shape.slices * shape.cover == shape.threads, "a slice covers the tile"
    assert shape.iterations % shape.slices == 0, "slices of equal depth"
    return shape


class PipelinedProduct(ABC):
    """A sum over steps: the tiles of the next one are read while those of a step are multiplied."""

    _memory: Buffer
    _loaders: Sequence[Loader]

    def run(self, steps: Expr) -> None:
        """Add the products of all steps; the number is the same in the whole block."""
        self._read(i32(0))
        with T.serial(0, steps) as step:
            barrier()  # the tiles of the step before may still be being read
            self._write(step)
            barrier()
            self._read(tirx.min(step + 1, steps - 1))
            self._multiply()

    def _read(self, step: Expr) -> None:
        following = bind(step)
        for loader in self._loaders:
            loader.read(following)

    def _write(self, step: Expr) -> None:
        for loader in self._loaders:
            loader.write(step, self._memory)

    @abstractmethod
    def _multiply(self) -> None:
        """Add the product of a step's tiles, or this thread's share of it."""


class TileProduct(PipelinedProduct):
    """The sums of one tile of ``x W^T``.

    Parameters
    ----------
    dtype : of an item in shared memory
    """

    def __init__(self, shape: TileShape, thread: Expr, dtype: str) -> None:
        self._shape, self._dtype = shape, dtype
        self._memory = shared((shape.stage_vectors * VECTOR,), dtype)
        self._x = Tile(0, shape.rows, shape.depth)
        first = shape.rows * shape.depth // VECTOR
        self._w = Tile(first, shape.columns, shape.depth)
        self._slice = bind(tirx.floordiv(thread, shape.cover)) if shape.slices > 1 else i32(0)
        self._in_cover = bind(below(thread, shape.cover)) if shape.slices > 1 else thread
        warp = tirx.floordiv(self._in_cover, LANES_M * LANES_N)
        across = shape.columns // shape.thread_n // LANES_N
        lane_m = tirx.floormod(tirx.floordiv(self._in_cover, LANES_N), LANES_M)
        lane_n = tirx.floormod(self._in_cover, LANES_N)
        self._m = bind(lane_m + LANES_M * tirx.floordiv(warp, across))
        self._n = bind(lane_n + LANES_N * tirx.floormod(warp, across))
        self._sums = local((shape.vectors * VECTOR,))
        for index in range(shape.vectors):
            put(self._sums, index, splat(f32(0.0)))
        self._loaders = ()

    def _rows_of(self, vec4: Expr) -> tuple[list[Expr], list[Expr]]:
        """Return where the thread's vectors of rows of x and of W lie, for the items of a vec4."""
        shape = self._shape
        sides = (
            (self._x, self._m, shape.rows // shape.thread_m, shape.thread_m // VECTOR),
            (self._w, self._n, shape.columns // shape.thread_n, shape.thread_n // VECTOR),
        )
        twist = bind(swizzle(vec4, shape.vec4s))
        left, right = (
            [bind(tile.twisted(mine + part * lanes, twist)) for part in range(parts)]
            for tile, mine, lanes, parts in sides
        )
        return left, right

    def _each_item(self, vec4: Expr, body: Callable[[Expr], None]) -> None:
        """Run ``body(item)`` for the items of a vec4."""
        if self._shape.unroll == 1:
            with T.serial(0, VECTOR) as j:
                body(vec4 * VECTOR + j)
        else:
            for j in range(VECTOR):
                body(vec4 * VECTOR + j)

    def finish(self, body: Finish) -> None:
        """Add the slices' sums and run ``body(row, first column, 4 sums)`` all over the tile.

        Row and columns are within the tile. The threads of all slices share the work.
        """
        shape, memory, at_once = self._shape, self._memory, self._shape.finished_at_once
        thread = self._slice * shape.cover + self._in_cover

        def total_at(place: Expr) -> Expr:
            return same_bits(vector(memory, place), self._dtype, "float32")

        with T.serial(0, shape.vectors // at_once) as part:
            barrier()
            for first in range(0, shape.vectors, at_once):  # registers have no variable index
                with when(part == first // at_once):
                    for index in range(at_once):
                        value = same_bits(vector(self._sums, first + index), "float32", self._dtype)
                        put(memory, index * shape.threads + thread, value)
            barrier()
            with T.serial(0, at_once // shape.slices) as iteration:
                mine = bind(iteration * shape.slices + self._slice)
                place = bind(mine * shape.threads + self._in_cover)
                total = total_at(place)
                for other in range(1, shape.slices):
                    total = total + total_at(place + other * shape.cover)
                sums = bind(total)
                row, column = self._position(bind(mine + part * at_once))
                body(row, column, [bind(lane_of(sums, lane)) for lane in range(VECTOR)])

    def _position(self, index: Expr) -> tuple[Expr, Expr]:
        """Row and first column of a thread's vector of sums within the tile."""
        shape, parts = self._shape, self._shape.thread_n // VECTOR
        i, j = bind(tirx.floordiv(index, parts)), bind(tirx.floormod(index, parts))
        height = shape.rows // shape.thread_m * VECTOR
        below = tirx.floordiv(i, VECTOR) * height + tirx.floormod(i, VECTOR)
        width = shape.columns // shape.thread_n * VECTOR
        return bind(below + self._m * VECTOR), bind(j * width + self._n * VECTOR)


class FloatTileProduct(TileProduct):
    """Both tiles as float32.

    Parameters
    ----------
    x : (any, cols), the left matrix
    row_of_x, row_of_w : rows of the tensors by rows of the tile; clamped, so that all exist
    change : of x, four channels at a time, or None
    """

    def __init__(
        self,
        shape: TileShape,
        x: Buffer,
        weights: WeightReader,
        thread: Expr,
        row_of_x: RowOf,
        row_of_w: RowOf,
        change: Change | None = None,
    ) -> None:
        super().__init__(shape, thread, "float32")
        move_x = Move(self._x, thread, shape.threads, 0, row_of_x)
        move_w = Move(self._w, thread, shape.threads, self._x.blocks, row_of_w)
        self._loaders = DenseLoader(move_x, x, change), WeightLoader(move_w, weights)

    def _multiply(self) -> None:
        shape = self._shape
        with T.serial(0, shape.iterations // shape.slices) as iteration:
            vec4 = bind(iteration * shape.slices + self._slice)
            left, right = self._rows_of(vec4)
            self._each_item(vec4, lambda channel: self._add_channel(channel, left, right))

    def _add_channel(self, channel: Expr, left: Sequence[Expr], right: Sequence[Expr]) -> None:
        shape, sums = self._shape, self._sums
        a = [bind(vector(self._memory, self._x.place(channel, at))) for at in left]
        b = [bind(vector(self._memory, self._w.place(channel, at))) for at in right]
        for i in range(shape.thread_m):
            value = splat(lane_of(a[i // VECTOR], i % VECTOR))
            for j, item in enumerate(b):
                index = i * len(b) + j
                put(sums, index, vector(sums, index) + value * item)
