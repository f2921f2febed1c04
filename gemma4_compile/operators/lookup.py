"""Row lookup on stored weights, in every scheme: its description and definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx

from gemma4_compile.operators.base import Operator, te_prim_func
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.rows import Rows
from gemma4_compile.operators.types import Expr
from gemma4_compile.types import Array


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
    may bind is read by several calls. Arguments: ids (rows,) int32; the tensors of all row splits;
    with `accumulate` the previous result. Result: (rows, cols) float32.
    """

    IDS: ClassVar[str] = "ids"
    kind: ClassVar[str] = "embedding"
    rows: Rows
    layout: WeightLayout
    row_begin: int
    scale: float
    accumulate: bool

    def definition(self) -> tirx.PrimFunc:
        rows, layout = self.rows.extent(), self.layout
        ids = te.placeholder((rows,), "int32", name="ids")
        weights = layout.placeholders()
        previous = te.placeholder((rows, self.cols), "float32", name="previous")

        def lookup(i: Expr, j: Expr) -> Expr:
            row = ids[i] - self.row_begin
            value = layout.value(weights, row, j) * f32(self.scale)
            inside = tirx.all(row >= 0, row < layout.rows)
            return tirx.if_then_else(inside, value, previous[i, j] if self.accumulate else f32(0.0))

        out = te.compute((rows, self.cols), lookup, name="out")
        return te_prim_func([ids, *weights, *([previous] if self.accumulate else []), out])
