"""Weights where they lie in a package's shards: mapped, or read a piece at a time."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import Shard, TensorRecord
from gemma4_compile.system.regular_files import open_regular
from gemma4_compile.types import Array

_HINT = "compile the package again"


class ShardFile:
    """A shard that is open."""

    def __init__(self, path: Path, file: BufferedReader) -> None:
        self._path, self._file = path, file

    @cached_property
    def mapped(self) -> npt.NDArray[np.uint8]:
        """Its bytes: one mapping, which holds a file open, for all that lies in it.

        Copy-on-write: DLPack hands out writable memory only, and nobody writes.
        """
        try:
            memory = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise _unreadable(self._path, error) from error
        return np.frombuffer(memory, np.uint8)

    def read_into(self, memory: memoryview, offset_bytes: int) -> None:
        """Fill memory with bytes of the file."""
        try:
            self._file.seek(offset_bytes)
            found = self._file.readinto(memory)
        except OSError as error:
            raise _unreadable(self._path, error) from error
        if found != len(memory):
            raise ArtifactError(
                f"weight shard `{self._path}` ended while it was read: expected {len(memory)} "
                f"bytes at byte {offset_bytes}, found {found}",
                hint=_HINT,
            )


@dataclass(frozen=True)
class StoredWeight:
    """A weight in its shard, while that is open."""

    _file: ShardFile
    _record: TensorRecord

    @property
    def name(self) -> str:
        """As the package's list of tensors has it."""
        return self._record.name

    @property
    def shape(self) -> tuple[int, ...]:
        """As kernels take it."""
        return self._record.shape

    @property
    def dtype(self) -> str:
        """As kernels take it; stored little-endian."""
        return self._record.dtype

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._record.nbytes

    def mapped(self) -> Array:
        """Its values in mapped memory, little-endian: read from disk when they are first touched.

        What keeps the array keeps the memory, also when the shard is closed; it is the file's, and
        shared between processes. A file that is cut off meanwhile ends the process.

        Raises
        ------
        ArtifactError
            If the file cannot be mapped.
        """
        begin = self._record.byte_offset
        raw = self._file.mapped[begin : begin + self.nbytes]
        return raw.view(np.dtype(self.dtype).newbyteorder("<")).reshape(self.shape)

    def read_into(self, memory: memoryview, begin: int) -> None:
        """Fill memory with its bytes from byte `begin` on; ArtifactError where the file ends."""
        self._file.read_into(memory, self._record.byte_offset + begin)


@contextmanager
def open_shard(directory: Path, shard: Shard) -> Iterator[dict[str, StoredWeight]]:
    """The weights of a shard by name, in their order.

    ArtifactError if it is missing, no regular file, or of another size than it should be.
    """
    path = directory / shard.file
    try:
        file = open_regular(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    with file:
        size = os.fstat(file.fileno()).st_size
        if size != shard.nbytes:
            raise ArtifactError(
                f"weight shard `{path}`: expected {shard.nbytes} bytes, found {size}", hint=_HINT
            )
        opened = ShardFile(path, file)
        yield {record.name: StoredWeight(opened, record) for record in shard.records}


def _unreadable(path: Path, error: Exception) -> ArtifactError:
    return ArtifactError(f"cannot read the weight shard `{path}`: {error}", hint=_HINT)
