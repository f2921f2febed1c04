"""The power of two below a row's largest scale: what packed x is scaled over as float16.

The scales over it are below 2, so that no product is too large for a float16, however large x is;
the row's sums take it at the end.
"""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.packing import word
from gemma4_compile.operators.types import Expr

_EXPONENT, _LARGEST_POWER = 0x7F800000, 254 << 23  # of a float32, and the bits of 2^127


def bits_of(value: Expr) -> Expr:
    """The bits of a float32."""
    return tirx.reinterpret("uint32", value)


def as_float(bits: Expr) -> Expr:
    """The float32 of these bits."""
    return tirx.reinterpret("float32", bits)


def power_bits(largest: Expr) -> Expr:
    """The bits of the power; of 0 for no scale, and for those below float32's normal ones."""
    return tirx.bitwise_and(bits_of(largest), word(_EXPONENT))


def inverse_of(bits: Expr) -> Expr:
    """What scales are multiplied by, of a power's bits; something finite for a row of zeros."""
    return as_float(tirx.const(_LARGEST_POWER, "uint32") - bits)
