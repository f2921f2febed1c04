"""What brings the tiles of a product of bytes into shared memory.

Threads read along rows, 16 bytes of x or a group of W at a time, which wait in registers as they
are stored. Written are words of signed bytes row by row, in one order of channels for x and W: that
of the weights' words. Scales lie so that what a lane needs of its warp's part are neighbours; a
thread moves those of a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.packing import joined_halves, word
from gemma4_compile.operators.step_packings import StepPacking
from gemma4_compile.operators.tir import bind, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import local
from gemma4_compile.targets.kernels.common.weights import WeightReader, group_terms
from gemma4_compile.targets.kernels.tiles.byte_tile_shape import (
    GROUP_PIECES,
    GROUP_WORDS,
    ByteTileShape,
)
from gemma4_compile.targets.kernels.tiles.loaders import RowOf
from gemma4_compile.targets.kernels.tiles.tensor_cores import (
    PIECE_WORDS,
    WORD_HALVES,
    M,
    N,
    address,
    copy_half_piece,
    copy_piece,
    store_lane,
)

Place = Callable[[Expr], Expr]


def row_place(shape: ByteTileShape, row: Expr) -> Expr:
    """Where a row of x has its scale among those of a group: lane by lane of a column of sums."""
    part, within = tirx.floordiv(row, shape.part_rows), tirx.floormod(row, shape.part_rows)
    count = shape.part_rows // (M // 2)
    lane, block = tirx.floormod(within, M // 2), tirx.floordiv(within, M // 2)
    return part * shape.part_rows + lane * count + block


def column_place(shape: ByteTileShape, column: Expr) -> Expr:
    """The same for a row of W, of which a lane has two neighbours in each block of 8."""
    size = shape.part_columns
    part, within = tirx.floordiv(column, size), tirx.floormod(column, size)
    block, inside = tirx.floordiv(within, N), tirx.floormod(within, N)
    lane, own = tirx.floordiv(inside, 2), tirx.floormod(inside, 2)
    return part * size + lane * (size // N * 2) + block * 2 + own


@dataclass(frozen=True)
class Stage:
    """Shared memory of both tiles.

    Attributes
    ----------
    pieces : of words, by row
    scales : of float32, by group; None where there are none
    """

    pieces: Buffer
    scales: Buffer | None


@dataclass(frozen=True)
class Side:
    """One of the two tiles.

    Attributes
    ----------
    shape : of the block
    rows : of the tile
    first_piece, first_scale, first_offset : where it begins in a stage
    place : of a row's scale
    row_of : from a row of the tile to one of the matrix; clamped, so that it exists
    """

    shape: ByteTileShape
    rows: int
    first_piece: int
    first_scale: int
    first_offset: int
    place: Place
    row_of: RowOf


class Turns:
    """Which of some items a thread moves, one in a turn."""

    def __init__(self, thread: Expr, threads: int, count: int) -> None:
        self._threads, self._count = threads, count
        turns = range(-(-count // threads))
        self.items = [bind(thread + turn * threads) if turn else thread for turn in turns]

    def inside(self, turn: int) -> ExitStack:
        """Leaves out the threads that have no item in this turn."""
        stack = ExitStack()
        if (turn + 1) * self._threads > self._count:
            stack.enter_context(when(self.items[turn] < self._count))
        return stack

    def __len__(self) -> int:
        return len(self.items)


class Loader(ABC):
    """Moves one tile, step by step.

    Parameters
    ----------
    groups : of a row of the matrix
    """

    def __init__(self, side: Side, groups: int) -> None:
        self._side, self._groups = side, groups

    @abstractmethod
    def read(self, step: Expr) -> None:
        """Read a step's items into registers; beyond the last group some other."""

    @abstractmethod
    def write(self, step: Expr, stage: Stage, number: Expr) -> None:
        """Write what was read for a step into a stage."""

    @property
    def _is_ragged(self) -> bool:
        """Whether the last step has fewer groups."""
        return self._groups % self._side.shape.groups != 0

    def _existing(self, group: Expr) -> Expr:
        """The group, or the last one."""
        return bind(tirx.min(group, self._groups - 1) if self._is_ragged else group)


class WordLoader(Loader):
    """Moves words, some pieces of a row at a time.

    Parameters
    ----------
    words : of an item, as they are stored
    pieces : of an item, as they are written
    """

    def __init__(self, side: Side, thread: Expr, groups: int, words: int, pieces: int) -> None:
        super().__init__(side, groups)
        self._words, self._pieces = words, pieces
        shape, self._across = side.shape, side.shape.row_pieces // pieces
        self._turns = Turns(thread, shape.threads, side.rows * self._across)
        items = self._turns.items
        self._tile_rows = [bind(tirx.floordiv(item, self._across)) for item in items]
        self._own = [bind(tirx.floormod(item, self._across)) for item in items]
        self._rows = [bind(side.row_of(tirx.min(row, side.rows - 1))) for row in self._tile_rows]
        self._raw = local((len(items) * words,), "uint32")

    def read(self, step: Expr) -> None:
        """See `Loader`."""
        per_group = GROUP_PIECES // self._pieces
        for turn, row in enumerate(self._rows):
            own = self._own[turn]
            group = step * self._side.shape.groups + tirx.floordiv(own, per_group)
            item = self._existing(group) * per_group + tirx.floormod(own, per_group)
            with self._turns.inside(turn):
                self._read_item(turn, row, bind(item * self._words))

    def write(self, step: Expr, stage: Stage, number: Expr) -> None:
        """See `Loader`."""
        side, shape = self._side, self._side.shape
        for turn, row in enumerate(self._tile_rows):
            with self._turns.inside(turn):
                raw = [bind(self._raw[turn * self._words + w]) for w in range(self._words)]
                own = self._own[turn]
                group = tirx.floordiv(own, GROUP_PIECES // self._pieces)
                group = bind(step * shape.groups + group)
                values = local((self._pieces * PIECE_WORDS,), "uint32")
                for w, value in enumerate(self._decode(raw, group)):
                    store(values, value, w)
                first = bind(number * shape.stage_pieces + side.first_piece)
                for part in range(self._pieces):
                    place = shape.place(row, own * self._pieces + part)
                    to = address(stage.pieces, first + place)
                    copy_piece(to, address(values, part * PIECE_WORDS))

    def _copy(self, turn: int, source: Buffer, row: Expr, at: Expr) -> None:
        """Copy an item's words, in pieces or halves of them."""
        whole = self._words % PIECE_WORDS == 0
        size, copy = (PIECE_WORDS, copy_piece) if whole else (WORD_HALVES, copy_half_piece)
        for w in range(0, self._words, size):
            copy(address(self._raw, turn * self._words + w), address(source, row, at + w))

    @abstractmethod
    def _read_item(self, turn: int, row: Expr, at: Expr) -> None:
        """Read words of a row of the matrix from one on."""

    @abstractmethod
    def _decode(self, raw: Sequence[Expr], group: Expr) -> list[Expr]:
        """Words of signed bytes of what was read of a group."""


class RowWords(WordLoader):
    """Packed rows of x, in pieces.

    Parameters
    ----------
    interleaved : the order of their bytes
    """

    def __init__(self, side: Side, thread: Expr, words: Buffer, interleaved: bool) -> None:
        super().__init__(side, thread, int(words.shape[1]) // GROUP_WORDS, PIECE_WORDS, 1)
        self._source, self._interleaved = words, interleaved

    def _read_item(self, turn: int, row: Expr, at: Expr) -> None:
        self._copy(turn, self._source, row, at)

    def _decode(self, raw: Sequence[Expr], group: Expr) -> list[Expr]:
        if not self._interleaved:
            return list(raw)
        pairs = zip(raw[0::2], raw[1::2], strict=True)
        return [half for near, far in pairs for half in joined_halves(near, far, word)]


class StepRowWords(RowWords):
    """Rows of x in words by a checkpoint's step; groups beyond the last are 0."""

    def __init__(self, side: Side, thread: Expr, words: Buffer, packing: StepPacking) -> None:
        super().__init__(side, thread, words, packing.interleaved)
        self._packing = packing

    def _decode(self, raw: Sequence[Expr], group: Expr) -> list[Expr]:
        if self._is_ragged:
            inside = bind(group < self._groups)
            raw = [bind(tirx.Select(inside, value, word(0))) for value in raw]
        return self._packing.arranged(raw, word)


class WeightWords(WordLoader):
    """Rows of a stored matrix, group by group."""

    def __init__(self, side: Side, thread: Expr, weights: WeightReader) -> None:
        layout = weights.layout
        words = layout.packing.words(GROUP)
        super().__init__(side, thread, layout.cols // GROUP, words, GROUP_PIECES)
        self._weights = weights

    def _read_item(self, turn: int, row: Expr, at: Expr) -> None:
        def read(split: Sequence[Buffer], begin: int) -> None:
            self._copy(turn, split[0], bind(row - begin), at)

        self._weights.in_split(row, read)

    def _decode(self, raw: Sequence[Expr], group: Expr) -> list[Expr]:
        packing = self._weights.layout.products
        return [part for run in packing.runs(raw) for part in packing.centred(run, word)]


class LevelWords(WeightWords):
    """Rows of a stored matrix as their levels, which are the integers' negatives."""

    def _decode(self, raw: Sequence[Expr], group: Expr) -> list[Expr]:
        packing = self._weights.layout.levels
        return [part for stored in raw for part in packing.levels(stored, word)]


class ScaleLoader(Loader):
    """Moves a row's scales of a step's groups; those beyond the last group are 0.

    Parameters
    ----------
    dtype : of a scale as it is read
    """

    def __init__(self, side: Side, thread: Expr, groups: int, dtype: str) -> None:
        super().__init__(side, groups)
        self._count = side.shape.groups
        self._turns = Turns(thread, side.shape.threads, side.rows)
        items = self._turns.items
        self._rows = [bind(side.row_of(tirx.min(row, side.rows - 1))) for row in items]
        self._scales = local((len(items) * self._count,), dtype)
        self._offsets: Buffer | None = None

    def read(self, step: Expr) -> None:
        """See `Loader`."""
        first = bind(step * self._count)
        for turn, row in enumerate(self._rows):
            with self._turns.inside(turn):
                self._read_row(turn * self._count, row, first)

    def write(self, step: Expr, stage: Stage, number: Expr) -> None:
        """See `Loader`."""
        side, shape = self._side, self._side.shape
        assert stage.scales is not None, "of tiles that have some"
        for turn, row in enumerate(self._turns.items):
            with self._turns.inside(turn):
                place = bind(number * shape.stage_scales + side.place(row))
                for own in range(self._count):
                    at = turn * self._count + own
                    for first, source in (
                        (side.first_scale, self._scales),
                        (side.first_offset, self._offsets),
                    ):
                        if source is None:
                            continue
                        value = as_f32(source[at])
                        if self._is_ragged:
                            inside = step * self._count + own < self._groups
                            value = tirx.Select(inside, value, f32(0.0))
                        # By a call: TVM would put a barrier before it, for what it reads elsewhere.
                        to = bind(place + (first + own * side.rows))
                        piece = address(stage.scales, tirx.floordiv(to, PIECE_WORDS))
                        store_lane(piece, tirx.floormod(to, PIECE_WORDS), value)

    def _copy(self, at: int, source: Buffer, row: Expr, first: Expr) -> None:
        """Read a row's scales as they are stored."""
        if not self._is_ragged:
            store(self._scales, source[row, T.ramp(first, 1, self._count)], _ramp(at, self._count))
            return
        for own in range(self._count):
            store(self._scales, source[row, self._existing(first + own)], at + own)

    @abstractmethod
    def _read_row(self, at: int, row: Expr, first: Expr) -> None:
        """Read the scales of a row from a group on, into registers from `at` on."""


def _ramp(at: int, count: int) -> Expr:
    return T.ramp(at, 1, count)


class RowScales(ScaleLoader):
    """Scales of packed rows of x."""

    def __init__(self, side: Side, thread: Expr, scales: Buffer) -> None:
        super().__init__(side, thread, int(scales.shape[1]), "float32")
        self._source = scales

    def _read_row(self, at: int, row: Expr, first: Expr) -> None:
        self._copy(at, self._source, row, first)


class WeightScales(ScaleLoader):
    """Scales of a stored matrix, and what its weights are at level 0 where it has minima."""

    def __init__(self, side: Side, thread: Expr, weights: WeightReader) -> None:
        layout, minima = weights.layout, side.shape.minima
        dtype = "float32" if minima else layout.dtype
        super().__init__(side, thread, layout.cols // GROUP, dtype)
        self._weights = weights
        self._offsets = local((len(self._turns) * self._count,)) if minima else None

    def _read_row(self, at: int, row: Expr, first: Expr) -> None:
        layout, offsets = self._weights.layout, self._offsets

        def read(split: Sequence[Buffer], begin: int) -> None:
            own = bind(row - begin)
            if offsets is None:
                self._copy(at, split[1], own, first)
                return
            for index in range(self._count):
                group = self._existing(first + index)
                scale, minimum = group_terms(layout, split, own, group)
                assert minimum is not None, "the layout has minima"
                named = bind(scale)
                store(self._scales, named, at + index)
                store(offsets, named * f32(layout.packing.zero_point) - minimum, at + index)

        self._weights.in_split(row, read)
