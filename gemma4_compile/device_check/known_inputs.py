"""Small inputs that Python and the browser make alike, byte for byte.

Element i of a buffer is ``(offset + (hash >> (32 - bits))) * step``, where hash is 32 bits of
``(seed, i % period)``, masked if asked; the period is `PERIOD`, less what several spreads by steps
leave over. `step` is a power of two and the integer has at most 11 bits where the buffer holds
floats, 24 where those are never float16, so that every value is exact in them and in JavaScript's
numbers. `web/src/selftest/known_inputs.ts` is the same in TypeScript; a test compares bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from gemma4_compile.operators.spreads import WORD, Spread
from gemma4_compile.types import Array, JsonObject

UInt32Array = npt.NDArray[np.uint32]

PERIOD = 16_381
"""Hashes of a buffer, which then repeat: a prime, so that no two rows of a matrix are equal."""

SAMPLES = 64


def hashes(seed: int, count: int) -> UInt32Array:
    """32 well-mixed bits for each of the indices below `count`."""
    value = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B1)
    value += np.uint32(seed * 0x85EBCA6B % WORD)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        value ^= value >> np.uint32(shift)
        value *= np.uint32(factor)
    result: UInt32Array = value ^ (value >> np.uint32(16))
    return result


@dataclass(frozen=True)
class KnownInput:
    """A buffer before its kernel runs.

    Attributes
    ----------
    spreads : of its elements in turn, which a seed goes with; none for a buffer of zeros
    data : the elements themselves, instead
    """

    dtype: str
    shape: tuple[int, ...]
    spreads: tuple[Spread, ...] = ()
    seed: int = 0
    data: tuple[float, ...] = ()

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    def array(self) -> Array:
        """The elements."""
        if self.data:
            return np.array(self.data, self.dtype).reshape(self.shape)
        if not self.spreads:
            return np.zeros(self.shape, self.dtype)
        distinct = min(prod(self.shape), PERIOD - PERIOD % len(self.spreads))
        values = np.empty(distinct, self.dtype)
        bits = hashes(self.seed, distinct)
        for first, spread in enumerate(self.spreads):
            kept = (bits[first :: len(self.spreads)] & np.uint32(spread.mask)).astype(np.int64)
            integers = (kept >> (32 - spread.bits)) + spread.offset
            values[first :: len(self.spreads)] = (integers * spread.step).astype(self.dtype)
        return np.resize(values, self.shape)

    def to_json(self) -> JsonObject:
        """Description from which the browser makes the buffer."""
        fields: JsonObject = {"dtype": self.dtype, "count": prod(self.shape)}
        if self.data:
            fields["data"] = encoded(self.array())
        elif self.spreads:
            fields["seed"] = self.seed
            fields["spreads"] = [spread.to_json() for spread in self.spreads]
        return fields


def sample_positions(first: int, count: int) -> Sequence[int]:
    """Up to `SAMPLES` elements of ``first .. first + count``, one in each of as many equal runs."""
    samples = min(SAMPLES, count)
    run = count // samples
    return [
        first + k * count // samples + int(h) % run for k, h in enumerate(hashes(count, samples))
    ]


def encoded(values: Array) -> str:
    """The elements' bytes, little-endian, in base64."""
    little = values.astype(values.dtype.newbyteorder("<"))
    return base64.b64encode(little.tobytes()).decode("ascii")
