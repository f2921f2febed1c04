"""Rows: how many positions an operator has. Asked for by `match`, never by a number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import tirx

from gemma4_compile.operators.types import Index


@dataclass(frozen=True)
class Rows:
    """Positions of an operator; the base class of its forms."""

    @classmethod
    def from_description(cls, values: Mapping[str, object]) -> type[Rows]:
        """Return the class of rows from their fields."""
        return {vars(one)["form"]: one for one in cls.__subclasses__()}[values["form"]]

    @property
    def prefix(self) -> str:
        """What the name of a kernel of them begins with."""
        return ""

    def lead(self, row: Index) -> tuple[Index, ...]:
        """A row, or their number, in front of other axes; nothing for one position."""
        return (row,)

    def extent(self) -> Index:
        """The number, or a fresh symbolic variable for it."""
        return tirx.Var("n", "int64")

    def count(self, rows: int) -> int:
        """The number where a symbolic one is `rows`."""
        return rows


@dataclass(frozen=True)
class One(Rows):
    """The position of a decode step."""

    form: str = "one"

    def lead(self, row: Index) -> tuple[Index, ...]:
        return ()

    def extent(self) -> Index:
        return 1

    def count(self, rows: int) -> int:
        return 1


@dataclass(frozen=True)
class Few(Rows):
    """At most so many, as of a step that checks drafts: any number up to it."""

    most: int = 1
    form: str = "few"

    @property
    def prefix(self) -> str:
        return "few_row_"

    def count(self, rows: int) -> int:
        return min(rows, self.most)


@dataclass(frozen=True)
class Joint(Rows):
    """At most so many, each of a sequence of its own: any number up to it."""

    most: int = 1
    form: str = "joint"

    @property
    def prefix(self) -> str:
        return "joint_"

    def count(self, rows: int) -> int:
        return min(rows, self.most)


@dataclass(frozen=True)
class OneOf(Rows):
    """One of at most so many, each of a sequence of its own: a scalar says which."""

    most: int = 1
    form: str = "one_of"

    @property
    def prefix(self) -> str:
        return "one_row_"

    def count(self, rows: int) -> int:
        return min(rows, self.most)


@dataclass(frozen=True)
class Chunk(Rows):
    """Those of a prefill chunk: any number."""

    form: str = "chunk"


def rows_of_extent(extent: Index) -> Rows:
    """The form of a tensor's rows by their number: one, or those of a chunk."""
    return ONE if isinstance(extent, int) and extent == 1 else CHUNK


def most_of(rows: Rows) -> int:
    """The most rows of a few."""
    assert isinstance(rows, Few), "chosen for them"
    return rows.most


ONE, FEWEST, CHUNK = One(), Few(), Chunk()
