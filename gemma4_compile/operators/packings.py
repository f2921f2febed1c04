"""Packings: how integers of a few bits lie in 32-bit words, and how they meet vectors of int8.

Channel ``c`` of a row lies in word ``c // n``, bits ``bits * (c % n)`` upwards, with
``n = 32 / bits`` channels to a word. An integer q means ``q - zero_point``.

What a number of bits means is said here alone: everything else asks a layout's or scheme's packing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm import tirx

from gemma4_compile.operators.examples import stored_bytes
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.spreads import BYTES_BELOW_255, Spread
from gemma4_compile.operators.tir import bind
from gemma4_compile.operators.types import Expr, Index
from gemma4_compile.types import Array

UInt8Array = npt.NDArray[np.uint8]
UInt32Array = npt.NDArray[np.uint32]

NIBBLES_OF_WORD, TOP_BITS, OTHER_BITS, ONES = 0x0F0F0F0F, 0x80808080, 0x7F7F7F7F, 0x01010101
Constant = Callable[[int], Expr]


def word(value: int) -> Expr:
    """A constant word."""
    return tirx.const(value, "uint32")


@dataclass(frozen=True)
class Packing:
    """Integers of any number of bits that divides a word: read one by one."""

    bits: int

    @property
    def values_per_word(self) -> int:
        """Integers in one 32-bit word."""
        return 32 // self.bits

    @property
    def zero_point(self) -> int:
        """The stored integer that means 0."""
        return int(2 ** (self.bits - 1)) - 1

    def integer(self, packed: Expr, position: Index) -> Expr:
        """A word's stored integer at a 0-based channel, minus the zero point, as float32."""
        amount = position * self.bits
        shift = word(amount) if isinstance(amount, int) else amount.astype("uint32")
        value = tirx.bitwise_and(tirx.shift_right(packed, shift), word(2**self.bits - 1))
        return as_f32(value) - f32(self.zero_point)

    def pack(self, values: UInt8Array) -> UInt32Array:
        """Words (rows, cols / values_per_word) of integers (rows, cols), each below 2 ** bits."""
        parts = np.ascontiguousarray(values).reshape(len(values), -1, 8 // self.bits)
        return _words(np.bitwise_or.reduce(parts << self._shifts, axis=2))

    def unpack(self, words: UInt32Array) -> UInt8Array:
        """Undo `pack`."""
        parts = _octets(words)[:, :, None] >> self._shifts
        values: UInt8Array = (parts & np.uint8(2**self.bits - 1)).reshape(len(words), -1)
        return values

    @property
    def _shifts(self) -> UInt8Array:
        """Bits below each integer of a byte, which has several or one."""
        return np.arange(0, 8, self.bits, dtype=np.uint8)

    def example_words(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array | None:
        """Words for which any 32 bits would not do, or None."""
        return None

    @property
    def word_spreads(self) -> tuple[Spread, ...]:
        """Spreads of the words in the self-test; empty where any 32 bits do."""
        return ()

    @property
    def exceeds_caps(self) -> bool:
        """Whether sums with usual scales are far beyond a cap, where their errors are not."""
        return False


class ProductPacking(Packing):
    """A packing whose integers meet vectors of int8: their words become words of signed bytes."""

    @property
    @abstractmethod
    def interleaved(self) -> bool:
        """Whether a packed vector's bytes are in the order of even and odd channels (`byte_of`)."""

    @property
    @abstractmethod
    def byte_zero(self) -> int:
        """What means 0 among the bytes of `halves` and `in_order`."""

    @abstractmethod
    def halves(self, packed: Expr) -> list[Expr]:
        """Words of bytes from a word: all channels, or the even ones and the odd ones."""

    @abstractmethod
    def in_order(self, packed: Expr) -> list[Expr]:
        """Words of bytes from a word, in the order of a packed vector."""

    @abstractmethod
    def centred(self, packed: Expr, constant: Constant) -> list[Expr]:
        """The words of `halves` minus the zero point, of one word or, by `constant`, of several."""


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

    def halves(self, packed: Expr) -> list[Expr]:
        """Even channels, odd channels."""
        upper = tirx.shift_right(packed, word(4))
        return [tirx.bitwise_and(part, word(NIBBLES_OF_WORD)) for part in (packed, upper)]

    def in_order(self, packed: Expr) -> list[Expr]:
        """Nibbles 0, 2, 1, 3 as bytes, then 4, 6, 5, 7."""
        first = bind(packed)
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

    def centred(self, packed: Expr, constant: Constant) -> list[Expr]:
        """Minus 7: no byte borrows from the next."""
        top, zeros = constant(TOP_BITS), constant(self.zero_point * ONES)
        parts = (packed, tirx.shift_right(packed, constant(4)))
        raised = [
            tirx.bitwise_or(tirx.bitwise_and(part, constant(NIBBLES_OF_WORD)), top)
            for part in parts
        ]
        return [tirx.bitwise_xor(part - zeros, top) for part in raised]

    def pack(self, values: UInt8Array) -> UInt32Array:
        """See `Packing`."""
        pairs = np.ascontiguousarray(values).view("<u2")  # the even channel is the low byte
        return _words((pairs | (pairs >> np.uint16(4))).astype(np.uint8))

    def unpack(self, words: UInt32Array) -> UInt8Array:
        """See `Packing`."""
        octets = _octets(words)
        values = np.empty((octets.shape[0], 2 * octets.shape[1]), np.uint8)
        values[:, 0::2] = octets & np.uint8(15)
        values[:, 1::2] = octets >> np.uint8(4)
        return values


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

    def halves(self, packed: Expr) -> list[Expr]:
        """One word."""
        return [tirx.bitwise_xor(packed, word(TOP_BITS))]

    def in_order(self, packed: Expr) -> list[Expr]:
        """The same word."""
        return self.halves(packed)

    def centred(self, packed: Expr, constant: Constant) -> list[Expr]:
        """Minus 127: minus 128, plus 1, and no byte carries."""
        flipped = bind(tirx.bitwise_xor(packed, constant(TOP_BITS)))
        others = tirx.bitwise_and(flipped, constant(OTHER_BITS))
        top = tirx.bitwise_and(flipped, constant(TOP_BITS))
        return [tirx.bitwise_xor(others + constant(ONES), top)]

    def pack(self, values: UInt8Array) -> UInt32Array:
        """See `Packing`."""
        return _words(values)

    def unpack(self, words: UInt32Array) -> UInt8Array:
        """See `Packing`."""
        return _octets(words)

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


def _words(octets: UInt8Array) -> UInt32Array:
    return np.ascontiguousarray(octets).view("<u4").astype(np.uint32, copy=False)


def _octets(words: UInt32Array) -> UInt8Array:
    return np.ascontiguousarray(words).astype("<u4", copy=False).view(np.uint8)


NIBBLES, BYTES = Nibbles(), Bytes()
PRODUCT_PACKINGS: Mapping[int, ProductPacking] = {one.bits: one for one in (NIBBLES, BYTES)}


def packing_of(bits: int) -> Packing:
    """The packing of integers of so many bits."""
    return PRODUCT_PACKINGS.get(bits, Packing(bits))


def product_packing(bits: int) -> ProductPacking:
    """The same, of those that meet int8; KeyError for others."""
    return PRODUCT_PACKINGS[bits]
