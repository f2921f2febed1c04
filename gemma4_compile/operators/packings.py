"""The packings there are: integers of 4, 6 and 8 bits meet int8, others are read one by one.

What a number of bits means is said here alone: everything else asks a layout's or scheme's packing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import tirx

from gemma4_compile.operators.examples import stored_bytes
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.packing import (
    ONES,
    TOP_BITS,
    Constant,
    Packing,
    ProductPacking,
    UInt8Array,
    UInt32Array,
    less_zero_point,
    octets_of,
    shift_by,
    word,
    words_of,
)
from gemma4_compile.operators.spreads import BYTES_BELOW_255, Spread
from gemma4_compile.operators.tir import bind
from gemma4_compile.operators.types import Expr, Index
from gemma4_compile.types import Array

NIBBLES_OF_WORD, UPPER_PAIRS, OTHER_BITS = 0x0F0F0F0F, 0x30303030, 0x7F7F7F7F


@dataclass(frozen=True)
class Nibbles(ProductPacking):
    """4 bits: all 16 codes, levels -7 to 8."""

    bits: int = 4

    @property
    def interleaved(self) -> bool:
        """A word yields its even and its odd channels."""
        return True

    @property
    def byte_zero(self) -> int:
        """They are as they are stored."""
        return self.zero_point

    def halves(self, run: Sequence[Expr]) -> list[Expr]:
        """Even channels, odd channels."""
        (packed,) = run
        return self._bytes(packed, word)

    def in_order(self, run: Sequence[Expr]) -> list[Expr]:
        """Nibbles 0, 2, 1, 3 as bytes, then 4, 6, 5, 7."""
        first = bind(run[0])
        parts = (
            (first, tirx.shift_left(first, word(12))),
            (tirx.shift_right(first, word(16)), tirx.shift_right(first, word(4))),
        )
        return [
            tirx.bitwise_or(
                tirx.bitwise_and(near, word(0x0F0F)), tirx.bitwise_and(far, word(0x0F0F0000))
            )
            for near, far in parts
        ]

    def centred(self, run: Sequence[Expr], constant: Constant) -> list[Expr]:
        """Minus 7: no byte borrows from the next."""
        (packed,) = run
        return less_zero_point(self._bytes(packed, constant), self.zero_point, constant)

    def pack(self, values: UInt8Array) -> UInt32Array:
        """See `Packing`."""
        pairs = np.ascontiguousarray(values).view("<u2")  # the even channel is the low byte
        return words_of((pairs | (pairs >> np.uint16(4))).astype(np.uint8))

    def unpack(self, words: UInt32Array) -> UInt8Array:
        """See `Packing`."""
        octets = octets_of(words)
        values = np.empty((octets.shape[0], 2 * octets.shape[1]), np.uint8)
        values[:, 0::2] = octets & np.uint8(15)
        values[:, 1::2] = octets >> np.uint8(4)
        return values

    def _bytes(self, packed: Expr, constant: Constant) -> list[Expr]:
        parts = (packed, tirx.shift_right(packed, constant(4)))
        return [tirx.bitwise_and(part, constant(NIBBLES_OF_WORD)) for part in parts]


@dataclass(frozen=True)
class Bytes(ProductPacking):
    """8 bits, which stop at 254, level 127, where they meet signed bytes, which hold no 128."""

    bits: int = 8

    @property
    def interleaved(self) -> bool:
        """A word holds four neighbours."""
        return False

    @property
    def byte_zero(self) -> int:
        """They come minus 128."""
        return self.zero_point - 128

    def halves(self, run: Sequence[Expr]) -> list[Expr]:
        """One word."""
        return [tirx.bitwise_xor(run[0], word(TOP_BITS))]

    def in_order(self, run: Sequence[Expr]) -> list[Expr]:
        """The same word."""
        return self.halves(run)

    def centred(self, run: Sequence[Expr], constant: Constant) -> list[Expr]:
        """Minus 127: minus 128, plus 1, and no byte carries."""
        (packed,) = run
        flipped = bind(tirx.bitwise_xor(packed, constant(TOP_BITS)))
        others = tirx.bitwise_and(flipped, constant(OTHER_BITS))
        top = tirx.bitwise_and(flipped, constant(TOP_BITS))
        return [tirx.bitwise_xor(others + constant(ONES), top)]

    def pack(self, values: UInt8Array) -> UInt32Array:
        """See `Packing`."""
        return words_of(values)

    def unpack(self, words: UInt32Array) -> UInt8Array:
        """See `Packing`."""
        return octets_of(words)

    def example_words(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array | None:
        """255 is never stored."""
        return stored_bytes(shape, rng)

    @property
    def word_spreads(self) -> tuple[Spread, ...]:
        """As `example_words`."""
        return (BYTES_BELOW_255,)

    @property
    def exceeds_caps(self) -> bool:
        """They do."""
        return True


_LOW, _HIGH = 2, 1  # words of a run of `Sixes`


@dataclass(frozen=True)
class Sixes(ProductPacking):
    """6 bits: all 64 codes, levels -31 to 32, 16 channels in a run of three words.

    The lower four bits of channels 0 to 7, then of 8 to 15, lie in two words as `Nibbles` have
    them. The upper two of channels 2b, 2b + 1, 8 + 2b and 9 + 2b are byte b of the third, from the
    lowest bits on: each pair is one shift away from its byte.
    """

    bits: int = 6

    @property
    def run_words(self) -> int:
        """See `Packing`."""
        return _LOW + _HIGH

    @property
    def interleaved(self) -> bool:
        """As `Nibbles`."""
        return True

    @property
    def byte_zero(self) -> int:
        """They are as they are stored."""
        return self.zero_point

    @property
    def fills_pieces(self) -> bool:
        """A group has 24 bytes."""
        return False

    def integer(self, read: Callable[[Index], Expr], position: Index) -> Expr:
        """See `Packing`."""
        within, pair = position % 8, position // 8
        low = tirx.shift_right(read(pair), shift_by(within * 4))
        high = tirx.shift_right(read(_LOW), shift_by(within // 2 * 8 + pair * 4 + within % 2 * 2))
        value = tirx.bitwise_or(
            tirx.bitwise_and(low, word(15)),
            tirx.shift_left(tirx.bitwise_and(high, word(3)), word(4)),
        )
        return as_f32(value) - f32(self.zero_point)

    def quad_places(self, quad: Expr) -> list[tuple[Expr, Expr]]:
        """See `Packing`: the lower bits, the upper bits."""
        quads = self.run // 4
        first, within = tirx.floordiv(quad, quads) * self.run_words, tirx.floormod(quad, quads)
        pair, half = tirx.floordiv(within, 2), tirx.floormod(within, 2) * 16
        return [(first + pair, half), (first + _LOW, half + pair * 4)]

    def quad_integer(self, shifted: Sequence[Expr], channel: int, constant: Constant) -> Expr:
        """See `Packing`."""
        low, high = shifted
        if channel:
            low = tirx.shift_right(low, constant(channel * 4))
            high = tirx.shift_right(high, constant(channel // 2 * 8 + channel % 2 * 2))
        return tirx.bitwise_or(
            tirx.bitwise_and(low, constant(15)),
            tirx.shift_left(tirx.bitwise_and(high, constant(3)), constant(4)),
        )

    def _bytes(self, run: Sequence[Expr], constant: Constant) -> list[Expr]:
        """Even channels and odd ones of each eight."""
        *lows, high = run
        found = []
        for low, shifts in zip(lows, ((4, 2), (0, -2)), strict=True):
            for right, left in zip((0, 4), shifts, strict=True):
                own = tirx.shift_right(low, constant(right)) if right else low
                upper = high
                if left:
                    shift = tirx.shift_left if left > 0 else tirx.shift_right
                    upper = shift(high, constant(abs(left)))
                found.append(
                    tirx.bitwise_or(
                        tirx.bitwise_and(own, constant(NIBBLES_OF_WORD)),
                        tirx.bitwise_and(upper, constant(UPPER_PAIRS)),
                    )
                )
        return found

    def halves(self, run: Sequence[Expr]) -> list[Expr]:
        """Even channels and odd channels of the first eight, then of the others."""
        return self._bytes(run, word)

    def in_order(self, run: Sequence[Expr]) -> list[Expr]:
        """As those of `Nibbles`, of the first eight, then of the others."""
        found = []
        parts = [bind(part) for part in self._bytes(run, word)]
        low, high, half = word(0xFFFF), word(0xFFFF0000), word(16)
        for even, odd in zip(parts[0::2], parts[1::2], strict=True):
            found += [
                tirx.bitwise_or(tirx.bitwise_and(even, low), tirx.shift_left(odd, half)),
                tirx.bitwise_or(tirx.shift_right(even, half), tirx.bitwise_and(odd, high)),
            ]
        return found

    def centred(self, run: Sequence[Expr], constant: Constant) -> list[Expr]:
        """Minus 31: no byte borrows from the next."""
        return less_zero_point(self._bytes(run, constant), self.zero_point, constant)

    def pack(self, values: UInt8Array) -> UInt32Array:
        """See `Packing`."""
        # (rows, runs, which eight, pair of the eight, even or odd)
        parts = np.ascontiguousarray(values).reshape(len(values), -1, 2, 4, 2)
        runs = np.empty((*parts.shape[:2], self.run_words, 4), np.uint8)
        low, high = parts & np.uint8(15), parts >> np.uint8(4)
        runs[:, :, :_LOW] = low[..., 0] | (low[..., 1] << np.uint8(4))
        first, second = (high[:, :, eight] for eight in range(2))
        runs[:, :, _LOW] = (
            first[..., 0]
            | (first[..., 1] << np.uint8(2))
            | (second[..., 0] << np.uint8(4))
            | (second[..., 1] << np.uint8(6))
        )
        return words_of(runs.reshape(len(values), -1))

    def unpack(self, words: UInt32Array) -> UInt8Array:
        """See `Packing`."""
        runs = octets_of(words).reshape(len(words), -1, self.run_words, 4)
        values = np.empty((*runs.shape[:2], 2, 4, 2), np.uint8)
        high = runs[:, :, _LOW]
        for eight in range(2):
            for odd in range(2):
                low = (runs[:, :, eight] >> np.uint8(4 * odd)) & np.uint8(15)
                upper = (high >> np.uint8(4 * eight + 2 * odd)) & np.uint8(3)
                values[:, :, eight, :, odd] = low | (upper << np.uint8(4))
        return values.reshape(len(words), -1)


NIBBLES, SIXES, BYTES = Nibbles(), Sixes(), Bytes()
PRODUCT_PACKINGS: Mapping[int, ProductPacking] = {one.bits: one for one in (NIBBLES, SIXES, BYTES)}


def packing_of(bits: int) -> Packing:
    """The packing of integers of so many bits."""
    return PRODUCT_PACKINGS.get(bits, Packing(bits))


def product_packing(bits: int) -> ProductPacking:
    """The same, of those that meet int8; KeyError for others."""
    return PRODUCT_PACKINGS[bits]
