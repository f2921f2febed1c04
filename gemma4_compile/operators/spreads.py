"""Values of the inputs in the self-test on a user's device: evenly spread, and exact everywhere.

`gemma4_compile/device_check/known_inputs.py` makes them. What an operator needs besides the
default, it says itself: `Operator.known_spreads` and `Operator.known_data`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import frexp

WORD = 2**32
FLOAT_BITS = 11
"""Integers of this many bits are exact in float16."""

FLOAT32_BITS = 24
"""And of this many in float32."""


@dataclass(frozen=True)
class Spread:
    """Values spread evenly over ``offset * step .. (offset + 2 ** bits) * step``.

    Attributes
    ----------
    mask : bits of the hash that are kept
    """

    bits: int
    offset: int
    step: float
    mask: int = WORD - 1

    def to_json(self) -> dict[str, int | float]:
        """The fields; the mask only where it drops bits."""
        fields: dict[str, int | float] = {
            "bits": self.bits,
            "offset": self.offset,
            "step": self.step,
        }
        return fields if self.mask == WORD - 1 else {**fields, "mask": self.mask}


WORDS = Spread(32, 0, 1)
"""Words of any value: packed integers."""

BYTES_BELOW_255 = Spread(32, 0, 1, mask=0xFEFEFEFE)
"""Words of 8-bit weights, among which 255 is never stored."""


def around_zero(size: float) -> Spread:
    """Floats from -size up to size, which is a power of two."""
    return Spread(FLOAT_BITS, -(2 ** (FLOAT_BITS - 1)), size * 2.0 ** (1 - FLOAT_BITS))


def from_to_twice(size: float) -> Spread:
    """Floats from size, a power of two, up to twice of it."""
    return Spread(FLOAT_BITS - 1, 2 ** (FLOAT_BITS - 1), size * 2.0 ** (1 - FLOAT_BITS))


def of_both_signs(size: float) -> tuple[Spread, Spread]:
    """Floats from size, a power of two, up to twice of it, and such below zero, in turn."""
    positive = from_to_twice(size)
    return positive, replace(positive, step=-positive.step)


WEIGHT_SCALES = of_both_signs(2.0**-8)
"""Scales of groups, which may be negative; none is so small that a GPU flushes it to 0."""

LSE = around_zero(8.0), from_to_twice(1.0)
"""Maximum and sum of weights, in turn."""


def near(value: float) -> Spread:
    """The float32 nearest to a positive number, and the next one above it."""
    mantissa, exponent = frexp(value)
    return Spread(1, round(mantissa * 2**FLOAT32_BITS), 2.0 ** (exponent - FLOAT32_BITS))


def spreads_of(name: str, dtype: str) -> tuple[Spread, ...]:
    """Distribution of an argument's values: weights and their scales by their names."""
    if dtype == "uint32":
        return (WORDS,)
    if dtype == "int32":
        return (Spread(20, 0, 1),)
    if name.startswith("q_scale"):
        return WEIGHT_SCALES
    if name == "scales":
        return (from_to_twice(2.0**-8),)
    return (around_zero(2.0**-4 if name.startswith("weight") else 2.0),)
