"""What the stock client's embedding pipeline gives and takes, in the terms of `packed_texts`.

It gives ids and a mask of 1 and 0, (texts, length), each text's ids first, and its tokenizer adds
nothing to them. It takes a tensor (texts, length, width) and reads the first row of each text.
The texts are read in groups, the last ones first: a kernel cannot begin within a client's buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import FunctionBuilder, LocalVar, bind, function, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.types import Array

AROUND = 2  # rows of a text besides its own: one before and one after
PADDING_ID = 0


def texts_and_length() -> tuple[tirx.Var, tirx.Var]:
    """Symbolic sizes of a batch."""
    return tirx.Var("texts", "int64"), tirx.Var("length", "int64")


def group_size() -> tirx.Var:
    """The symbolic number of texts that are read."""
    return tirx.Var("count", "int64")


@dataclass(frozen=True)
class PackedOperands:
    """Arguments of `PackedTexts`."""

    count: Index
    length: Index
    begin: Expr
    ids: Buffer
    mask: Buffer
    packed: Buffer
    spans: Buffer
    ranges: Buffer


@dataclass(frozen=True)
class PackedTexts(Operator):
    """Rows of some texts of a padded batch, each between the tokenizer's first and last token.

    Arguments: ids, mask (texts, length) int32; the mask is 1 for a text's tokens, which come first,
    and 0 after; begin, the first text of the group. Results: packed (count * (length + 2),) int32,
    ids; spans (count * (length + 2), 2) int32, of each row the first row of its text and the one
    after the last; ranges (count, 2) int32, the same of each text. A text whose ids begin with
    `first` has both tokens already.

    Attributes
    ----------
    first, last : ids that the model's own tokenizer puts around a text
    """

    kind: ClassVar[str] = "packed_texts"
    first: int
    last: int

    def declare(self, build: FunctionBuilder) -> PackedOperands:
        """The arguments of definition and kernel."""
        texts, length = texts_and_length()
        count = group_size()
        rows = count * (length + AROUND)
        ids, mask = (build.arg(name, (texts, length), "int32") for name in ("ids", "mask"))
        begin = build.scalar_arg("begin")
        packed = build.arg("packed", (rows,), "int32")
        spans = build.arg("spans", (rows, 2), "int32")
        ranges = build.arg("ranges", (count, 2), "int32")
        return PackedOperands(count, length, begin, ids, mask, packed, spans, ranges)

    def count(self, operands: PackedOperands, text: Expr) -> Expr:
        """Tokens of a text of the group."""
        given, total = i32(operands.begin) + text, LocalVar("int32", i32(0))
        with T.serial(0, operands.length) as place:
            total.add(operands.mask[given, place])
        return bind(total.value)

    def write(self, operands: PackedOperands, text: Expr, place: Expr, count: Expr) -> None:
        """Write the row at a place of a text of the group."""
        ids, last_place = operands.ids, i32(operands.length) - 1
        given = bind(i32(operands.begin) + text)
        is_whole = tirx.all(count > 0, tirx.EQ(ids[given, 0], i32(self.first)))
        before = bind(tirx.Select(is_whole, i32(0), i32(1)))
        end = bind(before + count)
        own = ids[given, tirx.max(i32(0), tirx.min(place - before, last_place))]
        after = tirx.Select(
            tirx.all(tirx.EQ(place, end), before > 0), i32(self.last), i32(PADDING_ID)
        )
        chosen = tirx.Select(place < before, i32(self.first), tirx.Select(place < end, own, after))
        stride = i32(operands.length) + AROUND
        begin = bind(text * stride)
        row = begin + place
        store(operands.packed, chosen, row)
        for column, value in enumerate((begin, begin + end + before)):
            store(operands.spans, value, row, column)
            with when(tirx.EQ(place, i32(0))):
                store(operands.ranges, value, text, column)

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        texts, length = shape[0], shape[-1]
        if name == "mask":  # one is empty, one as long as can be
            counts = np.arange(texts) * length // max(texts - 1, 1)
            return (np.arange(length) < counts[:, None]).astype(np.int32)
        if name == "ids":
            ids = rng.integers(3, 1000, shape)
            ids[texts // 2 :, 0] = self.first
            return ids
        return None

    def example_scalar(self, sizes: Sizes) -> int:
        """The last texts are read."""
        texts, _ = texts_and_length()
        return sizes.of(texts) - sizes.of(group_size())

    def known_data(self, name: str, shape: tuple[int, ...], sizes: Sizes) -> Array | None:
        if name not in ("ids", "mask"):
            return None
        return self.example_input(name, shape, np.random.default_rng(0), sizes)

    def tolerance(self, result: str) -> float:
        return 0.0

    def definition(self) -> tirx.PrimFunc:
        with function(scheduled=False) as build:
            operands = self.declare(build)
            with T.parallel(0, operands.count) as text:
                count = self.count(operands, i32(text))
                with T.serial(0, operands.length + AROUND) as place:
                    self.write(operands, i32(text), i32(place), count)
        return build.result


@dataclass(frozen=True)
class FirstRows(Operator):
    """x (texts, width) f32 as the first rows of (texts, length, width) f32; the others are zero."""

    kind: ClassVar[str] = "first_rows"
    width: int

    def declare(self, build: FunctionBuilder) -> tuple[Index, Index, Buffer, Buffer]:
        """Texts, length, x and the result."""
        texts, length = texts_and_length()
        x = build.arg("x", (texts, self.width), "float32")
        return texts, length, x, build.arg("out", (texts, length, self.width), "float32")

    def tolerance(self, result: str) -> float:
        return 0.0

    def definition(self) -> tirx.PrimFunc:
        with function(scheduled=False) as build:
            texts, length, x, out = self.declare(build)
            with (
                T.parallel(0, texts) as text,
                T.serial(0, length) as place,
                T.serial(0, self.width) as j,
            ):
                value = tirx.Select(tirx.EQ(i32(place), i32(0)), x[text, j], f32(0.0))
                store(out, value, text, place, j)
        return build.result
