"""Products of bytes by warps: some rows of a matrix with up to 8 packed rows, on tensor cores.

A block takes tiles of 8 rows of the matrix, for up to 8 rows of x, which are the two sides of one
product of bytes. Its warps divide the channels: a warp takes a step of 128 bytes of each row at a
time, with the step after it read before its products. Lanes read 16 bytes each, eight neighbouring
ones a row, and hand them on through shared memory, so that a lane has what a product wants of it:
four bytes of one row and one group. Channels are multiplied in the order in which their weights lie
in a word, which x follows. Warps' sums meet in shared memory.

The launch has to say how many blocks are resident (`blocks.resident`), or ptxas moves the reads of
a step down to where it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.tir import bind, store, when
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
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.tiles.byte_rows import Rows
from gemma4_compile.targets.kernels.tiles.few_row_shape import (
    MATRICES,
    PIECE_BYTES,
    READ_ROWS,
    STEP_PIECES,
    TILE_PIECES,
)
from gemma4_compile.targets.kernels.tiles.loaders import RowOf
from gemma4_compile.targets.kernels.tiles.tensor_cores import (
    BYTE_ROWS,
    BYTE_SUMS,
    PIECE_WORDS,
    address,
    copy_half_piece,
    copy_piece,
    load_matrices,
    multiply_add_bytes,
    shared_pieces,
    stream_piece,
    warp_barrier,
)
from gemma4_compile.targets.kernels.tiles.warps import Warp

HALF_BYTES = PIECE_BYTES // 2


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
        own = bind(warp.band * shape.warp_rows)
        # Lanes of a piece, and lanes of a row's scales.
        self._piece = bind(tirx.floormod(warp.lane, STEP_PIECES))
        self._place = bind(tirx.floordiv(warp.lane, STEP_PIECES))
        reads = range(shape.warp_rows // READ_ROWS)
        self._rows = [bind(row_of(own + (self._place + READ_ROWS * k))) for k in reads]
        self._own_row = bind(tirx.min(warp.lane, shape.warp_rows - 1))
        self._scale_row = bind(row_of(own + self._own_row))
        self._next_words = local((len(reads) * PIECE_WORDS,), "uint32")
        self._next_scales = local((self._scale_count,), layout.dtype)
        self._words = local((shape.tiles * MATRICES,), "uint32")
        warps = shape.bands * shape.warps
        self._memory = shared_pieces(warps * shape.warp_pieces)
        self._scale_memory = self._shared_scales(warps * shape.warp_rows)
        # Of both parts of a step where those of one are less than half a piece.
        self._loaded = max(self._groups_at_once, HALF_BYTES // shape.scale_bytes)
        self._scales = self._own_scales(shape.tiles * self._scale_rows * self._loaded)
        self._part = 0

    def _shared_scales(self, rows: int) -> Buffer:
        """Memory in which rows' scales of a step are handed on."""
        return shared((rows * self._row_halves,), "uint32x2")

    def _own_scales(self, groups: int) -> Buffer:
        """A lane's scales of some groups."""
        return local((groups,), self._reader.layout.dtype)

    @property
    def _scale_count(self) -> int:
        """Elements that hold a row's scales of a step."""
        return self._warp.shape.groups

    @property
    def _scale_rows(self) -> int:
        """Rows of a tile whose scales a lane has."""
        return 1

    @property
    def _row_halves(self) -> int:
        """Half pieces of a row's scales of a step."""
        return self._warp.shape.groups * self._warp.shape.scale_bytes // HALF_BYTES

    @property
    def _groups_at_once(self) -> int:
        return MATRICES // self._warp.shape.group_pieces

    def read(self, step: Expr) -> None:
        """Read a step's weights, which `take` then gets."""
        shape = self._warp.shape
        piece = step * STEP_PIECES + self._piece
        if shape.is_ragged:
            piece = tirx.min(piece, shape.all_pieces - 1)
        word = bind(piece * PIECE_WORDS)

        def of_split(split: Sequence[Buffer], begin: int) -> None:
            rows = [bind(row - begin) for row in self._rows]
            for k, row in enumerate(rows):
                to = address(self._next_words, k * PIECE_WORDS)
                stream_piece(to, address(split[0], row, word))
            self._read_scales(split[1], bind(self._scale_row - begin), step)

        self._reader.in_split(self._first, of_split)

    def _read_scales(self, scales: Buffer, row: Expr, step: Expr) -> None:
        shape = self._warp.shape
        first = bind(step * shape.groups)
        if shape.is_ragged:
            for at in range(shape.groups):
                group = tirx.min(first + at, shape.all_groups - 1)
                store(self._next_scales, scales[row, group], at)
            return
        is_whole = shape.groups * shape.scale_bytes % PIECE_BYTES == 0
        size, copy = (PIECE_BYTES, copy_piece) if is_whole else (HALF_BYTES, copy_half_piece)
        for at in range(0, shape.groups, size // shape.scale_bytes):
            copy(address(self._next_scales, at), address(scales, row, first + at))

    def take(self) -> None:
        """Hand on what was read to the lanes that multiply it."""
        shape = self._warp.shape
        warp_barrier()  # what was taken before may still be being read
        for k in range(shape.warp_rows // READ_ROWS):
            row = self._place + k * READ_ROWS % BYTE_ROWS
            tile = bind(self._first_piece + k * READ_ROWS // BYTE_ROWS * TILE_PIECES)
            to = address(self._memory, tile + place_of(bind(row), self._piece))
            copy_piece(to, address(self._next_words, k * PIECE_WORDS))
        self._take_scales()
        warp_barrier()

    def _take_scales(self) -> None:
        warp, shape = self._warp, self._warp.shape
        own = bind((warp.number * shape.warp_rows + self._own_row) * self._row_halves)
        size = HALF_BYTES // shape.scale_bytes
        with when(warp.lane < shape.warp_rows):
            for half in range(self._row_halves):
                to = address(self._scale_memory, own + half)
                copy_half_piece(to, address(self._next_scales, half * size))

    @property
    def _first_piece(self) -> Expr:
        return self._warp.number * self._warp.shape.warp_pieces

    def load(self, part: int) -> int:
        """Load the operands of a part of the step's groups; return how many they are."""
        warp, shape, count = self._warp, self._warp.shape, self._groups_at_once
        row, matrix = tirx.floormod(warp.lane, BYTE_ROWS), tirx.floordiv(warp.lane, BYTE_ROWS)
        source = bind(self._first_piece + place_of(bind(row), bind(matrix + part * MATRICES)))
        for tile in range(shape.tiles):
            to = address(self._words, tile * MATRICES)
            load_matrices(to, address(self._memory, source + tile * TILE_PIECES))
        self._part = part
        if part * count % self._loaded == 0:
            self._load_scales(part * count)
        return count

    def _load_scales(self, begin: int) -> None:
        """Read the scales of groups from `begin` on, a number of the step's."""
        warp, shape, size = self._warp, self._warp.shape, HALF_BYTES // self._warp.shape.scale_bytes
        for tile in range(shape.tiles):
            row = warp.number * shape.warp_rows + tile * BYTE_ROWS + warp.row
            first = bind(row * self._row_halves + begin // size)
            for at in range(0, self._loaded, size):
                to = address(self._scales, tile * self._loaded + at)
                copy_half_piece(to, address(self._scale_memory, first + at // size))

    def halves(self, tile: int, index: int) -> list[Expr]:
        """A loaded group's bytes of the lane's row, for a product each."""
        packing = self._reader.layout.products
        size = packing.bits // 4  # words of a lane's share of a group
        first = tile * MATRICES + size * index
        words = [self._words[first + part] for part in range(size)]
        return [bind(half) for run in packing.runs(words) for half in packing.halves(run)]

    def scale(self, tile: int, index: int) -> Expr:
        """A loaded group's scale of the lane's row."""
        at = (self._part * self._groups_at_once + index) % self._loaded
        return as_f32(self._scales[tile * self._loaded + at])

    def minimum(self, tile: int, index: int) -> Expr | None:
        """A loaded group's minimum of the lane's row, if groups have one."""
        return None


def begin_reading(warp: Warp, weights: Weights) -> None:
    """Read a warp's first step, for `multiply` to begin with."""
    weights.read(bind(tirx.min(warp.part, warp.shape.steps - 1)))


def multiply(warp: Warp, weights: Weights, rows: Rows, *, has_begun: bool = False) -> Buffer:
    """A warp's sums over its channels: of each tile the lane's row, for two rows of x.

    `has_begun` : the first step is being read
    """
    shape = warp.shape
    sums = local((shape.tiles * BYTE_SUMS,))
    begins, dots = (local((BYTE_SUMS,), "int32") for _ in range(2))
    for index in range(shape.tiles * BYTE_SUMS):
        store(sums, f32(0.0), index)
    if not has_begun:
        begin_reading(warp, weights)
    with T.serial(0, -(-shape.steps // shape.warps)) as iteration:
        step = bind(iteration * shape.warps + warp.part)
        with when(step < shape.steps):  # the same for a warp
            weights.take()
            weights.read(bind(tirx.min(step + shape.warps, shape.steps - 1)))
            for part in range(STEP_PIECES // MATRICES):
                count = weights.load(part)
                rows.load(bind(step * shape.groups + part * count), count)
                for index in range(count):
                    right, scales = rows.begin(index, begins)
                    for tile in range(shape.tiles):
                        left = weights.halves(tile, index)
                        for half, source in ((0, begins), (1, dots)):
                            to = address(dots, 0), address(source, 0)
                            multiply_add_bytes(*to, left[half], right[half])
                        scale = bind(weights.scale(tile, index))
                        minimum = weights.minimum(tile, index)
                        for k in range(BYTE_SUMS):
                            dot = tirx.reinterpret("float32", dots[k]) - warp.none
                            at = tile * BYTE_SUMS + k
                            total = sums[at] + dot * (scale * scales[k])
                            if minimum is not None:
                                total = total - minimum * rows.sum_of(k)
                            store(sums, total, at)
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
        row = warp.band * shape.warp_rows + warp.row
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


def place_of(row: Expr, piece: Expr) -> Expr:
    """Where a row's piece lies in a tile: in other banks than the same one of the rows around."""
    return bind(row * STEP_PIECES + tirx.bitwise_xor(piece, row))
