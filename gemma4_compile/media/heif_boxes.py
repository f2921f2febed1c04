"""Items of a HEIF file: boxes of ISO 23008-12, as far as a phone's picture needs them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

_MOST = 1 << 16  # boxes of a box, items, parts of one
Parts = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Item:
    """A picture, or a part of one.

    Attributes
    ----------
    kind : `hvc1`, `grid` and others
    source : what holds its data: the file, or a box of it
    parts : begin and length of its data there
    properties : kind and content of each, in the order in which they apply
    inputs : ids of the items that it is made of
    """

    kind: bytes
    source: bytes = field(default=b"", repr=False)
    parts: Parts = ()
    properties: tuple[tuple[bytes, bytes], ...] = ()
    inputs: tuple[int, ...] = ()

    @property
    def data(self) -> bytes:
        """Its data; struct.error where the file ends before."""
        if sum(length for _, length in self.parts) > len(self.source):
            raise struct.error("an item is longer than its file")
        found = bytearray()
        for begin, length in self.parts:
            part = self.source[begin : begin + length] if length else self.source[begin:]
            if len(part) < length:
                raise struct.error("the file ends within an item")
            found += part
        return bytes(found)

    def property_of(self, kind: bytes) -> bytes:
        """The property of a kind; struct.error if there is none."""
        for name, content in self.properties:
            if name == kind:
                return content
        raise struct.error(f"an item without {kind.decode('latin-1')}")


class Numbers:
    """Big-endian numbers, one after another; struct.error at the end."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def take(self, count: int) -> bytes:
        """The next bytes."""
        found = self._content[self._at : self._at + count]
        if len(found) < count:
            raise struct.error("a box is too short")
        self._at += count
        return found

    def number(self, count: int) -> int:
        """A number of so many bytes; 0 of none."""
        return int.from_bytes(self.take(count), "big")

    def rest(self) -> bytes:
        """What is left."""
        return self._content[self._at :]


def boxes(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of the boxes that follow each other."""
    at = 0
    for _ in range(_MOST):
        if at + 8 > len(content):
            return
        size, kind = struct.unpack_from(">I4s", content, at)
        head = 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", content, at + 8)
            head = 16
        end = at + size if size else len(content)
        if (size and size < head) or end > len(content):
            raise struct.error(f"box {kind.decode('latin-1')} does not fit")
        yield kind, content[at + head : end]
        at = end
    raise struct.error("too many boxes")


def read_items(content: bytes) -> tuple[int, Mapping[int, Item]]:
    """Id of the primary picture, and all items; struct.error for a damaged file."""
    meta = dict(boxes(dict(boxes(content))[b"meta"][4:]))
    primary = Numbers(meta[b"pitm"])
    wide = primary.number(4) >> 24
    items = {}
    placed = _places(meta[b"iloc"])
    owned = _properties(meta[b"iprp"])
    for number, kind in _kinds(meta[b"iinf"]):
        in_idat, parts = placed.get(number, (False, ()))
        source = meta.get(b"idat", b"") if in_idat else content
        items[number] = Item(kind, source, parts, owned.get(number, ()))
    for number, inputs in _inputs(meta.get(b"iref", bytes(4))):
        if number in items:
            items[number] = replace(items[number], inputs=inputs)
    return primary.number(4 if wide else 2), items


def _kinds(content: bytes) -> Iterator[tuple[int, bytes]]:
    read = Numbers(content)
    version = read.number(4) >> 24
    read.take(4 if version else 2)
    for kind, entry in boxes(read.rest()):
        if kind == b"infe":
            item = Numbers(entry)
            version = item.number(4) >> 24
            number = item.number(4 if version == 3 else 2)
            item.take(2)
            yield number, item.take(4)


def _places(content: bytes) -> dict[int, tuple[bool, Parts]]:
    read = Numbers(content)
    version = read.number(4) >> 24
    sizes = read.number(2)
    offset, length, base, index = (sizes >> shift & 15 for shift in (12, 8, 4, 0))
    found: dict[int, tuple[bool, Parts]] = {}
    for _ in range(read.number(4 if version == 2 else 2)):
        number = read.number(4 if version == 2 else 2)
        method = read.number(2) & 15 if version else 0
        read.take(2)
        begin = read.number(base)
        parts = []
        for _ in range(read.number(2)):
            read.take(index if version else 0)
            parts.append((begin + read.number(offset), read.number(length)))
        found[number] = method == 1, tuple(parts)
    return found


def _inputs(content: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    read = Numbers(content)
    size = 4 if read.number(4) >> 24 else 2
    for kind, entry in boxes(read.rest()):
        if kind == b"dimg":
            item = Numbers(entry)
            number, count = item.number(size), item.number(2)
            yield number, tuple(item.number(size) for _ in range(count))


def _properties(content: bytes) -> dict[int, tuple[tuple[bytes, bytes], ...]]:
    parts = dict(boxes(content))
    known = list(boxes(parts[b"ipco"]))
    read = Numbers(parts[b"ipma"])
    head = read.number(4)
    found = {}
    for _ in range(read.number(4)):
        number = read.number(4 if head >> 24 else 2)
        size = 2 if head & 1 else 1
        numbers = [
            read.number(size) & (0x7FFF if size == 2 else 0x7F) for _ in range(read.number(1))
        ]
        found[number] = tuple(known[each - 1] for each in numbers if 0 < each <= len(known))
    return found
