"""The header of a GGUF file: metadata and places of tensors, checked before anything is used.

The format is described in ggml's `docs/gguf.md`. Of the file no more than the header is read, in
blocks: whatever counts and lengths it claims, time and memory are bounded by its own bytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from gemma4_compile.checkpoint.beginnings import BEGIN_BYTES, check_is_file_itself
from gemma4_compile.checkpoint.gguf.files import MAGIC
from gemma4_compile.checkpoint.gguf.types import BlockType, block_type
from gemma4_compile.checkpoint.safetensors_file import MAX_TENSORS, Stamp, stamp_of
from gemma4_compile.errors import CheckpointError
from gemma4_compile.system import regular_files

Value = int | float | bool | str | list[str] | npt.NDArray[np.generic]
"""Of metadata; arrays of numbers stay as they are in the file."""

MAX_HEADER_BYTES = 64 << 20  # with 262,144 tokens and their merges it has some 17 MB
MAX_KEYS = 4096
MAX_TEXTS = 2 << 20  # of all arrays
MAX_NAME = 256
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 16
_BLOCK = 1 << 20
_VERSIONS = (2, 3)
_DOWNLOAD_AGAIN = "download the file again"
_STRING, _ARRAY = 8, 9
_SCALARS = {
    **{0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?"},
    **{10: "<u8", 11: "<i8", 12: "<f8"},
}


@dataclass(frozen=True)
class Entry:
    """A tensor of a file; `shape` as arrays have it, the slowest axis first."""

    name: str
    type: BlockType
    shape: tuple[int, ...]
    offset_bytes: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """What a file says of itself; `stamp` is the file's when that was read."""

    path: Path
    stamp: Stamp
    metadata: Mapping[str, Value]
    tensors: Mapping[str, Entry]


class _Cursor:
    """Takes bytes one after the other; ValueError says what is wrong with them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._data, self._place = file, b"", 0
        self._before = 0  # bytes of blocks that were dropped
        self.texts = 0

    @property
    def position(self) -> int:
        """Bytes taken."""
        return self._before + self._place

    def take(self, count: int) -> bytes:
        """The next bytes."""
        end = self._place + count
        if end > len(self._data):
            if self.position + count > MAX_HEADER_BYTES:
                raise ValueError(f"it has more than {MAX_HEADER_BYTES} bytes")
            rest = self._data[self._place :]
            self._before, self._place, end = self.position, 0, count
            self._data = rest + self._file.read(max(_BLOCK, count - len(rest)))
            if count > len(self._data):
                raise ValueError("the file ends in it")
        found = self._data[self._place : end]
        self._place = end
        return found

    def unsigned(self, count: int) -> int:
        """An unsigned integer of so many bytes."""
        return int.from_bytes(self.take(count), "little")

    def text(self) -> str:
        """A text with its length before it."""
        return self.take(self.unsigned(8)).decode("utf-8")

    def name(self) -> str:
        """A text that names something."""
        length = self.unsigned(8)
        if not 0 < length <= MAX_NAME:
            raise ValueError(f"a name of {length} bytes")
        return self.take(length).decode("utf-8")

    def value(self, kind: int) -> Value:
        """A value of metadata."""
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array(self.unsigned(4), self.unsigned(8))
        found: Value = self._numbers(kind, 1)[0].item()
        return found

    def _numbers(self, kind: int, count: int) -> npt.NDArray[np.generic]:
        if kind not in _SCALARS:
            raise ValueError(f"a value of the unknown type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)

    def _array(self, kind: int, count: int) -> Value:
        if kind != _STRING:
            return self._numbers(kind, count)
        self.texts += count
        if self.texts > MAX_TEXTS:
            raise ValueError(f"arrays of more than {MAX_TEXTS} texts")
        return [self.text() for _ in range(count)]


def read_header(path: Path) -> Header:
    """Read and check the header of a GGUF file.

    Raises
    ------
    CheckpointError
        If the file cannot be read, is truncated, or its header is damaged: counts, lengths, types,
        shapes, and data that overlaps or does not lie in the file.
    """
    try:
        with regular_files.open_regular(path) as file:
            found = os.fstat(file.fileno())
            begin = file.read(BEGIN_BYTES)
            if not begin.startswith(MAGIC):
                check_is_file_itself(path.name, begin)
            file.seek(0)
            cursor = _Cursor(file)
            metadata, entries, data = _read(cursor, found.st_size)
    except OSError as error:
        raise CheckpointError(f"cannot read `{path.name}`: {error.strerror}") from error
    except ValueError as error:  # UnicodeDecodeError is one, too
        what = "a text that is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise CheckpointError(
            f"the header of `{path.name}` is damaged: {what}", hint=_DOWNLOAD_AGAIN
        ) from error
    tensors = _placed(path, entries, data, found.st_size)
    return Header(path, stamp_of(found), metadata, tensors)


def _read(cursor: _Cursor, size: int) -> tuple[dict[str, Value], list[Entry], int]:
    """Metadata, tensors at offsets of the data, and where the data begins."""
    if cursor.take(4) != MAGIC:
        raise ValueError("it does not begin with `GGUF`")
    version = cursor.unsigned(4)
    if version not in _VERSIONS:
        other = struct.unpack(">I", version.to_bytes(4, "little"))[0] in _VERSIONS
        raise ValueError(
            "it is written for machines with the other order of bytes"
            if other
            else f"version {version} of the format, versions 2 and 3 are read"
        )
    tensor_count, key_count = cursor.unsigned(8), cursor.unsigned(8)
    if tensor_count > min(MAX_TENSORS, size) or key_count > MAX_KEYS:
        raise ValueError(f"{tensor_count} tensors and {key_count} keys")
    metadata: dict[str, Value] = {}
    for _ in range(key_count):
        key = cursor.name()
        if key in metadata:
            raise ValueError(f"the key `{key}` is there twice")
        metadata[key] = cursor.value(cursor.unsigned(4))
    alignment = metadata.get("general.alignment", 32)
    if (
        not isinstance(alignment, int)
        or not 0 < alignment <= _MAX_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        raise ValueError("its alignment is no power of two")
    entries = [_entry(cursor, alignment) for _ in range(tensor_count)]
    return metadata, entries, -(-cursor.position // alignment) * alignment


def _entry(cursor: _Cursor, alignment: int) -> Entry:
    name = cursor.name()
    dimensions = cursor.unsigned(4)
    if not 0 < dimensions <= _MAX_DIMENSIONS:
        raise ValueError(f"tensor `{name}` has {dimensions} dimensions")
    shape = tuple(cursor.unsigned(8) for _ in range(dimensions))[::-1]
    if not all(0 < length < 1 << 40 for length in shape):
        raise ValueError(f"tensor `{name}` has shape {shape}")
    found = block_type(cursor.unsigned(4), name)
    offset = cursor.unsigned(8)
    if shape[-1] % found.elements:
        raise ValueError(f"tensor `{name}` of {found.name} has rows of {shape[-1]} elements")
    if offset % alignment:
        raise ValueError(f"tensor `{name}` begins at {offset}, alignment {alignment}")
    return Entry(name, found, shape, offset, prod(shape) // found.elements * found.nbytes)


def _placed(path: Path, entries: list[Entry], begin: int, size: int) -> dict[str, Entry]:
    """The tensors by name, at offsets of the file."""
    found: dict[str, Entry] = {}
    end = 0
    for entry in sorted(entries, key=lambda one: (one.offset_bytes, one.nbytes)):
        where = f"tensor `{entry.name}` in `{path.name}`"
        if entry.name in found:
            raise CheckpointError(f"{where} is there twice", hint=_DOWNLOAD_AGAIN)
        if entry.offset_bytes < end:
            raise CheckpointError(f"{where} overlaps another", hint=_DOWNLOAD_AGAIN)
        end = entry.offset_bytes + entry.nbytes
        if begin + end > size:
            raise CheckpointError(
                f"`{path.name}` is truncated: {where} needs {begin + end} bytes of the file, it "
                f"has {size}",
                hint=_DOWNLOAD_AGAIN,
            )
        found[entry.name] = Entry(
            entry.name, entry.type, entry.shape, begin + entry.offset_bytes, entry.nbytes
        )
    return found
