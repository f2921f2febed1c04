"""Vectors rounded to int8 by groups of channels: the format, its rounding, and who makes them.

A group of GROUP neighbouring channels has one float32 scale, ``max|x| / LEVELS``, and the integers
``floor(x * (LEVELS / max|x|) + 1/2)``, which lie within LEVELS of 0. A group whose largest
magnitude is not above SMALLEST has scale 0 and integers 0. Four neighbouring channels make one word
of the packed form, by `byte_of`: words (1, width / 4) uint32 and scales (1, width / GROUP) float32.

A few rows may be in tiles: words (rows / TILE_ROWS, width / GROUP, TILE_ROWS, GROUP / 4), so that
the words of a group of all rows of a tile are neighbours, as products of bytes on tensor cores read
them. The words of rows that the last tile has beyond the last one are zeros. Scales are as they
are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvm import te, tirx

from gemma4_compile.operators.activations import PackedOutput
from gemma4_compile.operators.base import (
    Operator,
    TensorSpec,
    te_prim_func,
)
from gemma4_compile.operators.examples import MOVED_BYTES
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.rows import Rows
from gemma4_compile.operators.types import Expr, Index, IndexT

GROUP = 32
LEVELS = 127
SMALLEST = 1e-30  # its reciprocal is finite, and no GPU flushes it to 0
WORD = 4  # channels
TILE_ROWS = 8
PACKED_ROWS = 2 * GROUP  # gate and up rows of one group of results


def group_scale(largest: Expr) -> Expr:
    """A group's scale from its largest magnitude."""
    return tirx.Select(largest > f32(SMALLEST), largest * f32(1.0 / LEVELS), f32(0.0))


def group_factor(largest: Expr) -> Expr:
    """Return what a group's channels are multiplied by before they are rounded."""
    bounded = tirx.max(largest, f32(SMALLEST))
    return tirx.Select(largest > f32(SMALLEST), f32(LEVELS) / bounded, f32(0.0))


def round_half_up(value: Expr) -> Expr:
    """The nearest int32; of two equally near ones the larger."""
    return tirx.floor(value + f32(0.5)).astype("int32")


def byte_of(channel: IndexT, interleaved: bool) -> IndexT:
    """Return where a word's channel (0 to 3) lies in it, and the other way round.

    A word of 4-bit weights yields its even and its odd channels. With 0, 2, 1, 3 the lower halves
    of two words are the even ones of eight channels, and the upper halves the odd ones.
    """
    if not interleaved:
        return channel
    if isinstance(channel, int):
        return channel % 2 * 2 + channel // 2
    return tirx.floormod(channel, 2) * 2 + tirx.floordiv(channel, 2)


def moved_share(error: float) -> float:
    """Return the share of packed results that may be one unit off, by the error of their vector.

    A packed result counts LEVELS units up to its group's largest, and where it is between two
    edges is as good as random: it moves as often as its change is large in units. Left out, as
    it nearly cancels: the largest of a group is below that of all, its scale moves along, and
    a product has two factors; but weights have 0.87 deviations on average, not 2, and half of
    the gates are closed. One byte of x moves about a quarter of this share, as a test measures.
    """
    return MOVED_BYTES + LEVELS * error


def quantized_specs(width: int, rows: Index = 1, tiled: bool = False) -> list[TensorSpec]:
    """Shapes and dtypes of the packed form: words, scales."""
    words: tuple[Index, ...] = (rows, width // WORD)
    if tiled:
        words = (tiles_of(rows), width // GROUP, TILE_ROWS, GROUP // WORD)
    return [(words, "uint32"), ((rows, width // GROUP), "float32")]


def tiles_of(rows: Index) -> Index:
    """Tiles that hold some rows."""
    return (rows + (TILE_ROWS - 1)) // TILE_ROWS


def round_groups(x: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    """Integers (rows, width) int32 and scales (rows, width / GROUP) float32 of (rows, width)."""
    rows, width = x.shape[0], int(x.shape[1])
    c = te.reduce_axis((0, GROUP), name="c")
    largest = te.compute(
        (rows, width // GROUP),
        lambda i, g: te.max(tirx.abs(as_f32(x[i, g * GROUP + c])), axis=c),
        name="largest",
    )
    integers = te.compute(
        (rows, width),
        lambda i, j: round_half_up(as_f32(x[i, j]) * group_factor(largest[i, j // GROUP])),
        name="integers",
    )
    scales = te.compute(largest.shape, lambda i, g: group_scale(largest[i, g]), name="scales")
    return integers, scales


def pack(x: te.Tensor, interleaved: bool, tiled: bool = False) -> list[te.Tensor]:
    """The packed form of vectors (rows, width)."""
    integers, scales = round_groups(x)

    def word(i: Expr, w: Expr) -> Expr:
        result: Expr = tirx.const(0, "uint32")
        for byte in range(WORD):
            value = integers[i, w * WORD + byte_of(byte, interleaved)].astype("uint32")
            lowest = tirx.bitwise_and(value, tirx.const(255, "uint32"))
            result = tirx.bitwise_or(
                result, tirx.shift_left(lowest, tirx.const(8 * byte, "uint32"))
            )
        return result

    def word_of_tile(t: Expr, g: Expr, r: Expr, w: Expr) -> Expr:
        i, nothing = t * TILE_ROWS + r, tirx.const(0, "uint32")
        return tirx.Select(i < rows, word(tirx.min(i, rows - 1), g * (GROUP // WORD) + w), nothing)

    rows, width = x.shape[0], int(x.shape[1])
    (shape, _), _ = quantized_specs(width, rows, tiled)
    words = te.compute(shape, word_of_tile if tiled else word, name="words")
    return [words, scales]


def packed_placeholders(
    width: int, rows: Index = 1, tiled: bool = False, prefix: str = ""
) -> list[te.Tensor]:
    """TE inputs of the packed form, whose names begin with `prefix`."""
    names = (f"{prefix}words", f"{prefix}scales")
    specs = quantized_specs(width, rows, tiled)
    return [
        te.placeholder(shape, dtype, name=name)
        for name, (shape, dtype) in zip(names, specs, strict=True)
    ]


def packed_integer(words: te.Tensor, i: Expr, k: Expr, interleaved: bool) -> Expr:
    """Channel k of a packed row: int32."""
    byte = byte_of(tirx.floormod(k, WORD), interleaved)
    above = ((WORD - 1 - byte) * 8).astype("uint32")
    place: tuple[Expr, ...] = (i, k // WORD)
    if len(words.shape) > len(place):
        tile, row = tirx.floordiv(i, TILE_ROWS), tirx.floormod(i, TILE_ROWS)
        place = (tile, k // GROUP, row, tirx.floormod(k, GROUP) // WORD)
    top = tirx.shift_left(words[place], above).astype("int32")
    return tirx.shift_right(top, tirx.const(24, "int32"))


def unpack(words: te.Tensor, scales: te.Tensor, interleaved: bool) -> te.Tensor:
    """The vectors that a packed form represents: (rows, width) float32."""

    def value(i: Expr, k: Expr) -> Expr:
        return as_f32(packed_integer(words, i, k, interleaved)) * scales[i, k // GROUP]

    return te.compute((scales.shape[0], int(scales.shape[1]) * GROUP), value, name="meaning")


def rounded(x: te.Tensor) -> te.Tensor:
    """Rows after their rounding: (rows, width) float32."""
    integers, scales = round_groups(x)
    return te.compute(
        x.shape, lambda i, k: as_f32(integers[i, k]) * scales[i, k // GROUP], name="meaning"
    )


@dataclass(frozen=True)
class QuantizeRows(Operator):
    """Rows of a chunk or of a few positions, packed for one matmul.

    Arguments: x (rows, width) in_dtype. Results: words, scales of its rows.
    """

    kind: ClassVar[str] = "quantize_rows"
    rows: Rows
    width: int
    in_dtype: str
    output: PackedOutput

    @property
    def packs(self) -> bool:
        return True

    def definition(self) -> tirx.PrimFunc:
        x = te.placeholder((self.rows.extent(), self.width), self.in_dtype, name="x")
        return te_prim_func([x, *pack(x, self.output.interleaved, self.output.tiled)])
