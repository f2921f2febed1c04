"""Reading stored weights inside a kernel: units of channels, and the split that holds a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.minima import (
    BLOCK_WORDS,
    GROUP,
    GROUPS,
    MinimaLayout,
    code,
    terms,
)
from gemma4_compile.operators.tir import FunctionBuilder, bind, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.operators.weight_layout import INTEGERS, BFloat16Layout, WeightLayout

UNIT = 8  # channels that a thread decodes at a time: one word of 4-bit weights; of 2 and 6 bits 16


class WeightReader:
    """The weight arguments of one kernel.

    Parameters
    ----------
    build : the function, right where the weights' arguments stand
    layout : their stored form
    shapes : (name, shape, dtype) of the tensors, by default as the layout has them
    """

    def __init__(
        self,
        build: FunctionBuilder,
        layout: WeightLayout,
        shapes: Sequence[tuple[str, tuple[Index, ...], str]] | None = None,
    ) -> None:
        self.layout = layout
        self.unit = (
            max(UNIT, layout.packing.run) if layout.form == INTEGERS else gcd(layout.cols, UNIT)
        )
        shapes = layout.shapes() if shapes is None else shapes
        self._tensors = [build.arg(name, shape, dtype) for name, shape, dtype in shapes]

    @property
    def first(self) -> Buffer:
        """The first tensor."""
        return self._tensors[0]

    @property
    def units(self) -> int:
        """Units in a row."""
        return self.layout.cols // self.unit

    def in_split(self, row: Expr, body: Callable[[Sequence[Buffer], int], None]) -> None:
        """Run `body(split's tensors, split's first row)` for the split that holds `row`.

        `row` is within the matrix.

        The condition must be the same for the whole block if `body` has barriers.
        """
        step, begin = self.layout.tensors_per_split, 0
        count = len(self.layout.split_rows)
        for index, rows in enumerate(self.layout.split_rows):
            tensors = self._tensors[index * step : (index + 1) * step]
            if count == 1:
                body(tensors, begin)
            elif index == count - 1:
                with when(row >= begin):
                    body(tensors, begin)
            else:
                inside = row < begin + rows
                if index:
                    inside = (row >= begin) & inside
                with when(inside):
                    body(tensors, begin)
            begin += rows

    def read_unit(self, split: Sequence[Buffer], row: Expr, unit: Expr) -> tuple[list[Expr], Expr]:
        """Channels [unit * self.unit, ...) of a split's row.

        Unscaled float32 values, and their common scale.
        """
        layout, size = self.layout, self.unit
        if isinstance(layout, BFloat16Layout) and size % 2 == 0:
            begin = unit * (size // 2)
            pairs = [bind(split[0][row, begin + w]) for w in range(size // 2)]
            return [layout.half(pairs[j // 2], j % 2) for j in range(size)], f32(1.0)
        if isinstance(layout, MinimaLayout):
            scale, minimum = group_terms(layout, split, row, unit // (GROUP // UNIT))
            assert minimum is not None, "the layout has minima"
            scale, minimum = bind(scale), bind(minimum)
            packed = bind(split[0][row, unit])
            return [code(packed, j) * scale - minimum for j in range(size)], f32(1.0)
        if layout.form != INTEGERS:
            return [layout.element(split, row, unit * size + j) for j in range(size)], f32(1.0)
        packing = layout.packing
        count = packing.words(size)
        words = [bind(split[0][row, unit * count + w]) for w in range(count)]
        values = []
        for j in range(size):
            run = words[j // packing.run * packing.run_words :]
            values.append(packing.integer(_reader(run), j % packing.run))
        return values, bind(as_f32(split[1][row, unit // (layout.group_size // size)]))


def group_terms(
    layout: WeightLayout, split: Sequence[Buffer], row: Expr, group: Expr
) -> tuple[Expr, Expr | None]:
    """The scale of a group of a split's row, and its minimum if the layout has them, float32."""
    return terms_of(layout, read_terms(layout, split, row, group), group)


def read_terms(layout: WeightLayout, split: Sequence[Buffer], row: Expr, group: Expr) -> list[Expr]:
    """What is stored of a group's scale and minimum: the scale, or the words of its block."""
    if not isinstance(layout, MinimaLayout):
        return [split[1][row, group]]
    block = bind(tirx.floordiv(group, GROUPS))
    vec4 = bind(split[1][row, T.ramp(block * BLOCK_WORDS, 1, BLOCK_WORDS)])
    return [tirx.Shuffle([vec4], [lane]) for lane in range(BLOCK_WORDS)]


def terms_of(layout: WeightLayout, stored: Sequence[Expr], group: Expr) -> tuple[Expr, Expr | None]:
    """The scale and the minimum of a group, from what `read_terms` read."""
    if not isinstance(layout, MinimaLayout):
        return as_f32(stored[0]), None
    # Not the remainder of a signed number, which TVM would simplify to a difference.
    place = tirx.bitwise_and(group.astype("uint32"), tirx.const(GROUPS - 1, "uint32"))
    return terms(stored.__getitem__, bind(place))


def _reader(words: Sequence[Expr]) -> Callable[[Index], Expr]:
    def read(at: Index) -> Expr:
        assert isinstance(at, int), "the channels of a unit are known"
        return words[at]

    return read
