"""Rows of a sequence in the host's memory: of full layers all, of sliding ones those that matter.

The rows that full layers have of a prefix are a list of blocks, of which a longer prefix has the
first ones, too. Of sliding layers each prefix has its own block: what tokens after it attend to.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import numpy.typing as npt

from gemma4_compile.runtime.device.device import ALIGNMENT_BYTES, Device
from gemma4_compile.runtime.device.host_memory import memory_for_copies
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.library.kv_rows import RowEntry
from gemma4_compile.runtime.library.row_stream import Rows

SLACK = 64
"""So many tokens may be taken back of a prefix: a template's words at its end are often others."""


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Rows of several entries; it counts and is kept as a whole.

    Attributes
    ----------
    memory_bytes : of the piece that they lie in, where it has room for more
    """

    rows: tuple[Rows, ...]
    memory_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps."""
        return max(self.memory_bytes, sum(one.array.nbytes for one in self.rows))


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


def link(entries: tuple[RowEntry, ...]) -> int:
    """Rows before `shortest` that every ring of a prefix has: see `PrefixTree`."""
    return min((entry.window for entry in entries if entry.window > 1), default=1) - 1


def saved_bytes(entries: tuple[RowEntry, ...], itemsize: int, length: int) -> int:
    """Bytes of a prefix of so many tokens at most, with those of the rows that others share."""
    return row_bytes(entries, itemsize, length) + ring_bytes(entries, itemsize, length)


def row_bytes(entries: tuple[RowEntry, ...], itemsize: int, count: int) -> int:
    """Bytes of the rows of full layers of so many tokens."""
    rows = (
        min(max(0, count - x.first), x.rows) * x.heads * x.head_dim
        for x in entries
        if x.window == 0
    )
    return 2 * itemsize * sum(rows)


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
    chunk: int = 0,
    *,
    memory: Callable[[int], npt.NDArray[np.uint8]] | None = None,
    waits: bool = True,
) -> SavedRows:
    """Copy what a sequence holds.

    Parameters
    ----------
    base : a prefix of the same tokens, whose rows are not copied again
    length : that many of its tokens, which the rings must still have; by default all
    chunk : most tokens by which rings are to begin earlier than they need, so that there is no gap
        between these and those of `base`: then all tokens down to the end of `base` can be left
    memory : makes that of so many bytes, at least; by default `memory_for_copies`
    waits : until all are there. Else they are after `Device.wait`, and are copied before whatever
        the device is given next
    """
    if length is None:
        length = sequence.length
    shortest = length - SLACK
    begin = 0 if base is None else base.length
    joined = begin + link(entries)
    if shortest - chunk <= joined < shortest:
        shortest = joined
    if shortest <= link(entries):
        shortest = 0  # the rings have all rows from the first on
    shortest = max(sequence.shortest, shortest)
    full: list[tuple[int, int, int]] = []
    rings: list[tuple[int, int, int]] = []
    for index, entry in enumerate(entries):
        if entry.window == 0:
            first, last = max(begin, entry.first), min(length, entry.first + entry.rows)
        elif entry.window > 1:
            first, last = ring_first(entry, shortest), length
        else:
            continue  # a token sees itself alone
        if first < last:
            (rings if entry.window else full).append((index, first, last - first))
    take = memory or partial(memory_for_copies, device)
    own, ring_block = _read(sequence, full, take), _read(sequence, rings, take)
    if waits:
        device.wait()
    blocks = () if base is None else base.blocks
    return SavedRows(length, shortest, (*blocks, own), ring_block, owner)


def _read(
    sequence: Sequence,
    spans: list[tuple[int, int, int]],
    take: Callable[[int], npt.NDArray[np.uint8]],
) -> RowBlock:
    """Begin to copy rows: of each entry a first position and a number; into one piece of memory."""
    entries, name = sequence.row_entries()
    dtype, begin, places = np.dtype(name), 0, list[slice]()
    shapes = [(2, count, entries[i].heads, entries[i].head_dim) for i, _, count in spans]
    for shape in shapes:
        end = begin + prod(shape) * dtype.itemsize
        places.append(slice(begin, end))
        begin = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    memory, found = take(begin), list[Rows]()
    for (index, first, _), shape, place in zip(spans, shapes, places, strict=True):
        array = memory[place].view(dtype).reshape(shape)
        sequence.read_rows(index, first, array)
        found.append(Rows(index, first, array))
    return RowBlock(tuple(found), len(memory))


def restore(
    sequence: Sequence,
    saved: SavedRows,
    count: int,
    device: Device,
    *,
    before: SavedRows | None = None,
    placed: int = 0,
    waits: bool = True,
) -> tuple[int, int]:
    """Have a sequence hold the first `count` tokens of a prefix, and nothing else.

    An interrupted one is left without tokens. The bytes that were copied are returned, and how many
    of the tokens in `placed` were there.

    Parameters
    ----------
    before : a shorter prefix, with the rows of rings that `saved` has not: see `Way`
    placed : its first tokens of which full layers have the rows already, from what it held
    waits : until all have come. Else they come before whatever the device is given next, and the
        prefixes have to be kept as long.
    """
    entries, _ = sequence.row_entries()
    lowest = saved.shortest if before is None else min(saved.shortest, before.shortest)
    spare = min((entry.rows - entry.window + 1 for entry in entries if entry.window > 1), default=0)
    floor = max(lowest, count - min(SLACK, spare), 0)
    slot = sequence.slot
    sequence.clear()
    if sequence.slot != slot:
        placed = 0
    end = saved.length if saved.length - count <= spare else count
    full = (rows for block in saved.blocks for rows in block.rows)
    pieces = [piece for rows in full for piece in _needed(rows, placed, count)]
    pieces += _rings(entries, saved, before, floor, end)
    sequence.send_rows(pieces)
    if waits:
        sequence.join_rows()
        device.wait()
    sequence.resume(end, floor)
    if count < end:
        taken = sequence.pop(end - count)
        assert taken, "the rings have what it attends to"
    return sum(rows.array.nbytes for rows in pieces), placed


def _rings(
    entries: tuple[RowEntry, ...],
    saved: SavedRows,
    before: SavedRows | None,
    floor: int,
    end: int,
) -> list[Rows]:
    """Rows of rings to write, in this order: a later one may lie where an earlier one is done with.

    They are those that the token at `floor` attends to, and all up to `end`. None may come to lie
    where a needed one does.
    """
    found: list[Rows] = []
    own = {rows.entry: rows.first for rows in saved.rings.rows}
    for rows in () if before is None else before.rings.rows:
        found += _needed(rows, ring_first(entries[rows.entry], floor), own[rows.entry])
    for rows in saved.rings.rows:
        first = ring_first(entries[rows.entry], floor)
        found += _needed(rows, first, end, whole=end == saved.length)
    return found


def _needed(rows: Rows, first: int, last: int, *, whole: bool = True) -> list[Rows]:
    """Those of positions from `first` to before `last`; all if they may be and half are needed.

    A part of them has to be copied within the host's memory first.
    """
    count = rows.array.shape[1]
    begin, end = max(first - rows.first, 0), min(last - rows.first, count)
    if begin >= end:
        return []
    if end - begin == count or (whole and 2 * (end - begin) >= count):
        return [rows]
    return [Rows(rows.entry, rows.first + begin, rows.array[:, begin:end])]
