"""Products of bytes by warps: some rows of a matrix with up to 8 packed rows, on tensor cores.

A block takes tiles of 8 rows of the matrix, for up to 8 rows of x, which are the two sides of one
product of bytes. Its warps divide the channels: a warp takes a few groups at a time, with what it
needs next read before their products. Lanes read 16 bytes of weights each, neighbouring ones of a
row, and hand them on through shared memory, so that a lane has what a product wants of it: four
bytes of one row and one group. Channels are multiplied in the order in which their weights lie in a
word, which x follows. Warps' sums meet in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.tir import bind, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    add,
    barrier,
    local,
    shared,
    strided,
    tree,
)
from gemma4_compile.targets.kernels.common.tensor_cores import (
    BYTE_ROWS,
    BYTE_SUMS,
    PIECE_WORDS,
    WARP,
    address,
    copy_half_piece,
    copy_piece,
    load_matrices,
    multiply_add_bytes,
    shared_pieces,
    stream_piece,
    warp_barrier,
)
from gemma4_compile.targets.kernels.common.tile_loaders import RowOf
from gemma4_compile.targets.kernels.common.vectors import Vectors
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.few_row_tensor_core_shape import (
    ROW_LANES,
    STEP_PIECES,
    TILE_PIECES,
    TensorCoreShape,
)
from gemma4_compile.targets.kernels.linear.int8_vectors import VEC4S

MAGIC = 0x4B400000
"""As a float32 3 * 2**22, whose last bits count ones: integers are summed onto it as integers, and
the difference to it is the sum as a float32."""


class Warp:
    """One warp's lanes, each with its place in a product, and its steps over the channels.

    Attributes
    ----------
    lane : of the warp
    row, quarter : of a product the lane's row of either side, and its quarter of the channels
    number : of the warp in its block
    band, part : which rows of the block are the warp's, and which of their channels
    """

    def __init__(self, shape: TensorCoreShape, thread: Expr) -> None:
        self.shape = shape
        self.lane = bind(tirx.floormod(thread, WARP))
        self.number = bind(tirx.floordiv(thread, WARP))
        self.band = bind(tirx.floordiv(self.number, shape.warps))
        self.part = bind(tirx.floormod(self.number, shape.warps))
        self.row = bind(tirx.floordiv(self.lane, ROW_LANES))
        self.quarter = bind(tirx.floormod(self.lane, ROW_LANES))

    def group(self, step: Expr, index: int, width: int = 1) -> Expr:
        """A step's group, the first of `width`; beyond the last some that there are."""
        group = step * self.shape.groups + index
        if self.shape.is_ragged:
            group = tirx.min(group, self.shape.all_groups - width)
        return bind(group)


class Weights:
    """What a warp reads of the matrix: a step's pieces of 16 bytes, and the groups' scales.

    Parameters
    ----------
    first : a row of the split that holds all of the block's
    row_of : from a row of the block to one of the matrix; clamped, so that it exists
    """

    def __init__(self, warp: Warp, reader: WeightReader, first: Expr, row_of: RowOf) -> None:
        shape, layout = warp.shape, reader.layout
        self._warp, self._reader, self._first = warp, reader, first
        own = warp.band * (shape.tiles * BYTE_ROWS) + warp.row
        self._rows = [bind(row_of(own + tile * BYTE_ROWS)) for tile in range(shape.tiles)]
        words, scales = shape.tiles * STEP_PIECES, shape.tiles * shape.groups
        self._next_words = local((shape.tiles * PIECE_WORDS,), "uint32")
        self._next_scales = local((scales,), layout.dtype)
        self._words, self._scales = local((words,), "uint32"), local((scales,))
        self._memory = shared_pieces(shape.bands * shape.warps * shape.warp_pieces)
        self._vectors = Vectors.dividing(shape.all_groups, shape.groups)

    def read(self, step: Expr) -> None:
        """Read a step's weights, which `take` then gets."""
        warp, shape, vectors = self._warp, self._warp.shape, self._vectors
        piece = step * STEP_PIECES + warp.quarter
        if shape.is_ragged:
            piece = tirx.min(piece, shape.all_pieces - 1)
        word = bind(piece * PIECE_WORDS)
        groups = [warp.group(step, at, vectors.size) for at in range(0, shape.groups, vectors.size)]

        def of_split(split: Sequence[Buffer], begin: int) -> None:
            rows = [bind(row - begin) for row in self._rows]
            for tile, row in enumerate(rows):
                to = address(self._next_words, tile * PIECE_WORDS)
                stream_piece(to, address(split[0], row, word))
            for tile, row in enumerate(rows):
                for index, group in enumerate(groups):
                    scales = split[1][row, vectors.from_channel(group)]
                    at = tile * shape.groups + index * vectors.size
                    store(self._next_scales, scales, vectors.from_channel(at))

        self._reader.in_split(self._first, of_split)

    def take(self) -> None:
        """Bring what was read to the lanes that multiply it."""
        warp, shape = self._warp, self._warp.shape
        own = bind(warp.number * shape.warp_pieces)
        for index in range(shape.tiles * shape.groups):
            store(self._scales, as_f32(self._next_scales[index]), index)
        warp_barrier()  # what was taken before may still be being read
        place = bind(own + _place(warp.row, warp.quarter))
        for tile in range(shape.tiles):
            to = address(self._memory, place + tile * TILE_PIECES)
            copy_piece(to, address(self._next_words, tile * PIECE_WORDS))
        warp_barrier()
        row, matrix = tirx.floormod(warp.lane, BYTE_ROWS), tirx.floordiv(warp.lane, BYTE_ROWS)
        source = bind(own + _place(bind(row), bind(matrix)))
        for tile in range(shape.tiles):
            to = address(self._words, tile * STEP_PIECES)
            load_matrices(to, address(self._memory, source + tile * TILE_PIECES))

    def halves(self, tile: int, group: int) -> list[Expr]:
        """A group's bytes of the lane's row, for a product each."""
        if self._reader.layout.bits == 4:
            word, low = self._words[tile * STEP_PIECES + group], _bits(0x0F0F0F0F)
            shifted = tirx.shift_right(word, _bits(4))
            return [bind(tirx.bitwise_and(part, low)) for part in (word, shifted)]
        first = tile * STEP_PIECES + 2 * group
        words = [self._words[first + half] for half in range(2)]
        return [bind(tirx.bitwise_xor(word, _bits(0x80808080))) for word in words]

    def minus_zero(self) -> Expr:
        """Four bytes that multiply x to what `halves` miss: 8-bit integers come minus 128."""
        layout = self._reader.layout
        zero = layout.zero_point - (0 if layout.bits == 4 else 128)
        return _bits(-zero % 256 * 0x01010101)

    def scale(self, tile: int, group: int) -> Expr:
        """A group's scale of the lane's row."""
        return self._scales[tile * self._warp.shape.groups + group]


class Rows:
    """What a warp reads of x: a step's words of the lane's row, and scales of its sums' rows.

    Parameters
    ----------
    row_of : from a row of the product, 0 to 7, to one of x; some that exists where there is none
    """

    def __init__(self, warp: Warp, x: Sequence[Buffer], row_of: RowOf, interleaved: bool) -> None:
        shape = warp.shape
        self._warp, self._x, self._interleaved = warp, x, interleaved
        self._row = bind(row_of(warp.row))
        self._scale_rows = [bind(row_of(warp.quarter * BYTE_SUMS + k)) for k in range(BYTE_SUMS)]
        words, scales = shape.groups * 2, BYTE_SUMS * shape.groups
        self._next_words, self._words = (local((words,), "uint32") for _ in range(2))
        self._next_scales, self._scales = local((scales,)), local((scales,))
        self._vectors = Vectors.dividing(shape.all_groups, shape.groups)

    def read(self, step: Expr) -> None:
        """Read a step's rows, which `take` then gets."""
        warp, shape, vectors = self._warp, self._warp.shape, self._vectors
        words, scales = self._x
        for index in range(shape.groups):
            first = warp.group(step, index) * VEC4S
            if self._interleaved:
                place = bind(first + warp.quarter * 2)
                to = address(self._next_words, 2 * index)
                copy_half_piece(to, address(words, self._row, place))
                continue
            for half in range(2):
                place = bind(first + half * ROW_LANES + warp.quarter)
                store(self._next_words, words[self._row, place], 2 * index + half)
        for k, row in enumerate(self._scale_rows):
            for at in range(0, shape.groups, vectors.size):
                group = warp.group(step, at, vectors.size)
                own = scales[row, vectors.from_channel(group)]
                if shape.is_ragged:
                    inside = bind(step * shape.groups + at) < shape.all_groups
                    own = tirx.Select(inside, own, vectors.splat(f32(0.0)))
                store(self._next_scales, own, vectors.from_channel(k * shape.groups + at))

    def take(self) -> None:
        """Bring what was read into the order of the weights' halves."""
        low, high, half = _bits(0xFFFF), _bits(0xFFFF0000), _bits(16)
        for group in range(self._warp.shape.groups):
            near, far = (bind(self._next_words[2 * group + half]) for half in range(2))
            if self._interleaved:
                even = tirx.bitwise_or(tirx.bitwise_and(near, low), tirx.shift_left(far, half))
                odd = tirx.bitwise_or(tirx.shift_right(near, half), tirx.bitwise_and(far, high))
                near, far = bind(even), bind(odd)
            store(self._words, near, 2 * group)
            store(self._words, far, 2 * group + 1)
        for index in range(BYTE_SUMS * self._warp.shape.groups):
            store(self._scales, self._next_scales[index], index)

    def halves(self, group: int) -> list[Expr]:
        """A group's bytes of the lane's row, for a product each."""
        return [bind(self._words[2 * group + half]) for half in range(2)]

    def scale(self, k: int, group: int) -> Expr:
        """A group's scale of the row of the lane's sum k."""
        return self._scales[k * self._warp.shape.groups + group]


def multiply(warp: Warp, weights: Weights, rows: Rows) -> Buffer:
    """A warp's sums over its channels: of each tile the lane's row, for two rows of x."""
    shape = warp.shape
    sums = local((shape.tiles * BYTE_SUMS,))
    magic, zeros, dots = (local((BYTE_SUMS,), "int32") for _ in range(3))
    for index in range(shape.tiles * BYTE_SUMS):
        store(sums, f32(0.0), index)
    for k in range(BYTE_SUMS):
        store(magic, i32(MAGIC), k)
    none = bind(tirx.reinterpret("float32", magic[0]))
    first = bind(tirx.min(warp.part, shape.steps - 1))
    weights.read(first)
    rows.read(first)
    with T.serial(0, -(-shape.steps // shape.warps)) as iteration:
        step = bind(iteration * shape.warps + warp.part)
        with when(step < shape.steps):  # the same for a warp
            weights.take()
            rows.take()
            following = bind(tirx.min(step + shape.warps, shape.steps - 1))
            weights.read(following)
            rows.read(following)
            for group in range(shape.groups):
                right = rows.halves(group)
                for half, source in ((0, magic), (1, zeros)):
                    minus = weights.minus_zero()
                    multiply_add_bytes(address(zeros, 0), address(source, 0), minus, right[half])
                scales = [bind(rows.scale(k, group)) for k in range(BYTE_SUMS)]
                for tile in range(shape.tiles):
                    left = weights.halves(tile, group)
                    for half, source in ((0, zeros), (1, dots)):
                        to = address(dots, 0), address(source, 0)
                        multiply_add_bytes(*to, left[half], right[half])
                    scale = bind(weights.scale(tile, group))
                    for k in range(BYTE_SUMS):
                        dot = tirx.reinterpret("float32", dots[k]) - none
                        at = tile * BYTE_SUMS + k
                        store(sums, sums[at] + dot * (scale * scales[k]), at)
    return sums


def store_sums(
    warp: Warp,
    block: Block,
    sums: Buffer,
    has: Callable[[Expr], Expr],
    step: int,
    body: Callable[[Expr, Expr, Sequence[Expr]], None],
) -> None:
    """Add the warps' sums up; ``body(row of x, row of the block, step sums)`` all over the block.

    Parameters
    ----------
    has : whether there is a row of the product, 0 to 7
    step : neighbouring rows of the block whose sums one thread gets
    """
    shape = warp.shape
    barrier()  # TVM lets these sums lie where other warps may still be reading weights
    memory = shared((shape.warps * BYTE_ROWS * shape.pitch,))
    for k in range(BYTE_SUMS):
        column = warp.part * BYTE_ROWS + warp.quarter * BYTE_SUMS + k
        row = warp.band * (shape.tiles * BYTE_ROWS) + warp.row
        place = bind(column * shape.pitch + row)
        for tile in range(shape.tiles):
            store(memory, sums[tile * BYTE_SUMS + k], place + tile * BYTE_ROWS)
    barrier()
    outputs = shape.rows // step
    with strided(block, outputs * BYTE_ROWS) as item:
        i = bind(tirx.floordiv(item, outputs))
        with when(has(i)):
            row = bind(tirx.floormod(item, outputs) * step)
            place = bind(i * shape.pitch + row)

            def total(index: int) -> Expr:
                each = range(shape.warps)
                parts = [memory[place + (w * BYTE_ROWS * shape.pitch + index)] for w in each]
                return bind(tree(parts, add))

            body(i, row, [total(index) for index in range(step)])


def _place(row: Expr, piece: Expr) -> Expr:
    """Where a row's piece lies in a tile: in other banks than the same one of the rows around."""
    turned = tirx.bitwise_xor(piece, tirx.floormod(tirx.floordiv(row, 2), STEP_PIECES))
    return bind(row * STEP_PIECES + turned)


def _bits(value: int) -> Expr:
    return tirx.const(value, "uint32")
