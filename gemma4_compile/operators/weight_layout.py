"""The stored form of a matrix: its row splits, its integers, and what an element means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx

from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.math import as_f32
from gemma4_compile.operators.packing import Packing, ProductPacking
from gemma4_compile.operators.packings import packing_of, product_packing
from gemma4_compile.operators.spreads import Spread
from gemma4_compile.operators.step_packings import StepPacking, step_packing
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.types import Array

DENSE, INTEGERS, BFLOAT16 = "dense", "integers", "bfloat16"  # forms of storage
MOST_STEPPED = 2**16
"""Channels of a row whose sums of products of int8 are exact in int32."""


@dataclass(frozen=True)
class WeightLayout:
    """The stored form of a matrix and its row splits, in plain fields that an operator can carry.

    Two forms that ship are here: dense, and integers with a scale a group. Another one is a
    subclass with a field `form` of its own default, which says how its tensors look
    (`split_shapes`) and what they mean (`element`): every definition and kernel reads it by that.

    An integer means ``(q - zero_point) * scale``, with scales of either sign; `packing` has its
    words and zero point.

    Attributes
    ----------
    bits : bits of a stored integer, 0 for dense
    dtype : of the dense weight, or of the group scales
    group_size : input channels to a scale (0 for dense)
    split_rows : rows of each row split, in order
    """

    bits: int
    dtype: str
    group_size: int
    cols: int
    split_rows: tuple[int, ...]

    @classmethod
    def from_description(cls, values: Mapping[str, object]) -> type[WeightLayout]:
        """Return the class of a layout from its fields."""
        forms = {vars(one)["form"]: one for one in cls.__subclasses__()}
        return forms.get(values.get("form"), cls)

    @property
    def form(self) -> str:
        """The form of storage."""
        return INTEGERS if self.bits else DENSE

    @property
    def rows(self) -> int:
        """Rows over all row splits."""
        return sum(self.split_rows)

    @property
    def tensors_per_split(self) -> int:
        """Two for integers with scales, one for dense."""
        return len(self.split_shapes(1))

    @property
    def packing(self) -> Packing:
        """How its integers lie in words."""
        return packing_of(self.bits)

    @property
    def products(self) -> ProductPacking:
        """The packing of integers that meet vectors of int8 (`takes_int8`, `takes_steps`)."""
        return self.levels if self.takes_steps else product_packing(self.bits)

    @property
    def levels(self) -> StepPacking:
        """That of integers that meet vectors with one step (`takes_steps`)."""
        packing = step_packing(self.bits)
        assert packing is not None, "asked of such integers"
        return packing

    @property
    def takes_int8(self) -> bool:
        """Whether quantised vectors can meet it: its packing says how, each group has a scale."""
        meets = self.form == INTEGERS and isinstance(self.packing, ProductPacking)
        return meets and self.group_size == GROUP

    @property
    def takes_steps(self) -> bool:
        """Whether vectors of int8 with one step can meet it: its integers have a scale a row.

        Bytes are within 128 of 0 on both sides, so that a row's sum is within ``2 ** 14 * cols``,
        2 ** 30 at most. Codes of 4 bits, up to 15, are less than that, and so is what centres them.
        """
        is_whole = self.form == INTEGERS and GROUP < self.cols == self.group_size
        fits = self.cols % GROUP == 0 and self.cols <= MOST_STEPPED
        return is_whole and fits and step_packing(self.bits) is not None

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator
    ) -> Array | None:
        """Words for which any 32 bits would not do, or None."""
        return self.packing.example_words(shape, rng) if self._is_words(name) else None

    def known_spreads(self, name: str) -> tuple[Spread, ...]:
        """As `example_input`; empty where the default does."""
        return self.packing.word_spreads if self._is_words(name) else ()

    def _is_words(self, name: str) -> bool:
        return self.form == INTEGERS and name.startswith("q_weight") and not self.takes_steps

    @property
    def label(self) -> str:
        """A short name for kernels."""
        return f"q{self.bits}" if self.bits else self.dtype.replace("float", "f")

    def split_shapes(self, rows: int) -> list[tuple[str, tuple[int, int], str]]:
        """(name, shape, dtype) of the tensors of so many rows."""
        if not self.bits:
            return [("weight", (rows, self.cols), self.dtype)]
        return [
            ("q_weight", (rows, self.packing.words(self.cols)), "uint32"),
            ("q_scale", (rows, self.cols // self.group_size), self.dtype),
        ]

    def shapes(self) -> list[tuple[str, tuple[int, int], str]]:
        """(name, shape, dtype) of the tensors, row split by row split."""
        return [
            (f"{name}{index}", shape, dtype)
            for index, rows in enumerate(self.split_rows)
            for name, shape, dtype in self.split_shapes(rows)
        ]

    def placeholders(self, prefix: str = "") -> list[te.Tensor]:
        """TE inputs for all row splits, whose names begin with `prefix`."""
        return [
            te.placeholder(shape, dtype, name=prefix + name) for name, shape, dtype in self.shapes()
        ]

    def element(self, split: Sequence[te.Tensor | Buffer], row: Expr, col: Expr) -> Expr:
        """The weight at (row, col) of one row split as float32."""
        if not self.bits:
            return as_f32(split[0][row, col])
        first, run = self.packing.words(col), self.packing.run
        integer = self.packing.integer(lambda at: split[0][row, first + at], col % run)
        return integer * as_f32(split[1][row, col // self.group_size])

    def value(self, tensors: Sequence[te.Tensor], row: Expr, col: Expr) -> Expr:
        """The weight at (row, col) over all row splits as float32, for definitions."""
        result: Expr | None = None
        begin, step = self.rows, self.tensors_per_split
        for index in reversed(range(len(self.split_rows))):
            begin -= self.split_rows[index]
            split = tensors[index * step : (index + 1) * step]
            item = self.element(split, row - begin, col)
            result = (
                item
                if result is None
                else tirx.if_then_else(row < begin + self.split_rows[index], item, result)
            )
        assert result is not None, "there is a row split"
        return result


@dataclass(frozen=True)
class BFloat16Layout(WeightLayout):
    """Two bfloat16 to a word, the even channel in its lower half: no target needs to know them."""

    form: str = BFLOAT16

    @property
    def label(self) -> str:
        """See `WeightLayout`."""
        return "bf16"

    def split_shapes(self, rows: int) -> list[tuple[str, tuple[int, int], str]]:
        """See `WeightLayout`."""
        return [("pairs", (rows, self.cols // 2), "uint32")]

    def element(self, split: Sequence[te.Tensor | Buffer], row: Expr, col: Expr) -> Expr:
        """See `WeightLayout`."""
        return self.half(split[0][row, col // 2], col % 2)

    def half(self, packed: Expr, channel: Index) -> Expr:
        """One of a word's channels as float32: its upper bits."""
        if isinstance(channel, int):
            amount: Expr = tirx.const(16 * (1 - channel), "uint32")
        else:
            amount = (16 * (1 - channel)).astype("uint32")
        upper = tirx.bitwise_and(tirx.shift_left(packed, amount), tirx.const(0xFFFF0000, "uint32"))
        return tirx.reinterpret("float32", upper)

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator
    ) -> Array | None:
        """See `WeightLayout`: no infinities."""
        if not name.startswith("pairs"):
            return None
        values = rng.normal(0, 0.05, (*shape[:-1], 2 * shape[-1])).astype(np.float32)
        halves = (values.view(np.uint32) >> np.uint32(16)).astype("<u2")
        return np.ascontiguousarray(halves).view("<u4")

    def known_spreads(self, name: str) -> tuple[Spread, ...]:
        """As `example_input`: sizes below 2."""
        return (Spread(32, 0, 1, mask=0xBFFFBFFF),) if name.startswith("pairs") else ()
