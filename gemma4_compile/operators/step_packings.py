"""Packings of integers with a scale a row, as they meet vectors of int8 with one step.

Their words become words of levels, the zero point minus the integer, which signed bytes hold for
any code. Meaning of the steps: static_rounding.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import tirx

from gemma4_compile.operators.packing import (
    ONES,
    TOP_BITS,
    Constant,
    ProductPacking,
    joined_halves,
    less_zero_point,
    word,
)
from gemma4_compile.operators.packings import OTHER_BITS, Bytes, Nibbles
from gemma4_compile.operators.tir import bind
from gemma4_compile.operators.types import Expr

PAIRS_OF_WORD = 0x03030303


class StepPacking(ProductPacking):
    """A packing whose words, each a run, also become words of levels."""

    @abstractmethod
    def levels(self, packed: Expr, constant: Constant) -> list[Expr]:
        """The zero point minus the words of `halves`, of one word or, by `constant`, of several."""

    def ordered_levels(self, packed: Expr) -> list[Expr]:
        """The zero point minus the words of `in_order`."""
        return self._less(self.in_order([packed]), word)

    @abstractmethod
    def arranged(self, words: Sequence[Expr], constant: Constant) -> list[Expr]:
        """Words of a packed vector in the order of `halves`: of four words a run of 16 channels."""

    def _less(self, parts: Sequence[Expr], constant: Constant) -> list[Expr]:
        """The zero point minus bytes far below 128: none borrows from the next."""
        top, above = constant(TOP_BITS), constant(TOP_BITS + self.zero_point * ONES)
        return [tirx.bitwise_xor(above - part, top) for part in parts]


@dataclass(frozen=True)
class Pairs(StepPacking):
    """2 bits: levels -2 to 1."""

    bits: int = 2

    @property
    def interleaved(self) -> bool:
        """A word yields every fourth channel."""
        return True

    @property
    def byte_zero(self) -> int:
        """They are as they are stored."""
        return self.zero_point

    def halves(self, run: Sequence[Expr]) -> list[Expr]:
        """The first channels of four fours, the second ones, and so on."""
        return self._bytes(run[0], word)

    def in_order(self, run: Sequence[Expr]) -> list[Expr]:
        """A byte's channels 0, 2, 1, 3 as bytes, of each byte."""
        first, parts = bind(run[0]), []
        for index in range(4):
            moved = tirx.shift_right(first, word(8 * index)) if index else first
            byte = bind(tirx.bitwise_and(moved, word(255)))
            spread = byte
            for amount in (4, 14, 18):
                spread = tirx.bitwise_or(spread, tirx.shift_left(byte, word(amount)))
            parts.append(tirx.bitwise_and(spread, word(PAIRS_OF_WORD)))
        return parts

    def centred(self, run: Sequence[Expr], constant: Constant) -> list[Expr]:
        """Minus 1: no byte borrows from the next."""
        return less_zero_point(self._bytes(run[0], constant), self.zero_point, constant)

    def levels(self, packed: Expr, constant: Constant) -> list[Expr]:
        """1 minus each."""
        return self._less(self._bytes(packed, constant), constant)

    def arranged(self, words: Sequence[Expr], constant: Constant) -> list[Expr]:
        """Of four words their first channels, their second ones, and so on."""
        eight, odd, even = constant(8), constant(0xFF00FF00), constant(0x00FF00FF)
        result: list[Expr] = []
        for first in range(0, len(words), 4):
            one, two, three, four = words[first : first + 4]
            outer = [bind(half) for half in joined_halves(one, three, constant)]
            inner = [bind(half) for half in joined_halves(two, four, constant)]
            near, far = [], []
            for a, b in zip(outer, inner, strict=True):  # channels 0 and 2, then 1 and 3
                moved = tirx.shift_left(tirx.bitwise_and(b, even), eight)
                near.append(bind(tirx.bitwise_or(tirx.bitwise_and(a, even), moved)))
                moved = tirx.bitwise_and(tirx.shift_right(a, eight), even)
                far.append(bind(tirx.bitwise_or(moved, tirx.bitwise_and(b, odd))))
            result += [*near, *far]
        return result

    def _bytes(self, packed: Expr, constant: Constant) -> list[Expr]:
        mask = constant(PAIRS_OF_WORD)
        parts = [packed, *(tirx.shift_right(packed, constant(by)) for by in (2, 4, 6))]
        return [tirx.bitwise_and(part, mask) for part in parts]


@dataclass(frozen=True)
class SteppedNibbles(Nibbles, StepPacking):
    """4 bits: levels -8 to 7."""

    def levels(self, packed: Expr, constant: Constant) -> list[Expr]:
        """7 minus each."""
        return self._less(self._bytes(packed, constant), constant)

    def arranged(self, words: Sequence[Expr], constant: Constant) -> list[Expr]:
        """Even and odd channels of each run of eight."""
        pairs = zip(words[0::2], words[1::2], strict=True)
        return [bind(half) for pair in pairs for half in joined_halves(*pair, constant)]


@dataclass(frozen=True)
class SteppedBytes(Bytes, StepPacking):
    """8 bits: levels -128 to 127, and codes up to 255."""

    def levels(self, packed: Expr, constant: Constant) -> list[Expr]:
        """127 minus each."""
        return [tirx.bitwise_xor(packed, constant(OTHER_BITS))]

    def ordered_levels(self, packed: Expr) -> list[Expr]:
        """The same."""
        return self.levels(packed, word)

    def arranged(self, words: Sequence[Expr], constant: Constant) -> list[Expr]:
        """As they are."""
        return list(words)


STEP_PACKINGS: Mapping[int, StepPacking] = {
    one.bits: one for one in (Pairs(), SteppedNibbles(), SteppedBytes())
}


def step_packing(bits: int) -> StepPacking | None:
    """The packing of integers of so many bits; None where vectors with one step meet none."""
    return STEP_PACKINGS.get(bits)
