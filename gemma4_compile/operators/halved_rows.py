"""Packed rows of a chunk as float16, for matmuls that multiply it: the format, and who makes it.

A row is stored over a power of two (row_powers.py): each integer times its group's scale over that
power. Halves (rows, width) float16, four of a word in the order of its bytes 0, 2, 1, 3, as the
kernel takes two out of it, and of a word of weights; powers (rows, 1) float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvm import te, tirx

from gemma4_compile.operators.activation_quantization import (
    GROUP,
    WORD,
    byte_of,
    packed_integer,
    packed_placeholders,
)
from gemma4_compile.operators.base import Operator, TensorSpec, te_prim_func
from gemma4_compile.operators.examples import HALF_ULP_F16
from gemma4_compile.operators.math import as_f32
from gemma4_compile.operators.row_powers import as_float, bits_of, inverse_of, power_bits
from gemma4_compile.operators.rows import Rows
from gemma4_compile.operators.types import Expr, Index

HALF = "float16"
HALVES, POWERS = "halves", "powers"


def halved_specs(width: int, rows: Index = 1) -> list[TensorSpec]:
    """Shapes and dtypes of the form: halves, powers."""
    return [((rows, width), HALF), ((rows, 1), "float32")]


def halved_placeholders(width: int, rows: Index) -> list[te.Tensor]:
    """TE inputs of the form."""
    specs = zip((HALVES, POWERS), halved_specs(width, rows), strict=True)
    return [te.placeholder(shape, dtype, name=name) for name, (shape, dtype) in specs]


def place_of(channel: Expr, interleaved: bool) -> Expr:
    """Where a channel lies in a row, and the other way round; words that are `interleaved` or not.

    Those of interleaved words lie in their order.
    """
    if interleaved:
        return channel
    return channel // WORD * WORD + byte_of(tirx.floormod(channel, WORD), interleaved=True)


def halved_vectors(halves: te.Tensor, powers: te.Tensor, interleaved: bool) -> te.Tensor:
    """The vectors that the form represents: (rows, width) float32."""
    return te.compute(
        halves.shape,
        lambda i, k: as_f32(halves[i, place_of(k, interleaved)]) * powers[i, 0],
        name="meaning",
    )


@dataclass(frozen=True)
class HalveRows(Operator):
    """Packed rows in the form of this file.

    Arguments: words, scales. Results: halves, powers.

    Attributes
    ----------
    width : channels of a row
    interleaved : the order of the packed form
    """

    kind: ClassVar[str] = "halve_rows"
    rows: Rows
    width: int
    interleaved: bool

    def tolerance(self, result: str) -> float:
        return HALF_ULP_F16 if result == HALVES else 0.0

    def definition(self) -> tirx.PrimFunc:
        rows, width = self.rows.extent(), self.width
        words, scales = packed_placeholders(width, rows)
        group = te.reduce_axis((0, width // GROUP), name="group")
        largest = te.compute(
            (rows, 1), lambda i, _: te.max(tirx.abs(scales[i, group]), axis=group), name="largest"
        )
        powers = te.compute(
            (rows, 1), lambda i, j: as_float(power_bits(largest[i, j])), name=POWERS
        )
        halves = te.compute(
            (rows, width),
            lambda i, k: (
                as_f32(packed_integer(words, i, place_of(k, self.interleaved), self.interleaved))
                * as_f32((scales[i, k // GROUP] * inverse_of(bits_of(powers[i, 0]))).astype(HALF))
            ).astype(HALF),
            name=HALVES,
        )
        return te_prim_func([words, scales, halves, powers])
