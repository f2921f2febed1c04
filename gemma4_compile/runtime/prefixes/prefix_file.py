"""Files of kept prefixes: a header of JSON, then rows; the name is the hash of all of it.

A file of the kind `rows` is a block of full layers, which several prefixes may have; one of the
kind `prefix` has a prefix's tokens, the names of its blocks, and its rings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import digest
from gemma4_compile.runtime.library.kv_rows import RowEntry
from gemma4_compile.runtime.library.row_stream import Rows
from gemma4_compile.runtime.prefixes.saved_rows import RowBlock, SavedRows, ring_first

_FORMAT = "gemma4_compile.prefix"
_VERSION = 1
_ALIGNMENT = 64  # of the rows; the header's length, which is first, has 8 bytes
MOST_HEADER = 64 << 20
_SHOWN = 3  # reasons in a line


class DamagedPrefixError(ArtifactError):
    """A file that is not what was written, or that another package wrote."""


@dataclass(frozen=True)
class Layout:
    """What the files of a package have in common.

    Attributes
    ----------
    package : names the package and its library
    entries, dtype : of the state
    """

    package: str
    entries: tuple[RowEntry, ...]
    dtype: str

    @property
    def id(self) -> str:
        """A digest; files with another one are another package's, or of another context."""
        entries = [list(vars(entry).values()) for entry in self.entries]
        return digest([_FORMAT, _VERSION, self.package, entries, self.dtype])

    def shape(self, entry: int, count: int) -> tuple[int, int, int, int]:
        """Shape of rows of an entry."""
        found = self.entries[entry]
        return 2, count, found.heads, found.head_dim


@dataclass(frozen=True)
class PrefixHeader:
    """What a prefix's file says besides its rings; `blocks` are names of files."""

    keys: tuple[int, ...]
    shortest: int
    blocks: tuple[str, ...]


def encode(layout: Layout, block: RowBlock, header: PrefixHeader | None) -> list[memoryview]:
    """A file's content in pieces: of a block, or of a prefix with its rings."""
    described: dict[str, object] = {"layout": layout.id, "rows": _described(block.rows)}
    if header is not None:
        described |= {"keys": header.keys, "shortest": header.shortest, "blocks": header.blocks}
    text = json.dumps(described).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    first = len(text).to_bytes(8, "little") + text
    return [
        memoryview(first),
        *(one.array.reshape(-1).view(np.uint8).data for one in block.rows),
    ]


def name_of(pieces: Iterable[memoryview]) -> str:
    """The hash by which a file is called."""
    hashed = hashlib.sha256()
    for piece in pieces:
        hashed.update(piece)
    return hashed.hexdigest()


def decode(layout: Layout, name: str, content: memoryview) -> tuple[RowBlock, PrefixHeader | None]:
    """Read a file, whose rows use its content's memory; DamagedPrefixError for what is none."""
    if name_of([content]) != name:
        raise DamagedPrefixError("its content is not what was written")
    try:
        length = int.from_bytes(content[:8], "little")
        if length > min(MOST_HEADER, len(content) - 8):
            raise ValueError("the header is longer than the file")
        described = json.loads(bytes(content[8 : 8 + length]))
        if described["layout"] != layout.id:
            raise DamagedPrefixError("it is of another package, version or context length")
        block, end = _rows(layout, described["rows"], content, 8 + length)
        if end != len(content):
            raise ValueError(f"{len(content) - end} bytes more than its header says")
        header = _header(described) if "keys" in described else None
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise DamagedPrefixError(f"it is no file of a prefix: {error}") from error
    return block, header


def joined(
    layout: Layout, header: PrefixHeader, blocks: Listed[RowBlock], rings: RowBlock
) -> SavedRows:
    """A prefix of its parts; DamagedPrefixError unless they have every row that it needs."""
    length = len(header.keys)
    most = max((x.first + x.rows for x in layout.entries if x.window == 0), default=length)
    if length > most:
        raise DamagedPrefixError(f"{length} tokens, where a state holds {most}")
    for index, entry in enumerate(layout.entries):
        rows = [one for block in (*blocks, rings) for one in block.rows if one.entry == index]
        begin, end = entry.first, min(length, entry.first + entry.rows)
        if entry.window:
            begin = ring_first(entry, header.shortest) if entry.window > 1 else length
            end = length
            if end - begin > entry.rows:
                raise DamagedPrefixError(f"entry {index}: more rows than a ring has")
        at = begin
        for one in rows:
            if one.first != at:
                raise DamagedPrefixError(f"entry {index}: rows from {at} on are missing")
            at += one.array.shape[1]
        if at != max(begin, end):
            raise DamagedPrefixError(f"entry {index}: it ends at {at}, expected {end}")
    return SavedRows(length, header.shortest, tuple(blocks), rings)


def unread_note(path: Path, unread: Mapping[str, Listed[str]]) -> str:
    """One line for all files of a folder that are not gone on from, however many there are.

    Parameters
    ----------
    unread : names of files by why they are not read; one at least
    """
    names = [name for each in unread.values() for name in each]
    if len(names) == 1:
        return f"`{path / names[0]}` is not gone on from: {next(iter(unread))}"
    reasons = [f"{len(each)}: {why}" for why, each in unread.items()]
    more = ["..."] if len(reasons) > _SHOWN else []
    shown = "; ".join([*reasons[:_SHOWN], *more])
    return f"`{path}`: {len(names)} prefixes are not gone on from ({shown})"


def _described(rows: Iterable[Rows]) -> list[list[int]]:
    return [[one.entry, one.first, one.array.shape[1]] for one in rows]


def _rows(
    layout: Layout, described: Listed[Listed[int]], content: memoryview, begin: int
) -> tuple[RowBlock, int]:
    dtype, found = np.dtype(layout.dtype), []
    for entry, first, count in described:
        if not all(type(number) is int for number in (entry, first, count)):
            raise TypeError("numbers of rows are none")
        if not 0 <= entry < len(layout.entries) or first < 0 or count < 1:
            raise ValueError("rows that no state has")
        shape = layout.shape(entry, count)
        size = prod(shape)
        if size * dtype.itemsize > len(content) - begin:
            raise ValueError("it ends before its rows")
        array = np.frombuffer(content, dtype, size, begin).reshape(shape)
        found.append(Rows(entry, first, array))
        begin += array.nbytes
    return RowBlock(tuple(found)), begin


def _header(described: Mapping[str, object]) -> PrefixHeader:
    keys, blocks, shortest = described["keys"], described["blocks"], described["shortest"]
    if not isinstance(keys, list) or not all(type(key) is int for key in keys) or not keys:
        raise TypeError("its tokens are none")
    if not isinstance(blocks, list) or not all(isinstance(name, str) for name in blocks):
        raise TypeError("its blocks have no names")
    if type(shortest) is not int or not 0 <= shortest <= len(keys):
        raise TypeError("it cannot be taken back so far")
    return PrefixHeader(tuple(keys), shortest, tuple(blocks))
