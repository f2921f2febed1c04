"""Loading of tiles into shared memory: a thread moves blocks of 4 rows by 4 channels.

It reads along the channels, as tensors lie, and writes along the rows, as the multiply reads. What
it read waits in registers as it is stored; it is decoded when it is written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.linear import DENSE, INTEGERS
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.packing import word
from gemma4_compile.operators.tir import bind, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import local
from gemma4_compile.targets.kernels.common.weights import WeightReader, group_terms

VECTOR = 4
BANK_VECTORS = 8  # vectors of float32 that lie side by side in the banks of shared memory
QUAD = f"float32x{VECTOR}"  # elements of shared memory of which addresses are taken
RowOf = Callable[[Expr], Expr]  # row within a tile -> row of the tensor
Change = Callable[[Expr], Expr]


def vector(buffer: Buffer, index: Index) -> Expr:
    """Vector `index` of a flat buffer; all accesses of such a buffer are vectors."""
    return buffer[T.ramp(index * VECTOR, 1, VECTOR)]


def put(buffer: Buffer, index: Index, value: Expr) -> None:
    """Overwrite vector `index` of a flat buffer."""
    store(buffer, value, T.ramp(index * VECTOR, 1, VECTOR))


def splat(value: Expr) -> Expr:
    """A vector of equal values."""
    return T.Broadcast(value, VECTOR)


def splat_word(value: int) -> Expr:
    """A vector of equal words."""
    return splat(word(value))


def lane_of(value: Expr, lane: int) -> Expr:
    """One value of a vector."""
    return tirx.Shuffle([value], [lane])


def joined(values: Sequence[Expr]) -> Expr:
    """A vector of scalars."""
    return tirx.Shuffle(list(values), list(range(VECTOR)))


def same_bits(value: Expr, dtype: str, wanted: str) -> Expr:
    """The bits of a vector of `dtype` as elements of another type of the same size."""
    return value if dtype == wanted else tirx.reinterpret(f"{wanted}x{VECTOR}", value)


def below(value: Expr, size: int) -> Expr:
    """``value mod size`` in a form whose bound browsers see, so that they do not clamp an index."""
    unsigned = tirx.truncmod(value.astype("uint32"), tirx.const(size, "uint32"))
    return unsigned.astype("int32")


def swizzle(vec4: Expr, vec4s: int) -> Expr:
    """Return what the position of a vector of rows is XORed with, by its channels' number.

    Neighbouring threads write different channels of the same rows; so they hit different banks.
    """
    return vec4 * (BANK_VECTORS // vec4s) if vec4s < BANK_VECTORS else tirx.floormod(vec4, 8)


@dataclass(frozen=True)
class Tile:
    """Rows by items in shared memory, item by item: channels in float32, or words of int8.

    Attributes
    ----------
    first : the tile's first vector in its flat buffer
    depth : items
    """

    first: int
    rows: int
    depth: int

    @property
    def vec4s(self) -> int:
        """Vectors of items."""
        return self.depth // VECTOR

    @property
    def blocks(self) -> int:
        """Blocks of 4 rows by 4 items."""
        return self.rows // VECTOR * self.vec4s

    def twisted(self, row_vector: Expr, twist: Expr) -> Expr:
        """A vector of rows after the swizzle."""
        return below(tirx.bitwise_xor(row_vector, twist), self.rows // VECTOR)

    def place(self, item: Expr, row_vector: Expr) -> Expr:
        """Return where a vector of rows is; `row_vector` is twisted already."""
        return self.first + item * (self.rows // VECTOR) + row_vector

    def put(self, memory: Buffer, vec4: Expr, row_vector: Expr, values: Sequence[Expr]) -> None:
        """Write a vector of rows for each of 4 items, those of vector `vec4` of a row.

        Into flat memory, or into memory of vectors; `row_vector` is twisted already.
        """
        for j, value in enumerate(values):
            place = self.place(vec4 * VECTOR + j, row_vector)
            if str(memory.dtype) == QUAD:
                store(memory, value, place)
            else:
                put(memory, place, value)


@dataclass(frozen=True)
class Move:
    """What a loader moves, and who does it.

    Attributes
    ----------
    tile : where to
    thread, threads : of the block
    skipped : blocks that other loaders move, so that the work is spread over the threads
    row_of : clamped, so that every row exists
    """

    tile: Tile
    thread: Expr
    threads: int
    skipped: int
    row_of: RowOf

    @property
    def mine(self) -> Expr:
        """The thread's first block."""
        skipped = self.skipped % self.threads
        if not skipped:
            return self.thread
        return tirx.floormod(self.thread + (self.threads - skipped), self.threads)


class Loader(ABC):
    """Moves one tile, step by step."""

    def __init__(self, move: Move) -> None:
        tile, threads, row_of, mine = move.tile, move.threads, move.row_of, move.mine
        self._tile, self._threads = tile, threads
        self._iterations = -(-tile.blocks // threads)
        self._items = [bind(mine + iteration * threads) for iteration in range(self._iterations)]
        self._vec4s = [bind(below(item, tile.vec4s)) for item in self._items]
        self._row_vectors = [bind(tirx.floordiv(item, tile.vec4s)) for item in self._items]
        self._rows = [
            [bind(row_of(row_vector * VECTOR + i)) for i in range(VECTOR)]
            for row_vector in self._row_vectors
        ]

    def read(self, step: Expr) -> None:
        """Read a step's items into registers."""
        for iteration in range(self._iterations):
            with self._inside(iteration):
                self.read_block(
                    iteration,
                    self._rows[iteration],
                    bind(step * self._tile.vec4s + self._vec4s[iteration]),
                )

    def write(self, step: Expr, memory: Buffer) -> None:
        """Write what was read for a step."""
        tile = self._tile
        for iteration in range(self._iterations):
            with self._inside(iteration):
                vec4 = self._vec4s[iteration]
                twist = swizzle(vec4, tile.vec4s)
                at = bind(tile.twisted(self._row_vectors[iteration], twist))
                first = bind(step * tile.depth + vec4 * VECTOR)
                tile.put(memory, vec4, at, self.decode_block(iteration, first))

    def _inside(self, iteration: int) -> ExitStack:
        """Leaves out the threads that have no block in this iteration."""
        stack = ExitStack()
        if (iteration + 1) * self._threads > self._tile.blocks:
            stack.enter_context(when(self._items[iteration] < self._tile.blocks))
        return stack

    @abstractmethod
    def read_block(self, iteration: int, rows: Sequence[Expr], vec4: Expr) -> None:
        """Read 4 items of 4 rows: those of vector `vec4` of a row."""

    @abstractmethod
    def decode_block(self, iteration: int, item: Expr) -> list[Expr]:
        """Return a vector of the rows for each of 4 items that were read, from `item` on."""


class DenseLoader(Loader):
    """Rows of one tensor of floats; channels beyond its last are 0.

    Parameters
    ----------
    change : of what was read, four float32 at a time, or None
    """

    def __init__(self, move: Move, source: Buffer, change: Change | None = None) -> None:
        super().__init__(move)
        self._change = change
        self._source, self._cols = source, int(source.shape[1])
        self._raw = local((self._iterations * VECTOR * VECTOR,), str(source.dtype))

    def read_block(self, iteration: int, rows: Sequence[Expr], vec4: Expr) -> None:
        """See `Loader`."""
        for i, row in enumerate(rows):
            put(self._raw, iteration * VECTOR + i, read_vector(self._source, row, vec4))

    def decode_block(self, iteration: int, item: Expr) -> list[Expr]:
        """See `Loader`."""
        rows = [vector(self._raw, iteration * VECTOR + i) for i in range(VECTOR)]
        rows = [row.astype("float32x4") for row in rows]
        if self._change is not None:
            rows = [self._change(bind(row)) for row in rows]
        values = transposed(rows)
        if self._cols % self._tile.depth == 0:
            return values
        return [
            tirx.Select(item + j < self._cols, value, splat(f32(0.0)))
            for j, value in enumerate(values)
        ]


class WeightLoader(Loader):
    """Rows of a stored matrix; channels beyond its last are some of its values."""

    def __init__(self, move: Move, weights: WeightReader) -> None:
        super().__init__(move)
        self._weights, layout = weights, weights.layout
        size = self._iterations * VECTOR
        self._has_minima = isinstance(layout, MinimaLayout)
        self._is_integers = layout.form == INTEGERS or self._has_minima
        if self._is_integers:
            # Of each row and four channels the word, or the words, that have their bits.
            self._parts = len(layout.packing.quad_places(move.thread))
            self._words = local((size * self._parts,), "uint32")
            self._scales = local((size,), "float32" if self._has_minima else layout.dtype)
            self._minima = local((size,)) if self._has_minima else None
        else:
            dtype = layout.dtype if layout.form == DENSE else "float32"
            self._dense = local((size * VECTOR,), dtype)

    def read_block(self, iteration: int, rows: Sequence[Expr], vec4: Expr) -> None:
        """See `Loader`."""
        layout = self._weights.layout

        def read(split: Sequence[Buffer], begin: int) -> None:
            at = vec4
            if self._is_integers and layout.cols % self._tile.depth:
                at = bind(tirx.min(vec4, layout.cols // VECTOR - 1))
            for i, row in enumerate(rows):
                index, inside = iteration * VECTOR + i, row - begin
                if self._is_integers:
                    for part, (word, _) in enumerate(layout.packing.quad_places(at)):
                        place = (iteration * self._parts + part) * VECTOR + i
                        store(self._words, split[0][inside, word], place)
                    group = tirx.floordiv(at, layout.group_size // VECTOR)
                    if self._minima is None:
                        store(self._scales, split[1][inside, group], index)
                        continue
                    scale, minimum = group_terms(layout, split, bind(inside), bind(group))
                    assert minimum is not None, "the layout has minima"
                    store(self._scales, scale, index)
                    store(self._minima, minimum, index)
                else:
                    put(self._dense, index, self._read_vector(split, inside, at))

        self._weights.in_split(rows[0], read)

    def _read_vector(self, split: Sequence[Buffer], row: Expr, vec4: Expr) -> Expr:
        """Four channels of a row that is no integers."""
        layout = self._weights.layout
        if layout.form == DENSE:
            return read_vector(split[0], row, vec4)
        cols = [tirx.min(vec4 * VECTOR + j, layout.cols - 1) for j in range(VECTOR)]
        return joined([layout.element(split, row, col) for col in cols])

    def decode_block(self, iteration: int, item: Expr) -> list[Expr]:
        """See `Loader`."""
        layout = self._weights.layout
        indices = range(iteration * VECTOR, (iteration + 1) * VECTOR)
        if not self._is_integers:
            rows = [vector(self._dense, index).astype("float32x4") for index in indices]
            return transposed(rows)
        packing, shifted = layout.packing, []
        for part, (_, below) in enumerate(packing.quad_places(self._vec4s[iteration])):
            first = (iteration * self._parts + part) * VECTOR
            words = joined([self._words[first + i] for i in range(VECTOR)])
            shifted.append(bind(tirx.shift_right(words, splat(below.astype("uint32")))))
        scales = bind(joined([self._scales[index] for index in indices]).astype("float32x4"))
        values = []
        for j in range(VECTOR):
            integer = packing.quad_integer(shifted, j, _words_of)
            if self._minima is not None:
                lowest = joined([self._minima[index] for index in indices])
                values.append(integer.astype("float32x4") * scales - lowest)
                continue
            zero_point = splat(f32(packing.zero_point))
            values.append((integer.astype("float32x4") - zero_point) * scales)
        return values


def _words_of(value: int) -> Expr:
    return splat(tirx.const(value, "uint32"))


def read_vector(source: Buffer, row: Expr, vec4: Expr) -> Expr:
    """Channels from ``4 * vec4`` of a row, of the tensor's dtype; some others beyond the last."""
    cols = int(source.shape[1])
    if cols % VECTOR == 0:
        return source[row, T.ramp(tirx.min(vec4, cols // VECTOR - 1) * VECTOR, 1, VECTOR)]
    return joined([source[row, tirx.min(vec4 * VECTOR + j, cols - 1)] for j in range(VECTOR)])


def transposed(rows: Sequence[Expr]) -> list[Expr]:
    """4 vectors of a block's columns from those of its rows."""
    named = [bind(row) for row in rows]
    return [joined([lane_of(row, j) for row in named]) for j in range(VECTOR)]
