"""Products of bytes by warps, their weights on their way to shared memory some steps ahead.

As byte_products.py, but a step's weights are copied into one of several stages without passing
through registers, so that more of them are on their way, and two tiles of 8 rows of the matrix are
one side of a product, over 32 channels at once. Rows of x lie in shared memory, too: what a warp
asks memory for only when it needs it waits behind all that is on its way already.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.tir import bind, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import barrier, local
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.tiles.byte_products import HALF_BYTES, place_of
from gemma4_compile.targets.kernels.tiles.few_row_shape import (
    MATRICES,
    PIECE_BYTES,
    READ_ROWS,
    STEP_PIECES,
    TILE_PIECES,
    TensorCoreShape,
)
from gemma4_compile.targets.kernels.tiles.loaders import RowOf
from gemma4_compile.targets.kernels.tiles.staged_rows import Memory, StagedRows
from gemma4_compile.targets.kernels.tiles.tensor_cores import (
    A_WORDS,
    B_WORDS,
    BYTE_ROWS,
    BYTE_SUMS,
    PIECE_WORDS,
    SUMS,
    WARP,
    address,
    begin_stage_copy,
    end_stage,
    end_stage_copy,
    load_half_piece,
    load_matrices,
    multiply_add_rows,
    wait_for_stage,
    warp_barrier,
)
from gemma4_compile.targets.kernels.tiles.warps import Warp

PAIR = 2  # tiles of a product


class StagedWeights:
    """A warp's pieces of 16 bytes and scales of some steps, in shared memory.

    Parameters
    ----------
    first : a row of the split that holds all of the block's
    row_of : from a row of the block to one of the matrix; clamped, so that it exists
    """

    def __init__(
        self, warp: Warp, reader: WeightReader, first: Expr, row_of: RowOf, memory: Memory
    ) -> None:
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
        turns = -(-shape.warp_rows * self._copies // WARP)
        self._own_rows: list[tuple[Expr, Expr, Expr, Expr]] = []
        for turn in range(turns):
            number = bind(warp.lane + WARP * turn)
            row = bind(tirx.min(tirx.floordiv(number, self._copies), shape.warp_rows - 1))
            copy = bind(tirx.floormod(number, self._copies))
            has = number < shape.warp_rows * self._copies
            self._own_rows.append((has, row, copy, bind(row_of(own + row))))
        self._words = local((shape.tiles * MATRICES,), "uint32")
        warps = shape.bands * shape.warps
        stages = warps * shape.stages
        self._scale_begin = stages * shape.warp_pieces
        self.size = self._scale_begin + stages * shape.warp_rows * self._copies
        self._memory = memory
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

    def _first_scale(self, stage: Expr) -> Expr:
        shape = self._warp.shape
        row = (self._warp.number * shape.stages + stage) * shape.warp_rows
        return bind(self._scale_begin + row * self._copies)

    def _copies_of(self, stage: Expr) -> list[tuple[Expr, Expr]]:
        """Places of a lane's copies of pieces, in registers and in shared memory."""
        count = len(self._rows)
        return [
            (
                address(self._waiting, (stage * count + k) * PIECE_WORDS),
                self._memory.at(self._stage_piece(stage, k)),
            )
            for k in range(count)
        ]

    def _scale_copy(self, stage: Expr, turn: int) -> tuple[Expr, Expr]:
        _, row, copy, _ = self._own_rows[turn]
        piece = self._first_scale(stage) + row * self._copies + copy
        register = (stage * len(self._own_rows) + turn) * PIECE_WORDS
        return address(self._waiting_scales, register), self._memory.at(bind(piece))

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

    def take(self, stage: Expr) -> None:
        """What was begun is there, as far as the thread itself is concerned."""
        for registers, to in self._copies_of(stage):
            end_stage_copy(to, registers)
        for turn, (has, *_) in enumerate(self._own_rows):
            with when(has):
                registers, to = self._scale_copy(stage, turn)
                end_stage_copy(to, registers, self._is_half)

    def load(self, stage: Expr, part: int) -> None:
        """Load the operands of a part of a stage's groups."""
        warp, shape, count = self._warp, self._warp.shape, self.groups_at_once
        row, matrix = tirx.floormod(warp.lane, BYTE_ROWS), tirx.floordiv(warp.lane, BYTE_ROWS)
        place = place_of(bind(row), bind(matrix + part * MATRICES))
        source = bind(self._first_piece(stage) + place)
        for tile in range(shape.tiles):
            to = address(self._words, tile * MATRICES)
            load_matrices(to, self._memory.at(source + tile * TILE_PIECES))
        self._part = part
        if part * count % self._loaded == 0:
            self._load_scales(stage, part * count)

    def _load_scales(self, stage: Expr, begin: int) -> None:
        shape = self._warp.shape
        size = HALF_BYTES // shape.scale_bytes
        for tile in range(shape.tiles):
            row = (tile * BYTE_ROWS + self._warp.row) * self._copies
            first = bind(self._first_scale(stage) + row)
            for at in range(0, self._loaded, size):
                piece, half = divmod((begin + at) // size, 2)
                to = address(self._scales, tile * self._loaded + at)
                load_half_piece(to, self._memory.at(first + piece), i32(half))

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


def multiply_staged(warp: Warp, weights: StagedWeights, rows: StagedRows) -> Buffer:
    """A warp's sums over its channels: of each tile the lane's row, for two rows of x."""
    shape: TensorCoreShape = warp.shape
    sums = local((shape.tiles * BYTE_SUMS,))
    left, left_scales = local((A_WORDS,), "uint32"), local((PAIR,))
    right, right_scales = local((B_WORDS,), "uint32"), local((BYTE_SUMS,))
    begins = local((SUMS,), "int32")
    for index in range(shape.tiles * BYTE_SUMS):
        store(sums, f32(0.0), index)
    ahead = [(bind(warp.part + k * shape.warps), i32(k)) for k in range(shape.stages - 1)]
    # Weights before anything that the kernel before this one makes.
    for step, stage in ahead:
        weights.begin(step, stage)
        if not rows.by_steps:
            end_stage()
    if rows.by_steps:
        for step, stage in ahead:
            with when(step < shape.steps):
                rows.begin(step, stage)
            end_stage()
    else:
        rows.begin(i32(0), i32(0))
        end_stage()
        wait_for_stage(0)
        rows.take(i32(0))
        barrier()
    parts, count = STEP_PIECES // MATRICES, weights.groups_at_once
    with T.serial(0, -(-shape.steps // shape.warps)) as iteration:
        step = bind(iteration * shape.warps + warp.part)
        stage = bind(tirx.floormod(iteration, shape.stages))
        after = bind(tirx.floormod(iteration + (shape.stages - 1), shape.stages))
        with when(step < shape.steps):  # the same for a warp
            wait_for_stage(shape.stages - 2)
            weights.take(stage)
            if rows.by_steps:
                rows.take(stage)
            warp_barrier()  # all lanes have copied, and read the stage before
            following = bind(step + (shape.stages - 1) * shape.warps)
            weights.begin(following, after)
            if rows.by_steps:
                with when(following < shape.steps):
                    rows.begin(following, after)
            end_stage()
            first = i32(0) if rows.by_steps else bind(step * shape.groups)
            for part in range(parts):
                rows.load(stage, bind(first + part * count))
                weights.load(stage, part)
                for index in range(count):
                    rows.operand(index, right, right_scales, begins)
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
