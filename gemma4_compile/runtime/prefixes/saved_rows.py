"""Rows of a sequence in the host's memory: of full layers all, of sliding ones those that matter.

The rows that full layers have of a prefix are a list of blocks, of which a longer prefix has the
first ones, too. Of sliding layers each prefix has its own block: what tokens after it attend to.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from dataclasses import dataclass

from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.library.kv_rows import RowEntry
from gemma4_compile.types import Array

SLACK = 64
"""So many tokens may be taken back of a prefix: a template's words at its end are often others."""


@dataclass(frozen=True)
class Rows:
    """Rows of one entry of a state: (2, n, heads, head_dim), keys first, from a position on."""

    entry: int
    first: int
    array: Array


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Rows of several entries; it counts and is kept as a whole."""

    rows: tuple[Rows, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return sum(one.array.nbytes for one in self.rows)


@dataclass(frozen=True, eq=False)
class SavedRows:
    """A prefix.

    Attributes
    ----------
    length : its tokens
    shortest : the fewest that can be left by taking back the last ones
    blocks : of full layers, in the order of their positions
    rings : of sliding layers
    owner : who asked with it first
    """

    length: int
    shortest: int
    blocks: tuple[RowBlock, ...]
    rings: RowBlock
    owner: Hashable = None

    @property
    def parts(self) -> tuple[RowBlock, ...]:
        """All of its memory."""
        return (*self.blocks, self.rings)


def ring_first(entry: RowEntry, shortest: int) -> int:
    """The first position of a ring that the token at `shortest` attends to."""
    return max(0, shortest - entry.window + 1)


def saved_bytes(entries: tuple[RowEntry, ...], itemsize: int, length: int) -> int:
    """Bytes of a prefix of so many tokens at most, with those of the rows that others share."""
    full = sum(
        min(max(0, length - x.first), x.rows) * x.heads * x.head_dim
        for x in entries
        if x.window == 0
    )
    return 2 * itemsize * full + ring_bytes(entries, itemsize, length)


def ring_bytes(entries: tuple[RowEntry, ...], itemsize: int, length: int = sys.maxsize) -> int:
    """Bytes of the rings of a prefix of so many tokens, by default of a long one."""
    rows = (
        min(x.window + SLACK - 1, length) * x.heads * x.head_dim for x in entries if x.window > 1
    )
    return 2 * itemsize * sum(rows)


def save(
    sequence: Sequence,
    entries: tuple[RowEntry, ...],
    device: Device,
    base: SavedRows | None,
    owner: Hashable,
    length: int | None = None,
) -> SavedRows:
    """Copy what a sequence holds.

    Parameters
    ----------
    base : a prefix of the same tokens, whose rows are not copied again
    length : that many of its tokens, which the rings must still have; by default all
    """
    if length is None:
        length = sequence.length
    shortest = max(sequence.shortest, length - SLACK, 0)
    begin = 0 if base is None else base.length
    full: list[Rows] = []
    rings: list[Rows] = []
    for index, entry in enumerate(entries):
        if entry.window == 0:
            first, last = max(begin, entry.first), min(length, entry.first + entry.rows)
        elif entry.window > 1:
            first, last = ring_first(entry, shortest), length
        else:
            continue  # a token sees itself alone
        if first < last:
            rows = Rows(index, first, sequence.read_rows(index, first, last - first))
            (rings if entry.window else full).append(rows)
    device.wait()
    blocks = () if base is None else base.blocks
    return SavedRows(
        length, shortest, (*blocks, RowBlock(tuple(full))), RowBlock(tuple(rings)), owner
    )


def restore(sequence: Sequence, saved: SavedRows, count: int, device: Device) -> None:
    """Have a sequence hold the first `count` tokens of a prefix, and nothing else.

    An interrupted one is left without tokens.
    """
    sequence.clear()
    for block in saved.parts:
        for rows in block.rows:
            sequence.write_rows(rows.entry, rows.first, rows.array)
    device.wait()
    sequence.resume(saved.length, saved.shortest)
    if count < saved.length:
        taken = sequence.pop(saved.length - count)
        assert taken, "no fewer than `shortest` are asked for"
