"""Products of bytes by warps: some rows of a matrix with up to 32 packed rows, on tensor cores.

As byte_products.py, whose reads of the matrix these are, but 16 rows of x make one side of a
product and 8 of the matrix the other one, over 32 channels at once. A lane holds its words of all
rows of x for some groups, and decodes each word of the matrix once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.packing import joined_halves, word
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
from gemma4_compile.targets.kernels.common.vectors import Vectors
from gemma4_compile.targets.kernels.tiles.byte_products import HALF_BYTES, Weights
from gemma4_compile.targets.kernels.tiles.few_row_shape import MATRICES
from gemma4_compile.targets.kernels.tiles.loaders import RowOf
from gemma4_compile.targets.kernels.tiles.short_shape import PLACES, ROW_PIECES, ShortShape
from gemma4_compile.targets.kernels.tiles.tensor_cores import (
    A_WORDS,
    B_WORDS,
    BYTE_ROWS,
    PIECE_WORDS,
    SUMS,
    WARP,
    M,
    add_scaled,
    address,
    begin_copy,
    copy_half_piece,
    copy_piece,
    end_copy,
    load_half_piece,
    multiply_add_group,
    shared_pieces,
    sum_rows,
    wait_for_copies,
    warp_barrier,
)
from gemma4_compile.targets.kernels.tiles.warps import Warp

HALVES = M // BYTE_ROWS  # rows of x of a lane in one product
PAIR = 2  # neighbouring rows of the matrix that a lane has sums of


class ShortWeights(Weights):
    """The matrix as the other side: a lane decodes of one row, and scales two others.

    Attributes
    ----------
    has_minima : whether groups have a minimum
    """

    has_minima: ClassVar[bool] = False

    def _load_scales(self, begin: int) -> None:
        warp, shape, size = self._warp, self._warp.shape, HALF_BYTES // self._warp.shape.scale_bytes
        for tile in range(shape.tiles):
            for k in range(PAIR):
                row = warp.number * shape.warp_rows + tile * BYTE_ROWS + warp.quarter * PAIR + k
                first = bind(row * self._row_halves + begin // size)
                for at in range(0, self._loaded, size):
                    to = address(self._scales, (tile * PAIR + k) * self._loaded + at)
                    copy_half_piece(to, address(self._scale_memory, first + at // size))

    @property
    def _scale_rows(self) -> int:
        return PAIR

    @property
    def is_exact(self) -> bool:
        """See `multiply_add_group`."""
        return self._reader.layout.dtype == "float16"

    def words(self, tile: int, index: int) -> list[Expr]:
        """A loaded group's bytes of the lane's row, less the zero point."""
        packing = self._reader.layout.products
        size = packing.bits // 4  # words of a lane's share of a group
        first = tile * MATRICES + size * index
        stored = [self._words[first + part] for part in range(size)]
        return [part for run in packing.runs(stored) for part in packing.centred(run, word)]

    def scales(self, tile: int, index: int) -> list[Expr]:
        """A loaded group's scales of the two rows that the lane has sums of."""
        at = (self._part * self._groups_at_once + index) % self._loaded
        places = [(tile * PAIR + k) * self._loaded + at for k in range(PAIR)]
        return [as_f32(self._scales[place]) for place in places]

    def minima(self, tile: int, index: int) -> list[Expr]:
        """A loaded group's minima of them, if groups have one."""
        return []


class ShortRows:
    """A warp's x: words and scales of its rows of some groups, which it copies to shared memory.

    Those of the groups that come next are on their way while the products of the ones before are
    made, into the other of two places. Read from there a row's words cost no lookup of a line.

    Parameters
    ----------
    x : words and scales
    count : rows that there are; others are not read, and what stands in their places is anything
    has_all_blocks : whether there are rows for each block of 16; others are left out
    row_of : from a row of the block to one of x; some that exists where there is none
    layout : of the weights: the order of their channels
    """

    def __init__(
        self,
        warp: Warp,
        x: Sequence[Buffer],
        count: Expr,
        row_of: RowOf,
        layout: WeightLayout,
        has_all_blocks: bool = False,
    ) -> None:
        shape = warp.shape
        assert isinstance(shape, ShortShape), "a shape with rows of x"
        self._warp, self.shape, self._count = warp, shape, count
        self._has_all_blocks = has_all_blocks
        self.blocks = shape.x_rows // M
        self._words_of_x, self._scales_of_x = x
        self._interleaved = layout.products.interleaved
        self._piece = bind(tirx.floormod(warp.lane, shape.part_pieces))
        self._place = bind(tirx.floordiv(warp.lane, shape.part_pieces))
        # Lanes of a piece; a lane has the scales of a row.
        self._step = WARP // shape.part_pieces
        turns = range(shape.x_rows // self._step)
        self._rows = [bind(row_of(self._place + self._step * k)) for k in turns]
        self._own_row = bind(tirx.floormod(warp.lane, shape.x_rows))
        self._scale_row = bind(row_of(self._own_row))
        warps = shape.bands * shape.warps
        self._first = bind(warp.number * (PLACES * shape.place_pieces))
        self._first_scale = bind(warp.number * (PLACES * shape.x_rows))
        self._memory = shared_pieces(warps * PLACES * shape.place_pieces)
        self._scale_memory = shared((warps * PLACES * shape.x_rows,), f"float32x{PIECE_WORDS}")
        self._waiting = local((len(turns) * PIECE_WORDS,), "uint32")
        self._next_scales = local((PIECE_WORDS,))
        for index in range(shape.part_groups, PIECE_WORDS):
            store(self._next_scales, f32(0.0), index)
        self._scales = local((self.blocks * HALVES * PIECE_WORDS,))
        self._pair, self._both = (local((B_WORDS,), "uint32") for _ in range(2))
        self._left = local((self.blocks * A_WORDS,), "uint32")
        self._left_scales = local((self.blocks * HALVES,))

    def has(self, row: int) -> AbstractContextManager[object]:
        """Leaves out rows of a block without any, which is the same in all threads."""
        block = row // M
        if self._has_all_blocks or not block:
            return nullcontext()
        return when(self._count > block * M)

    def _at(self, place: int, turn: int) -> Expr:
        """Where a lane's piece of a turn goes."""
        row = self._place + self._step * turn
        return self._first + place * self.shape.place_pieces + self.shape.place(row, self._piece)

    def begin(self, place: int, first: Expr) -> None:
        """Begin to copy some groups."""
        shape, last = self.shape, self.shape.all_groups * ROW_PIECES - 1
        piece = bind(first * ROW_PIECES + self._piece)
        if shape.is_ragged:
            piece = bind(tirx.min(piece, last))
        for turn, row in enumerate(self._rows):
            with when(self._place + turn * self._step < self._count):
                source = address(self._words_of_x, row, piece * PIECE_WORDS)
                to = address(self._memory, bind(self._at(place, turn)))
                begin_copy(address(self._waiting, turn * PIECE_WORDS), to, source)
        vectors = Vectors.dividing(shape.all_groups, shape.part_groups)
        for at in range(0, shape.part_groups, vectors.size):
            group = bind(first + at)
            if not shape.is_ragged:
                own = self._scales_of_x[self._scale_row, vectors.from_channel(group)]
            else:
                end = bind(tirx.min(group, shape.all_groups - vectors.size))
                own = self._scales_of_x[self._scale_row, vectors.from_channel(end)]
                own = tirx.Select(group < shape.all_groups, own, vectors.splat(f32(0.0)))
            store(self._next_scales, own, vectors.from_channel(at))

    def take(self, place: int) -> None:
        """Wait for what was begun; the whole warp has it then."""
        for turn in range(len(self._rows)):
            with self.has(turn * self._step):
                to = address(self._memory, bind(self._at(place, turn)))
                end_copy(to, address(self._waiting, turn * PIECE_WORDS))
        own = bind(self._first_scale + place * self.shape.x_rows + self._own_row)
        copy_piece(address(self._scale_memory, own), address(self._next_scales, 0))
        wait_for_copies()
        warp_barrier()

    def load(self, place: int) -> None:
        """Read the scales of a lane's rows."""
        for k in range(self.blocks * HALVES):
            with self.has(k * BYTE_ROWS):
                row = self._first_scale + (place * self.shape.x_rows + k * BYTE_ROWS)
                source = address(self._scale_memory, bind(row + self._warp.row))
                copy_piece(address(self._scales, k * PIECE_WORDS), source)

    def operand(self, place: int, block: int, index: int) -> tuple[Expr, Expr]:
        """Addresses of a group's operand of a block of rows, and of its scales."""
        for half in range(HALVES):
            k = block * HALVES + half
            self._read_words(place, k * BYTE_ROWS + self._warp.row, index)
            pair = [self._pair[part] for part in range(B_WORDS)]
            if self._interleaved:
                pair = list(joined_halves(bind(pair[0]), bind(pair[1]), word))
            for part, value in enumerate(pair):
                store(self._left, value, block * A_WORDS + part * HALVES + half)
            scale = self._scales[k * PIECE_WORDS + index]
            store(self._left_scales, scale, block * HALVES + half)
        return address(self._left, block * A_WORDS), address(self._left_scales, block * HALVES)

    def _read_words(self, place: int, row: Expr, index: int) -> None:
        """Read a lane's share of a row's group: what its word of weights meets."""
        quarter, first = self._warp.quarter, self._first + place * self.shape.place_pieces
        half = tirx.floormod(quarter, 2) if self._interleaved else tirx.floordiv(quarter, 2)
        half = bind(half)

        def read(to: Buffer, piece: Expr) -> None:
            at = bind(first + self.shape.place(bind(row), bind(piece)))
            load_half_piece(address(to, 0), address(self._memory, at), half)

        if self._interleaved:  # eight neighbouring channels, of one word of weights
            read(self._pair, index * ROW_PIECES + tirx.floordiv(quarter, 2))
            return
        for part in range(ROW_PIECES):  # a word of each half of a group
            read(self._both, i32(index * ROW_PIECES + part))
            is_first = tirx.floormod(quarter, 2) == 0
            store(self._pair, tirx.Select(is_first, self._both[0], self._both[1]), part)


def multiply_short(warp: Warp, weights: ShortWeights, rows: ShortRows) -> Buffer:
    """A warp's sums over its channels: of each tile two rows, for every eighth row of x."""
    shape, sums = warp.shape, local((rows.blocks * warp.shape.tiles * SUMS,))
    right, columns = local((shape.tiles * B_WORDS,), "uint32"), local((shape.tiles * PAIR,))
    offsets = local((shape.tiles * PAIR,)) if weights.has_minima else None
    row_sums = local((HALVES,)) if weights.has_minima else None
    for index in range(rows.blocks * shape.tiles * SUMS):
        store(sums, f32(0.0), index)

    def multiply(place: int, index: int) -> None:
        for tile in range(shape.tiles):
            for at, value in enumerate(weights.words(tile, index)):
                store(right, value, tile * B_WORDS + at)
            for k, scale in enumerate(weights.scales(tile, index)):
                store(columns, scale, tile * PAIR + k)
            if offsets is not None:
                for k, minimum in enumerate(weights.minima(tile, index)):
                    store(offsets, -minimum, tile * PAIR + k)
        for block in range(rows.blocks):
            with rows.has(block * M):
                left, own = rows.operand(place, block, index)
                if row_sums is not None:
                    sum_rows(address(row_sums, 0), left, own)
                for tile in range(shape.tiles):
                    b = address(right, tile * B_WORDS), address(columns, tile * PAIR)
                    to = address(sums, (block * shape.tiles + tile) * SUMS)
                    multiply_add_group(to, left, b[0], own, b[1], weights.is_exact)
                    if offsets is not None and row_sums is not None:
                        add_scaled(to, address(row_sums, 0), address(offsets, tile * PAIR))

    first = bind(tirx.min(warp.part, shape.steps - 1))
    weights.read(first)
    rows.begin(0, bind(first * shape.groups))
    groups = rows.shape.part_groups
    with T.serial(0, -(-shape.steps // shape.warps)) as iteration:
        step = bind(iteration * shape.warps + warp.part)
        following = bind(tirx.min(step + shape.warps, shape.steps - 1))
        with when(step < shape.steps):  # the same for a warp
            weights.take()
            weights.read(following)
            for begin in range(0, shape.groups, groups):
                place, after = begin // groups % PLACES, begin + groups
                rows.take(place)
                own = step * shape.groups + after
                end = after == shape.groups
                rows.begin(1 - place, bind(following * shape.groups if end else own))
                weights.load(begin // groups)
                rows.load(place)
                for index in range(groups):
                    multiply(place, index)
    wait_for_copies()  # the sums' memory may be where the last ones go
    return sums


def store_short_sums(
    warp: Warp,
    block: Block,
    sums: Buffer,
    count: Expr,
    body: Callable[[Expr, Expr, Sequence[Expr]], None],
) -> None:
    """Add the warps' sums up; ``body(row of x, row of the block, 2 sums)`` all over the block.

    Parameters
    ----------
    count : rows of x that there are
    """
    shape = warp.shape
    assert isinstance(shape, ShortShape), "a shape with rows of x"
    memory = shared((shape.warps * BYTE_ROWS * shape.pitch,))
    column = warp.band * shape.warp_rows + warp.quarter * PAIR
    place = bind((warp.part * BYTE_ROWS + warp.row) * shape.pitch + column)
    outputs = shape.rows // PAIR
    for eighth in range(shape.x_rows // BYTE_ROWS):
        barrier()  # TVM lets these sums lie where other warps may still be reading
        for tile in range(shape.tiles):
            for k in range(PAIR):
                at = (eighth // HALVES * shape.tiles + tile) * SUMS + eighth % HALVES * PAIR + k
                store(memory, sums[at], place + (tile * BYTE_ROWS + k))
        barrier()
        with strided(block, outputs * BYTE_ROWS) as item:
            i = bind(tirx.floordiv(item, outputs))
            row = bind(tirx.floormod(item, outputs) * PAIR)
            with when(i + eighth * BYTE_ROWS < count):
                first = bind(i * shape.pitch + row)
                each = [first + w * BYTE_ROWS * shape.pitch for w in range(shape.warps)]
                totals = [bind(tree([memory[at + k] for at in each], add)) for k in range(PAIR)]
                body(bind(i + eighth * BYTE_ROWS), row, totals)
