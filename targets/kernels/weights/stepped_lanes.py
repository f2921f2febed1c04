"""One lane of a matmul on vectors of int8 with one step, and rows of weights with one scale.

As int8_lanes.py, but without a group's scale: a lane's products of a row are one sum of integers,
which is exact (`WeightLayout.takes_steps`), and is scaled once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from gemma4_compile.operators.activation_quantization import GROUP, WORD
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.math import as_f32
from gemma4_compile.operators.packing import ONES, word
from gemma4_compile.operators.tir import FunctionBuilder, LocalVar, bind, i32, store
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import Block, barrier, local, shared
from gemma4_compile.targets.kernels.common.builtins import dot4
from gemma4_compile.targets.kernels.common.vectors import WIDEST, Vectors
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.prologues.vectors import VEC4S, step_vec4s
from gemma4_compile.targets.kernels.weights.lane_parts import LaneParts, WordsAhead

ReadGroup = Callable[[Expr], list[Expr]]
"""From a group's number to its words of x."""


def run_of(layout: WeightLayout) -> int:
    """Channels of a row that a lane reads at a time: groups that fill a vector of words, or one."""
    run = max(GROUP, WIDEST * layout.levels.run)
    return run if layout.cols % run == 0 else GROUP


def stored_words(layout: WeightLayout) -> int:
    """Words of weights of a run."""
    return layout.levels.words(run_of(layout))


class SteppedVector:
    """Vectors in words, an argument."""

    def __init__(self, build: FunctionBuilder, cols: int) -> None:
        self._words = build.arg("words", (1, cols // WORD), "uint32")

    def read(self, group: Expr) -> list[Expr]:
        """A group's words."""
        whole = Vectors(WIDEST)
        vec4s = [
            bind(self._words[0, whole.from_channel(group * VEC4S + at)])
            for at in range(0, VEC4S, WIDEST)
        ]
        return [lane for vec4 in vec4s for lane in whole.lanes(vec4)]


class StagedSteppedVector:
    """Such a vector in shared memory: word i of group g at i * pitch + g, for the lanes."""

    def __init__(self, cols: int) -> None:
        self._groups = cols // GROUP
        self._pitch = self._groups | 1
        self._words = shared((VEC4S * self._pitch,), "uint32")

    def fill(self, block: Block, vec4s: Sequence[Expr], interleaved: bool, step: Expr) -> None:
        """Round the threads' vec4s into it; ends with a barrier."""

        def put_word(vec4: Expr, value: Expr) -> None:
            place = tirx.floormod(vec4, VEC4S) * self._pitch + tirx.floordiv(vec4, VEC4S)
            store(self._words, value, place)

        step_vec4s(vec4s, block, self._groups * VEC4S, interleaved, step, put_word)
        barrier()

    def read(self, group: Expr) -> list[Expr]:
        """A group's words."""
        return [bind(self._words[i * self._pitch + group]) for i in range(VEC4S)]


class SteppedSlice:
    """A lane's groups of the vector, in registers.

    Of 2 bits, too, a lane has no more channels than of 4, though it reads 8 bytes at a time and not
    16: a row then has as many lanes, a block half of the vectors to bring into its words' order.

    Attributes
    ----------
    groups : their numbers; beyond the end of the row the last one, whose words of x are zeros
    """

    def __init__(self, layout: WeightLayout, lanes: int, lane: Expr) -> None:
        self._packing, self._count = layout.levels, layout.cols // GROUP
        self._parts = LaneParts.of(self._count, lanes, lane)
        self.groups = self._parts.inside
        self._operands = local((len(self.groups) * VEC4S,), "uint32")
        self._centre: Expr = i32(0)
        self._step: Expr | None = None

    def load(self, read: ReadGroup, step: Expr) -> None:
        """Take the lane's groups, and what the zero points add to a sum of products."""
        total, numbers = LocalVar("int32", i32(0)), self._parts.numbers
        for iteration, (number, group) in enumerate(zip(numbers, self.groups, strict=True)):
            words = read(group)
            if self._parts.is_ragged:
                is_own = number < self._count
                words = [bind(tirx.Select(is_own, item, word(0))) for item in words]
            for item in words:
                total.add(dot4(item, word(ONES)))
            first = iteration * VEC4S
            for index, item in enumerate(self._packing.arranged(words, word)):
                store(self._operands, item, first + index)
        self._centre = bind(total.value * -self._packing.byte_zero)
        self._step = step

    def dot(self, weights: Sequence[Sequence[Expr]], scales: Sequence[Expr]) -> tuple[Expr, Expr]:
        """The lane's sum of integers for one row, from its groups' words, and its scale."""
        assert self._step is not None, "a vector was loaded"
        total, (scale,) = LocalVar("int32", self._centre), scales
        halves = [
            half for words in weights for item in words for half in self._packing.halves([item])
        ]
        for index, half in enumerate(halves):
            total.add(dot4(half, self._operands[index]))
        return total.value, scale * self._step


class SteppedRowAhead:
    """The weights of one row that a lane reads ahead of their use."""

    def __init__(self, weights: WeightReader, lane_slice: SteppedSlice) -> None:
        self._weights, self._groups = weights, lane_slice.groups
        size = weights.layout.levels.words(GROUP)
        self._words = WordsAhead(self._groups, size, Vectors.within(size))
        self._scale = LocalVar("float32")

    def load(self, row: Expr, in_split_of: Expr) -> None:
        """Read a row of the matrix that lies in the same split as row `in_split_of`."""

        def read(split: Sequence[Buffer], begin: int) -> None:
            local_row = bind(row - begin)
            for index in range(len(self._groups)):
                self._words.load(split[0], local_row, index)
            self._scale.set(as_f32(split[1][local_row, 0]))

        self._weights.in_split(in_split_of, read)

    def take(self) -> tuple[list[list[Expr]], list[Expr]]:
        """The groups' words, and the scale, out of the way of the next row."""
        return self._words.take(), [bind(self._scale.value)]
