"""A few neighbouring channels as one value: the widest loads that a row's length allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.types import Expr, Index

WIDEST = 4


@dataclass(frozen=True)
class Vectors:
    """Values of `size` channels; 1 is plain scalars."""

    size: int

    @classmethod
    def dividing(cls, *widths: int) -> Vectors:
        """The widest that divide all of these widths."""
        return cls(WIDEST if all(width % WIDEST == 0 for width in widths) else 1)

    @classmethod
    def within(cls, width: int) -> Vectors:
        """The widest of which `width` neighbours are some, and rows of them begin with one."""
        return cls(gcd(width, WIDEST))

    def at(self, index: Index) -> Index:
        """The place of vector `index` along a row."""
        return self.from_channel(index * self.size)

    def from_channel(self, channel: Index) -> Index:
        """The place of the vector that begins at `channel`, a multiple of `size`."""
        return T.ramp(channel, 1, self.size) if self.size > 1 else channel

    def dtype(self, name: str) -> str:
        """The type of vectors of `name`."""
        return f"{name}x{self.size}" if self.size > 1 else name

    def cast(self, value: Expr, name: str) -> Expr:
        """`value` with elements of type `name`."""
        return value.astype(self.dtype(name))

    def splat(self, value: Expr) -> Expr:
        """A scalar in every lane."""
        return tirx.Broadcast(value, self.size) if self.size > 1 else value

    def lanes(self, value: Expr) -> list[Expr]:
        """The channels of a vector."""
        if self.size == 1:
            return [value]
        return [tirx.Shuffle([value], [lane]) for lane in range(self.size)]

    def join(self, values: Sequence[Expr]) -> Expr:
        """A vector of scalars; the inverse of `lanes`."""
        return tirx.Shuffle(list(values), list(range(self.size))) if self.size > 1 else values[0]

    def sum(self, value: Expr) -> Expr:
        """The sum of a vector's channels."""
        total, *others = self.lanes(value)
        for lane in others:
            total = total + lane
        return total

    def dot(self, total: Expr, left: Expr, right: Expr) -> Expr:
        """``total + left . right``, as a chain of multiply-adds."""
        for a, b in zip(self.lanes(left), self.lanes(right), strict=True):
            total = total + a * b
        return total
