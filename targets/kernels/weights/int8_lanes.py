"""One lane of a matmul on int8 vectors: its groups of the vector, and a row of weights.

Everything stays in registers; products of integers are summed within a group, which is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import GROUP, WORD
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.math import as_f32
from gemma4_compile.operators.minima import BLOCK_WORDS, MinimaLayout
from gemma4_compile.operators.packing import ONES, joined_halves
from gemma4_compile.operators.packing import word as constant_word
from gemma4_compile.operators.tir import FunctionBuilder, LocalVar, bind, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    barrier,
    local,
    shared,
    strided,
    zero,
)
from gemma4_compile.targets.kernels.common.builtins import dot4
from gemma4_compile.targets.kernels.common.vectors import Vectors
from gemma4_compile.targets.kernels.common.weights import (
    WeightReader,
    group_terms,
    read_terms,
    terms_of,
)
from gemma4_compile.targets.kernels.prologues.vectors import VEC4S, round_vec4s
from gemma4_compile.targets.kernels.weights.lane_parts import LaneParts, WordsAhead
from gemma4_compile.targets.kernels.weights.stepped_lanes import SteppedRowAhead, SteppedSlice

GroupTerms = tuple[Expr, Expr | None]
"""A group's scale, and its minimum if there are any."""


class StagedQuantizedVector:
    """A quantised vector in shared memory: word i of group g at i * pitch + g, for the lanes."""

    def __init__(self, cols: int) -> None:
        self._groups = cols // GROUP
        self._pitch = self._groups | 1
        self._words = shared((VEC4S * self._pitch,), "uint32")
        self._scales = shared((self._groups,))

    def fill(self, block: Block, vec4s: Sequence[Expr], interleaved: bool) -> None:
        """Round the threads' vec4s into it; ends with a barrier."""
        put_word, put_scale = self._put_word, self._put_scale
        count = self._groups * VEC4S
        round_vec4s(vec4s, block, count, interleaved, put_word, put_scale)
        barrier()

    def _put_word(self, vec4: Expr, word: Expr) -> None:
        place = tirx.floormod(vec4, VEC4S) * self._pitch + tirx.floordiv(vec4, VEC4S)
        store(self._words, word, place)

    def _put_scale(self, group: Expr, scale: Expr) -> None:
        store(self._scales, scale, group)

    def read(self, group: Expr) -> tuple[list[Expr], Expr]:
        """A group's words and scale."""
        words = [bind(self._words[i * self._pitch + group]) for i in range(VEC4S)]
        return words, bind(self._scales[group])


class QuantizedVector:
    """Quantised vectors in two arguments."""

    def __init__(self, build: FunctionBuilder, cols: int, rows: int = 1) -> None:
        self.groups, self._rows = cols // GROUP, rows
        self._words = build.arg("words", (rows, cols // WORD), "uint32")
        self._scales = build.arg("scales", (rows, cols // GROUP), "float32")

    def read(self, group: Expr, row: Index = 0) -> tuple[list[Expr], Expr]:
        """A group's words and scale."""
        words = _words(self._words, row, group * VEC4S, VEC4S)
        return words, bind(self._scales[row, group])

    def copy(self, block: Block) -> tuple[Buffer, Buffer]:
        """Words and scales of all rows in shared memory, row after row; ends without a barrier."""
        groups, rows = self.groups, self._rows
        words = shared((rows * groups * VEC4S,), "uint32")
        scales = shared((rows * groups,))
        vec4s = groups * VEC4S // 4
        with strided(block, rows * vec4s) as item:
            row, at = bind(tirx.floordiv(item, vec4s)), bind(tirx.floormod(item, vec4s) * 4)
            store(words, self._words[row, T.ramp(at, 1, 4)], T.ramp(item * 4, 1, 4))
        with strided(block, rows * groups) as item:
            row, group = bind(tirx.floordiv(item, groups)), bind(tirx.floormod(item, groups))
            store(scales, self._scales[row, group], item)
        return words, scales


class StagedRows:
    """Quantised vectors, copied into shared memory once by all threads."""

    def __init__(self, packed: QuantizedVector, block: Block) -> None:
        self._words, self._scales = packed.copy(block)
        self._groups = packed.groups

    def read(self, group: Expr, row: Expr) -> tuple[list[Expr], Expr]:
        """A group's words and scale; after a barrier."""
        place = bind(row * self._groups + group)
        vec4s = [bind(self._words[T.ramp(place * VEC4S + at, 1, 4)]) for at in (0, 4)]
        words = [tirx.Shuffle([vec4], [lane]) for vec4 in vec4s for lane in range(4)]
        return words, bind(self._scales[place])


def _words(buffer: Buffer, row: Index, first: Expr, count: int) -> list[Expr]:
    """`count` words from `first` on, read four at a time."""
    vec4s = [bind(buffer[row, T.ramp(first + at, 1, 4)]) for at in range(0, count, 4)]
    return [tirx.Shuffle([vec4], [lane]) for vec4 in vec4s for lane in range(4)]


class LaneSlice:
    """A lane's groups of the vector: for each of them the integers and the scale.

    Attributes
    ----------
    groups : their numbers; beyond the end of the row the last one, with scale 0
    """

    def __init__(self, layout: WeightLayout, lanes: int, lane: Expr) -> None:
        self._packing, self._has_minima = layout.products, isinstance(layout, MinimaLayout)
        self._count = layout.cols // GROUP
        self._parts = LaneParts.of(self._count, lanes, lane)
        self.groups = self._parts.inside
        # Kept in memory of the thread: as expressions TVM would repeat them at every use.
        self._operands = local((len(self.groups) * VEC4S,), "uint32")
        self._offsets: list[Expr] = []
        self._scales: list[Expr] = []
        self._sums: list[Expr] = []  # of the groups' channels, for minima

    def load(self, read: Callable[[Expr], tuple[list[Expr], Expr]]) -> None:
        """Take the lane's groups, and what their zero points add to a sum of products.

        With minima zero points add nothing, and the groups' sums are kept.
        """
        self._offsets, self._scales, self._sums = [], [], []
        numbers = self._parts.numbers
        for iteration, (number, group) in enumerate(zip(numbers, self.groups, strict=True)):
            words, scale = read(group)
            if self._parts.is_ragged:
                scale = bind(tirx.Select(number < self._count, scale, zero()))
            ones = tirx.const(ONES, "uint32")
            total = LocalVar("int32", i32(0))
            for word in words:
                total.add(dot4(word, ones))
            if self._has_minima:
                self._offsets.append(i32(0))
                self._sums.append(bind(as_f32(total.value) * scale))
            else:
                self._offsets.append(bind(total.value * -self._packing.byte_zero))
            self._scales.append(scale)
            ordered = _even_and_odd(words) if self._packing.interleaved else words
            for index, word in enumerate(ordered):
                store(self._operands, word, iteration * VEC4S + index)

    def dot(self, weights: Sequence[Sequence[Expr]], terms: Sequence[GroupTerms]) -> Expr:
        """The lane's sum for one row, from its groups' words, scales and minima."""
        result = LocalVar("float32", zero())
        for iteration, (words, (scale, minimum), offset, own) in enumerate(
            zip(weights, terms, self._offsets, self._scales, strict=True)
        ):
            total = LocalVar("int32", offset)
            packing = self._packing
            halves = [half for run in packing.runs(words) for half in packing.halves(run)]
            for index, word in enumerate(halves):
                total.add(dot4(word, self._operands[iteration * VEC4S + index]))
            result.add(scale * own * as_f32(total.value))
            if minimum is not None:
                result.add(zero() - minimum * self._sums[iteration])
        return result.value


def _even_and_odd(words: Sequence[Expr]) -> list[Expr]:
    """Even and odd channels of each run of eight, from two words in the order of `byte_of`."""
    pairs = zip(words[0::2], words[1::2], strict=True)
    return [half for pair in pairs for half in joined_halves(*pair, constant_word)]


class RowAhead:
    """The weights of one row that a lane reads ahead of their use.

    Parameters
    ----------
    as_stored : scales and minima stay as they are stored until the row is taken. A compiler that
        does not move a computation below a condition would wait for them before it
    """

    def __init__(
        self, weights: WeightReader, lane_slice: LaneSlice, as_stored: bool = False
    ) -> None:
        self._weights, self._groups = weights, lane_slice.groups
        layout = weights.layout
        size = layout.bits  # words of a group: 32 channels of so many bits
        self._words = WordsAhead(self._groups, size, Vectors.within(size))
        self._has_minima, self._as_stored = isinstance(layout, MinimaLayout), as_stored
        if as_stored:
            _, _, dtype = layout.shapes()[1]
            dtypes = [dtype] * (BLOCK_WORDS if self._has_minima else 1)
        else:
            dtypes = ["float32"] * (1 + self._has_minima)
        self._terms = [[LocalVar(dtype) for dtype in dtypes] for _ in self._groups]

    def load(self, row: Expr, in_split_of: Expr) -> None:
        """Read a row of the matrix that lies in the same split as row `in_split_of`."""
        layout = self._weights.layout

        def read(split: Sequence[Buffer], begin: int) -> None:
            local_row = bind(row - begin)
            for index, group in enumerate(self._groups):
                self._words.load(split[0], local_row, index)
                if self._as_stored:
                    found = read_terms(layout, split, local_row, group)
                else:
                    scale, minimum = group_terms(layout, split, local_row, group)
                    found = [scale] if minimum is None else [scale, minimum]
                for term, value in zip(self._terms[index], found, strict=True):
                    term.set(value)

        self._weights.in_split(in_split_of, read)

    def take(self) -> tuple[list[list[Expr]], list[GroupTerms]]:
        """The groups' words, scales and minima, out of the way of the next row."""
        words, layout = self._words.take(), self._weights.layout
        taken = [[bind(term.value) for term in terms] for terms in self._terms]
        if self._as_stored:
            pairs = zip(taken, self._groups, strict=True)
            return words, [terms_of(layout, stored, group) for stored, group in pairs]
        return words, [(terms[0], terms[1] if self._has_minima else None) for terms in taken]


class RowStream:
    """A lane's rows, some of them read ahead of their use: the first ones already at the start.

    Parameters
    ----------
    count : rows
    row_of : the matrix row of an iteration, and a row of the same split that is the whole block's
    ahead : rows under way, which divide `count`; two hide more latency and take more registers
    as_stored : as of `RowAhead`
    unrolled : rows that are in the text of a loop, at most: a loop of one copies what was read
        ahead to where the present row's is
    """

    _ahead: Sequence[RowAhead | SteppedRowAhead]

    def __init__(
        self,
        weights: WeightReader,
        lane_slice: LaneSlice | SteppedSlice,
        count: int,
        row_of: Callable[[Index], tuple[Expr, Expr]],
        ahead: int = 1,
        as_stored: bool = False,
        unrolled: int = 1,
    ) -> None:
        assert count % ahead == 0, "every iteration has a row"
        self._count, self._row_of, self._unrolled = count, row_of, unrolled
        if isinstance(lane_slice, SteppedSlice):
            self._ahead = [SteppedRowAhead(weights, lane_slice) for _ in range(ahead)]
        else:
            self._ahead = [RowAhead(weights, lane_slice, as_stored) for _ in range(ahead)]
        for iteration, rows in enumerate(self._ahead):
            rows.load(*row_of(iteration))

    def run(self, use: Callable[..., None]) -> None:
        """Call ``use(iteration, words, terms)`` for each row."""
        self.run_some(0, self._count, use)

    def run_some(self, begin: Index, count: int, use: Callable[..., None]) -> None:
        """Call it for the next `count` rows, of which the first is row `begin`, as iteration 0."""
        step = len(self._ahead)
        assert count % step == 0, "every iteration has a row"
        written = step
        while 2 * written <= self._unrolled and count % (2 * written) == 0:
            written *= 2
        with T.serial(0, count // written) as some:
            for index in range(written):
                ahead = self._ahead[index % step]
                iteration = bind(some * written + index)
                following = bind(begin + iteration + step)
                present = ahead.take()
                if self._count > step:
                    with when(following < self._count):
                        ahead.load(*self._row_of(following))
                use(iteration, *present)
