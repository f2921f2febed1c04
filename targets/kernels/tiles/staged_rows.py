"""Up to 8 packed rows in shared memory, for staged_products.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.packing import ONES
from gemma4_compile.operators.tir import bind, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import Block, local
from gemma4_compile.targets.kernels.prologues.packed_rows import words_at
from gemma4_compile.targets.kernels.tiles.byte_rows import HALVES, in_order
from gemma4_compile.targets.kernels.tiles.few_row_shape import (
    MATRICES,
    PIECE_BYTES,
)
from gemma4_compile.targets.kernels.tiles.loaders import RowOf
from gemma4_compile.targets.kernels.tiles.tensor_cores import (
    A_WORDS,
    BYTE_ROWS,
    BYTE_SUMS,
    PIECE_WORDS,
    SUMS,
    WARP,
    address,
    begin_stage_copy,
    copy_piece,
    end_stage_copy,
    load_half_piece,
    load_word,
    multiply_rows,
)
from gemma4_compile.targets.kernels.tiles.warps import Warp, bits

GROUP_PIECES = GROUP // PIECE_BYTES  # of a row of x


class Memory:
    """Shared memory of 16 bytes a place; TVM wants one array where a launch says how much."""

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._buffer: Buffer | None = None

    def allocate(self, pieces: int) -> None:
        """Make the array, before any use."""
        self._buffer = T.alloc_buffer((pieces,), f"uint32x{PIECE_WORDS}", scope=self._scope)

    def at(self, piece: Expr) -> Expr:
        """The address of a place."""
        assert self._buffer is not None, "allocated"
        return address(self._buffer, piece)


class StagedRows:
    """Up to 8 rows of x in shared memory: of all channels, or of a warp's steps by stages.

    Words of a group lie together, those of its rows one after the other; then come the scales, row
    by row.

    Parameters
    ----------
    x : words and scales
    count : rows that there are; others are not copied, and what stands in their places is anything
    row_of : from a row of the product, 0 to 7, to one of x
    layout : of the weights: the order of their channels, and their zero point
    """

    def __init__(
        self,
        warp: Warp,
        block: Block,
        x: Sequence[Buffer],
        count: Expr,
        row_of: RowOf,
        layout: WeightLayout,
        memory: Memory,
        base: int,
    ) -> None:
        shape = warp.shape
        self._warp, self._block, self._layout = warp, block, layout
        self._words_of_x, self._scales_of_x = x
        self._count, self._row_of = count, row_of
        self.by_steps = shape.x_by_steps
        self.groups = shape.groups if self.by_steps else shape.all_groups
        self._word_pieces = self.groups * GROUP_PIECES * BYTE_ROWS
        self._row_scales = self.groups // PIECE_WORDS
        self._size = self._word_pieces + self._row_scales * BYTE_ROWS
        places = shape.bands * shape.warps * shape.stages if self.by_steps else 1
        self.size = places * self._size
        self._memory, self._base = memory, base
        threads = WARP if self.by_steps else block.threads
        self._turns = -(-self._word_pieces // threads), -(-self._row_scales * BYTE_ROWS // threads)
        stages = shape.stages if self.by_steps else 1
        self._waiting = local((stages * sum(self._turns) * PIECE_WORDS,), "uint32")
        count_at_once = MATRICES // shape.group_pieces
        self._at_once = count_at_once
        self._words = local((count_at_once * HALVES,), "uint32")
        self._scales = local((BYTE_SUMS * count_at_once,))
        self._minus = local((A_WORDS,), "uint32")
        for index in range(A_WORDS):
            store(self._minus, bits(-layout.products.byte_zero % 256 * ONES), index)
        self._magic = local((SUMS,), "int32")
        for index in range(SUMS):
            store(self._magic, warp.magic[0], index)

    def _first(self, stage: Expr) -> Expr:
        if not self.by_steps:
            return i32(0)
        return bind((self._warp.number * self._warp.shape.stages + stage) * self._size)

    def _copies(self, stage: Expr, first_group: Expr) -> Iterator[tuple[Expr, Expr, Expr, Expr]]:
        """Of each copy of the thread: whether it is made, registers, place, source."""
        begin = self._first(stage)
        lane, threads = (
            (self._warp.lane, WARP) if self.by_steps else (self._block.thread, self._block.threads)
        )
        total = sum(self._turns)
        for turn in range(total):
            is_word = turn < self._turns[0]
            item = bind(lane + threads * (turn if is_word else turn - self._turns[0]))
            registers = address(self._waiting, (stage * total + turn) * PIECE_WORDS)
            if is_word:
                row = bind(tirx.floormod(tirx.floordiv(item, GROUP_PIECES), BYTE_ROWS))
                group = bind(tirx.floordiv(item, GROUP_PIECES * BYTE_ROWS))
                has = tirx.all(item < self._word_pieces, row < self._count)
                half = tirx.floormod(item, GROUP_PIECES) * PIECE_WORDS
                where = words_at(
                    self._words_of_x, self._row_of(row), bind(first_group + group), bind(half)
                )
                source = address(self._words_of_x, *where)
                yield has, registers, self._memory.at(self._base + begin + item), source
            else:
                row = bind(tirx.floordiv(item, self._row_scales))
                piece = bind(tirx.floormod(item, self._row_scales))
                has = row < self._count
                source = address(
                    self._scales_of_x, self._row_of(row), first_group + piece * PIECE_WORDS
                )
                to = self._memory.at(self._base + begin + self._word_pieces + item)
                yield has, registers, to, source

    def begin(self, step: Expr, stage: Expr) -> None:
        """Begin to copy the rows of a step to a stage, or of all channels."""
        first = bind(step * self._warp.shape.groups) if self.by_steps else i32(0)
        for has, registers, to, source in self._copies(stage, first):
            with when(has):
                begin_stage_copy(registers, to, source)

    def take(self, stage: Expr) -> None:
        """What was begun is there, as far as the thread itself is concerned."""
        for has, registers, to, _ in self._copies(stage, i32(0)):
            with when(has):
                end_stage_copy(to, registers)

    def load(self, stage: Expr, first: Expr) -> None:
        """Read the lane's words and scales of some groups, from `first` of those that are there."""
        begin, quarter = self._first(stage), self._warp.quarter
        if self._layout.products.interleaved:
            piece, half = bind(tirx.floordiv(quarter, 2)), bind(tirx.floormod(quarter, 2))
        for index in range(self._at_once):
            row = ((first + index) * BYTE_ROWS + self._warp.row) * GROUP_PIECES
            at = bind(begin + row)
            if self._layout.products.interleaved:
                to = address(self._words, index * HALVES)
                load_half_piece(to, self._memory.at(self._base + at + piece), half)
                continue
            for part in range(HALVES):
                to = address(self._words, index * HALVES + part)
                load_word(to, self._memory.at(self._base + at + part), quarter)
        scales = begin + self._word_pieces
        for k in range(BYTE_SUMS):
            row = bind(self._warp.quarter * BYTE_SUMS + k)
            piece = bind(scales + row * self._row_scales + tirx.floordiv(first, PIECE_WORDS))
            to = address(self._scales, k * self._at_once)
            if self._at_once == PIECE_WORDS:
                copy_piece(to, self._memory.at(self._base + piece))
            else:
                half = bind(tirx.floordiv(tirx.floormod(first, PIECE_WORDS), 2))
                load_half_piece(to, self._memory.at(self._base + piece), half)

    def operand(self, index: int, to: Buffer, scales: Buffer, begins: Buffer) -> None:
        """Write a group's bytes, its scales, and what zero points take from its sums."""
        pair = [bind(self._words[index * HALVES + half]) for half in range(HALVES)]
        ordered = in_order(*pair) if self._layout.products.interleaved else pair
        for half, value in enumerate(ordered):
            store(to, value, half)
        for k in range(BYTE_SUMS):
            store(scales, self._scales[k * self._at_once + index], k)
        multiply_rows(*(address(buffer, 0) for buffer in (begins, self._magic, self._minus, to)))
