"""A few neighbouring channels as one value: the widest loads that a row's length allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

WIDEST = 4


@dataclass(frozen=True)
class Vectors:
    """Values of `size` channels; 1 stands for plain scalars."""

    size: int

    @classmethod
    def dividing(cls, *widths: int) -> Vectors:
        """The widest that divide all of these widths."""
        return cls(WIDEST if all(width % WIDEST == 0 for width in widths) else 1)

    def at(self, index: Any) -> Any:
        """The place of vector `index` along a row."""
        return self.from_channel(index * self.size)

    def from_channel(self, channel: Any) -> Any:
        """The place of the vector that begins at `channel`, a multiple of `size`."""
        return T.ramp(channel, 1, self.size) if self.size > 1 else channel

    def dtype(self, name: str) -> str:
        """The type of vectors of `name`."""
        return f"{name}x{self.size}" if self.size > 1 else name

    def cast(self, value: Any, name: str) -> Any:
        """`value` with elements of type `name`."""
        return value.astype(self.dtype(name))

    def splat(self, value: Any) -> Any:
        """A scalar in every lane."""
        return tirx.Broadcast(value, self.size) if self.size > 1 else value

    def lanes(self, value: Any) -> list[Any]:
        """The channels of a vector."""
        if self.size == 1:
            return [value]
        return [tirx.Shuffle([value], [lane]) for lane in range(self.size)]

    def join(self, values: Sequence[Any]) -> Any:
        """A vector of scalars; the inverse of `lanes`."""
        return tirx.Shuffle(list(values), list(range(self.size))) if self.size > 1 else values[0]

    def sum(self, value: Any) -> Any:
        """The sum of a vector's channels."""
        first, *others = self.lanes(value)
        return sum(others, first)

    def dot(self, total: Any, left: Any, right: Any) -> Any:
        """``total + left . right``, as a chain of multiply-adds."""
        for a, b in zip(self.lanes(left), self.lanes(right), strict=True):
            total = total + a * b
        return total
