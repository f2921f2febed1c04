"""Row lookup on stored weights, in every scheme: its description and definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx

from gemma4_compile.operators.base import Operator, te_prim_func
from gemma4_compile.operators.examples import Sizes, table_rows
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.rows import Rows
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.types import Array

WHOLE, OF_ROWS, OF_PLACES = "whole", "rows", "places"
"""What an `Embedding` takes for its table: itself alone, or in its place a window, in which the row
of an id is that of the call's row, or that of the call's row which `places` names."""


def table_shapes(layout: WeightLayout) -> list[tuple[str, tuple[Index, ...], str]]:
    """(name, shape, dtype) as `WeightLayout.shapes`, with the rows of each split left open."""
    return [
        (f"{name}{index}", (rows, *shape[1:]), dtype)
        for index, count in enumerate(layout.split_rows)
        for rows in [table_rows(count)]
        for name, shape, dtype in layout.split_shapes(count)
    ]


def is_window(tensor: te.Tensor | Buffer, layout: WeightLayout) -> Expr:
    """Whether the first tensor of a table's first split is a window's."""
    return tirx.const(layout.split_rows[0], "int64") != tensor.shape[0]


class RowLookup(Operator):
    """Operators on rows of a table by token id, whose row splits hold those from `row_begin` on.

    Attributes
    ----------
    IDS : name of the argument with the token ids
    """

    IDS: ClassVar[str]
    layout: WeightLayout
    row_begin: int

    @property
    def cols(self) -> int:
        """Channels of a row."""
        return self.layout.cols

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name == self.IDS:  # some are outside of these splits
            return rng.integers(0, self.row_begin + self.layout.rows + 64, shape)
        return self.layout.example_input(name, shape, rng)


@dataclass(frozen=True)
class Embedding(RowLookup):
    """Look rows up by token id: ``out[i] = W[ids[i]] * scale``.

    The row splits hold the rows from `row_begin` on. An id outside of them gives 0 or, with
    `accumulate`, the row of a previous result, so that a table with more row splits than a kernel
    may bind is read by several calls. Arguments: ids (rows,) int32; places (rows,) int32 with
    OF_PLACES; the tensors of all row splits; with `accumulate` the previous result. Result:
    (rows, cols) float32.

    Where `table` is not WHOLE, the caller may pass a window in the place of every split: tensors of
    another number of rows, none of which is that of a split. They hold the rows of this call alone:
    of id i the row i, or the row places[i]. So the table need not be where the kernel runs.
    """

    IDS: ClassVar[str] = "ids"
    kind: ClassVar[str] = "embedding"
    rows: Rows
    layout: WeightLayout
    row_begin: int
    scale: float
    accumulate: bool
    table: str = WHOLE

    @property
    def before_weights(self) -> int:
        """Arguments before the weights."""
        return 2 if self.table == OF_PLACES else 1

    @property
    def shapes(self) -> Sequence[tuple[str, tuple[Index, ...], str]]:
        """(name, shape, dtype) of the table's tensors, row split by row split."""
        return self.layout.shapes() if self.table == WHOLE else table_shapes(self.layout)

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name == "places":
            return rng.permutation(shape[0])
        return super().example_input(name, shape, rng, sizes)

    def definition(self) -> tirx.PrimFunc:
        rows, layout = self.rows.extent(), self.layout
        ids = te.placeholder((rows,), "int32", name="ids")
        places = te.placeholder((rows,), "int32", name="places")
        weights = [te.placeholder(shape, dtype, name=name) for name, shape, dtype in self.shapes]
        previous = te.placeholder((rows, self.cols), "float32", name="previous")

        def lookup(i: Expr, j: Expr) -> Expr:
            row = ids[i] - self.row_begin
            if self.table == WHOLE:
                value = layout.value(weights, row, j)
            else:
                place = places[i] if self.table == OF_PLACES else i.astype("int32")
                value = self._value(weights, row, place, j)
            value = value * f32(self.scale)
            inside = tirx.all(row >= 0, row < layout.rows)
            return tirx.if_then_else(inside, value, previous[i, j] if self.accumulate else f32(0.0))

        out = te.compute((rows, self.cols), lookup, name="out")
        before = [ids, places][: self.before_weights]
        return te_prim_func([*before, *weights, *([previous] if self.accumulate else []), out])

    def _value(self, tensors: Sequence[te.Tensor], row: Expr, place: Expr, col: Expr) -> Expr:
        """As `WeightLayout.value` of a table; of a window what the row's split has at `place`."""
        layout, step = self.layout, self.layout.tensors_per_split
        windowed, begin = is_window(tensors[0], layout), layout.rows
        found: Expr | None = None
        for index, count in reversed(list(enumerate(layout.split_rows))):
            begin -= count
            own = tirx.if_then_else(windowed, place, row - begin)
            item = layout.element(tensors[index * step : (index + 1) * step], own, col)
            found = item if found is None else tirx.if_then_else(row < begin + count, item, found)
        assert found is not None, "there is a row split"
        return found
