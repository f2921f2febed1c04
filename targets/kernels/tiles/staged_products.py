"""Products of bytes by warps, their weights on their way to shared memory some steps ahead.

As byte_products.py, but a step's weights are copied into one of several stages without passing
through registers, so that more of them are on their way, and two tiles of 8 rows of the matrix are
one side of a product, over 32 channels at once. Rows of x are read into registers half a step
ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.packing import ONES
from gemma4_compile.operators.tir import bind, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import local, shared
from gemma4_compile.targets.kernels.common.vectors import Vectors
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.prologues.packed_rows import words_at
from gemma4_compile.targets.kernels.tiles.byte_products import HALF_BYTES, place_of
from gemma4_compile.targets.kernels.tiles.byte_rows import HALVES, in_order
from gemma4_compile.targets.kernels.tiles.few_row_shape import (
    MATRICES,
    PIECE_BYTES,
    READ_ROWS,
    ROW_LANES,
    STEP_PIECES,
    TILE_PIECES,
    TensorCoreShape,
)
from gemma4_compile.targets.kernels.tiles.loaders import RowOf
from gemma4_compile.targets.kernels.tiles.tensor_cores import (
    A_WORDS,
    B_WORDS,
    BYTE_ROWS,
    BYTE_SUMS,
    PIECE_WORDS,
    SUMS,
    address,
    begin_stage_copy,
    copy_half_piece,
    end_stage,
    end_stage_copy,
    load_matrices,
    multiply_add_rows,
    multiply_rows,
    read_half_piece,
    shared_pieces,
    wait_for_stage,
    warp_barrier,
)
from gemma4_compile.targets.kernels.tiles.warps import Warp, bits

PAIR = 2  # tiles of a product
PLACES = 2  # of registers, for the rows of x of a half of a step
HALF_WORDS = HALF_BYTES // 4


class StagedWeights:
    """A warp's pieces of 16 bytes and scales of some steps, in shared memory.

    Parameters
    ----------
    first : a row of the split that holds all of the block's
    row_of : from a row of the block to one of the matrix; clamped, so that it exists
    """

    def __init__(self, warp: Warp, reader: WeightReader, first: Expr, row_of: RowOf) -> None:
        shape = warp.shape
        self._warp, self._reader, self._first = warp, reader, first
        own = bind(warp.band * shape.warp_rows)
        self._piece = bind(tirx.floormod(warp.lane, STEP_PIECES))
        self._place = bind(tirx.floordiv(warp.lane, STEP_PIECES))
        reads = range(shape.warp_rows // READ_ROWS)
        self._rows = [bind(row_of(own + (self._place + READ_ROWS * k))) for k in reads]
        # Scales of a row and step are some copies, of 16 bytes or one of 8; a lane makes one of
        # each turn.
        self._copies = max(1, shape.groups * shape.scale_bytes // PIECE_BYTES)
        self._is_half = shape.groups * shape.scale_bytes < PIECE_BYTES
        self._scale_halves = shape.groups * shape.scale_bytes // HALF_BYTES
        turns = -(-shape.warp_rows * self._copies // 32)
        self._own_rows: list[tuple[Expr, Expr, Expr, Expr]] = []
        for turn in range(turns):
            number = bind(warp.lane + 32 * turn)
            row = bind(tirx.min(tirx.floordiv(number, self._copies), shape.warp_rows - 1))
            copy = bind(tirx.floormod(number, self._copies))
            has = number < shape.warp_rows * self._copies
            self._own_rows.append((has, row, copy, bind(row_of(own + row))))
        self._words = local((shape.tiles * MATRICES,), "uint32")
        warps = shape.bands * shape.warps
        self._memory = shared_pieces(warps * shape.stages * shape.warp_pieces)
        self._scale_memory = shared(
            (warps * shape.stages * shape.warp_rows * self._scale_halves,), "uint32x2"
        )
        self._loaded = max(self.groups_at_once, HALF_BYTES // shape.scale_bytes)
        self._scales = local((shape.tiles * self._loaded,), reader.layout.dtype)
        # What waits where nothing copies by itself.
        self._waiting = local((shape.stages * len(reads) * PIECE_WORDS,), "uint32")
        self._waiting_scales = local((shape.stages * turns * PIECE_WORDS,), "uint32")
        self._part = 0

    @property
    def groups_at_once(self) -> int:
        """Groups of a part of a step."""
        return MATRICES // self._warp.shape.group_pieces

    def _stage_piece(self, stage: Expr, k: int) -> Expr:
        """Where a lane's k-th piece of a stage lies."""
        row = bind(self._place + k * READ_ROWS % BYTE_ROWS)
        tile = self._first_piece(stage) + k * READ_ROWS // BYTE_ROWS * TILE_PIECES
        return bind(tile + place_of(row, self._piece))

    def _first_piece(self, stage: Expr) -> Expr:
        shape = self._warp.shape
        return bind((self._warp.number * shape.stages + stage) * shape.warp_pieces)

    def _first_row(self, stage: Expr) -> Expr:
        shape = self._warp.shape
        return bind((self._warp.number * shape.stages + stage) * shape.warp_rows)

    def _copies_of(self, stage: Expr) -> list[tuple[Expr, Expr]]:
        """Places of a lane's copies of pieces, in registers and in shared memory."""
        count = len(self._rows)
        return [
            (
                address(self._waiting, (stage * count + k) * PIECE_WORDS),
                address(self._memory, self._stage_piece(stage, k)),
            )
            for k in range(count)
        ]

    def _scale_copy(self, stage: Expr, turn: int) -> tuple[Expr, Expr]:
        _, row, copy, _ = self._own_rows[turn]
        half = (self._first_row(stage) + row) * self._scale_halves + copy * 2
        register = (stage * len(self._own_rows) + turn) * PIECE_WORDS
        return address(self._waiting_scales, register), address(self._scale_memory, bind(half))

    def begin(self, step: Expr, stage: Expr) -> None:
        """Begin to copy a step, if there is one, to a stage."""
        shape = self._warp.shape

        def of_split(split: Sequence[Buffer], begin: int) -> None:
            word = bind((step * STEP_PIECES + self._piece) * PIECE_WORDS)
            for row, (registers, to) in zip(self._rows, self._copies_of(stage), strict=True):
                begin_stage_copy(registers, to, address(split[0], bind(row - begin), word))
            for turn, (has, _, copy, row) in enumerate(self._own_rows):
                group = step * shape.groups + copy * (PIECE_BYTES // shape.scale_bytes)
                with when(has):
                    source = address(split[1], bind(row - begin), bind(group))
                    begin_stage_copy(*self._scale_copy(stage, turn), source, self._is_half)

        with when(step < shape.steps):  # the same for a warp
            self._reader.in_split(self._first, of_split)
        end_stage()

    def take(self, stage: Expr) -> None:
        """Wait for the oldest stage; the whole warp has it then, and has read the one before."""
        wait_for_stage(self._warp.shape.stages - 2)
        for registers, to in self._copies_of(stage):
            end_stage_copy(to, registers)
        for turn, (has, *_) in enumerate(self._own_rows):
            with when(has):
                registers, to = self._scale_copy(stage, turn)
                end_stage_copy(to, registers, self._is_half)
        warp_barrier()

    def load(self, stage: Expr, part: int) -> None:
        """Load the operands of a part of a stage's groups."""
        warp, shape, count = self._warp, self._warp.shape, self.groups_at_once
        row, matrix = tirx.floormod(warp.lane, BYTE_ROWS), tirx.floordiv(warp.lane, BYTE_ROWS)
        place = place_of(bind(row), bind(matrix + part * MATRICES))
        source = bind(self._first_piece(stage) + place)
        for tile in range(shape.tiles):
            to = address(self._words, tile * MATRICES)
            load_matrices(to, address(self._memory, source + tile * TILE_PIECES))
        self._part = part
        if part * count % self._loaded == 0:
            self._load_scales(stage, part * count)

    def _load_scales(self, stage: Expr, begin: int) -> None:
        shape = self._warp.shape
        size = HALF_BYTES // shape.scale_bytes
        for tile in range(shape.tiles):
            row = self._first_row(stage) + tile * BYTE_ROWS + self._warp.row
            first = bind(row * self._scale_halves + begin // size)
            for at in range(0, self._loaded, size):
                to = address(self._scales, tile * self._loaded + at)
                copy_half_piece(to, address(self._scale_memory, first + at // size))

    @property
    def is_exact(self) -> bool:
        """See `multiply_add_rows`."""
        return self._reader.layout.dtype == "float16"

    def operand(self, to: Buffer, scales: Buffer, pair: int, index: int) -> None:
        """Write a loaded group's bytes of a pair of tiles, and the scales of the lane's rows."""
        packing = self._reader.layout.products
        size = packing.bits // 4  # words of a lane's share of a group
        for k in range(PAIR):
            first = (pair * PAIR + k) * MATRICES + size * index
            words = [self._words[first + part] for part in range(size)]
            halves = [half for run in packing.runs(words) for half in packing.halves(run)]
            for half, value in enumerate(halves):
                store(to, value, half * PAIR + k)
            at = (self._part * self.groups_at_once + index) % self._loaded
            scale = self._scales[(pair * PAIR + k) * self._loaded + at]
            store(scales, as_f32(scale), k)


class StagedRows:
    """A lane's words of one row of x, and the scales of its sums' rows, half a step ahead.

    Parameters
    ----------
    x : words and scales
    row_of : from a row of the product, 0 to 7, to one of x; some that exists where there is none
    layout : of the weights: the order of their channels, and their zero point
    """

    def __init__(
        self, warp: Warp, x: Sequence[Buffer], row_of: RowOf, layout: WeightLayout, count: int
    ) -> None:
        self._warp, self._layout, self._count = warp, layout, count
        self._words_of_x, self._scales_of_x = x
        self._row = bind(row_of(warp.row))
        self._scale_rows = [bind(row_of(warp.quarter * BYTE_SUMS + k)) for k in range(BYTE_SUMS)]
        self._words = local((PLACES * count * HALVES,), "uint32")
        self._scales = local((PLACES * BYTE_SUMS * count,))
        self._minus = local((A_WORDS,), "uint32")
        for index in range(A_WORDS):
            store(self._minus, bits(-layout.products.byte_zero % 256 * ONES), index)
        self._magic = local((SUMS,), "int32")
        for index in range(SUMS):
            store(self._magic, warp.magic[0], index)

    def read(self, place: int, first: Expr) -> None:
        """Read neighbouring groups from `first` on."""
        count, quarter = self._count, self._warp.quarter
        for index in range(count):
            group, at = bind(first + index), (place * count + index) * HALVES
            if self._layout.products.interleaved:
                where = words_at(self._words_of_x, self._row, group, quarter * HALVES)
                read_half_piece(address(self._words, at), address(self._words_of_x, *where))
                continue
            for half in range(HALVES):
                where = words_at(self._words_of_x, self._row, group, half * ROW_LANES + quarter)
                store(self._words, self._words_of_x[where], at + half)
        vectors = Vectors.dividing(self._warp.shape.all_groups, count)
        for k, row in enumerate(self._scale_rows):
            for at in range(0, count, vectors.size):
                own = self._scales_of_x[row, vectors.from_channel(bind(first + at))]
                to: Index = (place * BYTE_SUMS + k) * count + at
                store(self._scales, own, vectors.from_channel(to))

    def operand(self, place: int, index: int, to: Buffer, scales: Buffer, begins: Buffer) -> None:
        """Write a group's bytes, its scales, and what zero points take from its sums."""
        at = (place * self._count + index) * HALVES
        pair = [bind(self._words[at + half]) for half in range(HALVES)]
        for half, value in enumerate(
            in_order(*pair) if self._layout.products.interleaved else pair
        ):
            store(to, value, half)
        for k in range(BYTE_SUMS):
            store(scales, self._scales[(place * BYTE_SUMS + k) * self._count + index], k)
        multiply_rows(
            *(address(buffer, 0) for buffer in (begins, self._magic, self._minus, to))
        )


def multiply_staged(warp: Warp, weights: StagedWeights, rows: StagedRows) -> Buffer:
    """A warp's sums over its channels: of each tile the lane's row, for two rows of x."""
    shape: TensorCoreShape = warp.shape
    sums = local((shape.tiles * BYTE_SUMS,))
    left, left_scales = local((A_WORDS,), "uint32"), local((PAIR,))
    right, right_scales = local((B_WORDS,), "uint32"), local((BYTE_SUMS,))
    begins = local((SUMS,), "int32")
    for index in range(shape.tiles * BYTE_SUMS):
        store(sums, f32(0.0), index)
    for ahead in range(shape.stages - 1):
        weights.begin(bind(warp.part + ahead * shape.warps), bind(tirx.const(ahead, "int32")))
    last, parts = shape.steps - 1, STEP_PIECES // MATRICES
    count = weights.groups_at_once
    rows.read(0, bind(tirx.min(warp.part, last) * shape.groups))
    with T.serial(0, -(-shape.steps // shape.warps)) as iteration:
        step = bind(iteration * shape.warps + warp.part)
        stage = bind(tirx.floormod(iteration, shape.stages))
        after = bind(tirx.floormod(iteration + (shape.stages - 1), shape.stages))
        with when(step < shape.steps):  # the same for a warp
            weights.take(stage)
            weights.begin(bind(step + (shape.stages - 1) * shape.warps), after)
            for part in range(parts):
                following = step * shape.groups + (part + 1) * count
                if part + 1 == parts:
                    following = tirx.min(step + shape.warps, last) * shape.groups
                rows.read((part + 1) % PLACES, bind(following))
                weights.load(stage, part)
                for index in range(count):
                    rows.operand(part % PLACES, index, right, right_scales, begins)
                    for pair in range(shape.tiles // PAIR):
                        weights.operand(left, left_scales, pair, index)
                        multiply_add_rows(
                            address(sums, pair * SUMS),
                            (address(left, 0), address(right, 0)),
                            address(begins, 0),
                            (address(left_scales, 0), address(right_scales, 0)),
                            weights.is_exact,
                        )
    return sums
