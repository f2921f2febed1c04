"""What a packing is: how integers lie in 32-bit words, and how they meet vectors of int8.

Channel ``c`` of a row lies in word ``c // n``, bits ``bits * (c % n)`` upwards, with
``n = 32 / bits`` channels to a word, where bits divide a word; 6 bits lie in runs of three words
(`packings.Sixes`). An integer q means ``q - zero_point``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from tvm import tirx

from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.spreads import Spread
from gemma4_compile.operators.types import Expr, Index
from gemma4_compile.types import Array

UInt8Array = npt.NDArray[np.uint8]
UInt32Array = npt.NDArray[np.uint32]

TOP_BITS, ONES = 0x80808080, 0x01010101
Constant = Callable[[int], Expr]
Channel = TypeVar("Channel", int, Expr)


def joined_halves(near: Expr, far: Expr, constant: Constant) -> tuple[Expr, Expr]:
    """The lower halves of two words as one, and the upper ones; each word is read twice."""
    sixteen, low, high = constant(16), constant(0xFFFF), constant(0xFFFF0000)
    lower = tirx.bitwise_or(tirx.bitwise_and(near, low), tirx.shift_left(far, sixteen))
    upper = tirx.bitwise_or(tirx.shift_right(near, sixteen), tirx.bitwise_and(far, high))
    return lower, upper


def word(value: int) -> Expr:
    """A constant word."""
    return tirx.const(value, "uint32")


@dataclass(frozen=True)
class Packing:
    """Integers of any number of bits that divides a word: read one by one."""

    bits: int

    @property
    def run_words(self) -> int:
        """Words that whole integers fill together."""
        return 1

    @property
    def run(self) -> int:
        """Channels of a run: their integers lie in its words."""
        return 32 * self.run_words // self.bits

    def words(self, channels: Channel) -> Channel:
        """Words of so many channels, or the first one of the run that holds a channel."""
        return channels // self.run * self.run_words

    @property
    def zero_point(self) -> int:
        """The stored integer that means 0."""
        return int(2 ** (self.bits - 1)) - 1

    def integer(self, read: Callable[[Index], Expr], position: Index) -> Expr:
        """The stored integer at a 0-based channel of a run, minus the zero point, as float32.

        Parameters
        ----------
        read : a word of the run
        """
        value = tirx.bitwise_and(
            tirx.shift_right(read(0), shift_by(position * self.bits)), word(2**self.bits - 1)
        )
        return as_f32(value) - f32(self.zero_point)

    def quad_places(self, quad: Expr) -> list[tuple[Expr, Expr]]:
        """Where four channels of a row lie that begin at ``4 * quad``: words, and bits below."""
        quads = self.run // 4
        return [(tirx.floordiv(quad, quads), tirx.floormod(quad * 4, self.run) * self.bits)]

    def quad_integer(self, shifted: Sequence[Expr], channel: int, constant: Constant) -> Expr:
        """One of the four, from their words without the bits below, or from vectors of those."""
        mask = constant(2**self.bits - 1)
        packed = shifted[0]
        if channel:
            packed = tirx.shift_right(packed, constant(channel * self.bits))
        return tirx.bitwise_and(packed, mask)

    def pack(self, values: UInt8Array) -> UInt32Array:
        """Words (rows, words of cols) of integers (rows, cols), each below 2 ** bits."""
        parts = np.ascontiguousarray(values).reshape(len(values), -1, 8 // self.bits)
        return words_of(np.bitwise_or.reduce(parts << self._shifts, axis=2))

    def unpack(self, words: UInt32Array) -> UInt8Array:
        """Undo `pack`."""
        parts = octets_of(words)[:, :, None] >> self._shifts
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

    @property
    def fills_pieces(self) -> bool:
        """Whether a group's integers are whole pieces of 16 bytes, as tensor cores read them."""
        return True

    def runs(self, packed: Sequence[Expr]) -> list[Sequence[Expr]]:
        """Neighbouring words, run by run."""
        return [packed[at : at + self.run_words] for at in range(0, len(packed), self.run_words)]

    @abstractmethod
    def halves(self, run: Sequence[Expr]) -> list[Expr]:
        """Words of bytes from a run: all channels, or by turns the even ones and the odd ones."""

    @abstractmethod
    def in_order(self, run: Sequence[Expr]) -> list[Expr]:
        """Words of bytes from a run, in the order of a packed vector."""

    @abstractmethod
    def centred(self, run: Sequence[Expr], constant: Constant) -> list[Expr]:
        """The words of `halves` minus the zero point, of one run or, by `constant`, of several."""


def shift_by(amount: Index) -> Expr:
    """A number of bits as the word that shifts take."""
    return word(amount) if isinstance(amount, int) else amount.astype("uint32")


def less_zero_point(parts: Sequence[Expr], zero_point: int, constant: Constant) -> list[Expr]:
    """Bytes below 128 minus a zero point: the top bit keeps each from borrowing of the next."""
    top, zeros = constant(TOP_BITS), constant(zero_point * ONES)
    raised = [tirx.bitwise_or(part, top) for part in parts]
    return [tirx.bitwise_xor(part - zeros, top) for part in raised]


def words_of(octets: UInt8Array) -> UInt32Array:
    """Words from their bytes, the lowest first."""
    return np.ascontiguousarray(octets).view("<u4").astype(np.uint32, copy=False)


def octets_of(words: UInt32Array) -> UInt8Array:
    """The bytes of words, the lowest first."""
    return np.ascontiguousarray(words).astype("<u4", copy=False).view(np.uint8)
