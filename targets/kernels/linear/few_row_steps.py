"""Products of a few rows in words by a checkpoint's step: sums of integers, scaled once.

As few_row_gemv.py, of which this is a lane's part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import WORD
from gemma4_compile.operators.math import as_f32
from gemma4_compile.operators.tir import bind, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import local
from gemma4_compile.targets.kernels.common.builtins import dot4
from gemma4_compile.targets.kernels.common.vectors import WIDEST, Vectors
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.few_row_shape import OWN_ROWS
from gemma4_compile.targets.kernels.weights.stepped_lanes import run_of, stored_words

_OWN = Vectors(OWN_ROWS)
_WORDS = Vectors(WIDEST)


class RowsOfLane(Protocol):
    """What is asked of a lane of few_row_gemv.py."""

    @property
    def lane(self) -> Expr:
        """Its number among those that share a row."""

    @property
    def lanes(self) -> int:
        """Their number."""

    @property
    def rows(self) -> Sequence[Expr]:
        """Rows of the matrix."""

    @property
    def first(self) -> Expr:
        """A row in the same split."""

    @property
    def most(self) -> int:
        """Rows of x, at most."""

    def place(self, i: int) -> Index:
        """Where row i is in x."""

    def steps(self, items: int) -> Index:
        """Iterations over the items of a row of the matrix."""

    def each_row(self) -> Iterator[int]:
        """The rows of x."""


def add_steps(
    lane: RowsOfLane, weights: WeightReader, words: Buffer, step: Expr
) -> tuple[Buffer, Buffer]:
    """Add the lane's products of rows in words, run by run.

    Returns
    -------
    tuple
        (most OWN_ROWS,) int32, the lane's sums, exact; (OWN_ROWS,) float32, what a row's sum of all
        lanes is multiplied by.
    """
    layout = weights.layout
    run, size = run_of(layout), stored_words(layout)
    count, per_run = layout.cols // run, run // WORD
    vectors = Vectors.dividing(size)
    stored = local((OWN_ROWS * size,), "uint32")
    levels = local((OWN_ROWS * per_run,), "uint32")
    integers = local((lane.most * OWN_ROWS,), "int32")
    for index in range(lane.most * OWN_ROWS):
        store(integers, i32(0), index)

    def read(number: Expr) -> Callable[[Sequence[Buffer], int], None]:
        def of_split(split: Sequence[Buffer], begin: int) -> None:
            for m, row in enumerate(lane.rows):
                local_row = bind(row - begin)
                for at in range(0, size, vectors.size):
                    vector = split[0][local_row, vectors.from_channel(number * size + at)]
                    store(stored, vector, vectors.from_channel(m * size + at))

        return of_split

    with T.serial(0, lane.steps(count)) as iteration:
        number = bind(iteration * lane.lanes + lane.lane)
        with when(number < count):
            weights.in_split(lane.first, read(number))
            for place in range(OWN_ROWS * size):
                parts = layout.levels.ordered_levels(stored[place])
                for index, part in enumerate(parts):
                    store(levels, part, len(parts) * place + index)
            for i in lane.each_row():
                row_of_x = lane.place(i)
                vec4s = [
                    bind(words[row_of_x, _WORDS.from_channel(number * per_run + at)])
                    for at in range(0, per_run, WIDEST)
                ]
                mine = [bind(word) for vec4 in vec4s for word in _WORDS.lanes(vec4)]
                for m in range(OWN_ROWS):
                    dot = integers[i * OWN_ROWS + m]
                    for k, word in enumerate(mine):
                        dot = dot + dot4(levels[m * per_run + k], word)
                    store(integers, dot, i * OWN_ROWS + m)
    scales = local((OWN_ROWS,))

    def read_scales(split: Sequence[Buffer], begin: int) -> None:
        own = [bind(as_f32(split[1][row - begin, 0])) for row in lane.rows]
        store(scales, _OWN.join(own) * _OWN.splat(-step), _OWN.at(0))

    weights.in_split(lane.first, read_scales)
    return integers, scales
