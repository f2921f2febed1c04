"""One safetensors file: its header, checked before anything is used, and rows read by position.

Nothing is mapped or held: each read opens the file, takes its rows and closes it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gemma4_compile.checkpoint.beginnings import (
    BEGIN_BYTES,
    check_is_file_itself,
    check_is_no_other_format,
)
from gemma4_compile.checkpoint.json_text import parse_object
from gemma4_compile.errors import CheckpointError
from gemma4_compile.system import regular_files
from gemma4_compile.system.files import read_at

Float32Array = npt.NDArray[np.float32]
StoredArray = npt.NDArray[Any]

MAX_HEADER_BYTES = 32 << 20  # the format allows 100 MB; the largest released one has 300 KB
MAX_DIMENSIONS = 8
_LEAST_BYTES = 8 + len("{}")  # the length of a header, and an empty one
MAX_TENSORS = 200_000  # of a checkpoint; the largest released one holds some thousands
_MAX_HEADER_VALUES = 16 * MAX_TENSORS
Stamp = tuple[int, int, int, int]
"""Device, number, size and time of a file: what changes when it is replaced or written to."""

FLOAT_DTYPES = ("BF16", "F16", "F32", "F64")
"""Of weights; those of 64 bits are rounded to float32."""
ID_DTYPES = ("I32", "I64")
"""Of tables of token ids, which float32 holds."""
_STORED_AS = {
    **{"BOOL": "u1", "I8": "i1", "F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2"},
    **dict.fromkeys(("U8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), "u1"),
    **{"I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8", "U64": "<u8"},
}
_DTYPE_BYTES = {name: np.dtype(stored).itemsize for name, stored in _STORED_AS.items()}
_DOWNLOAD_AGAIN = "download the file again"


@dataclass(frozen=True)
class TensorInfo:
    """Place of a tensor: `nbytes` bytes of `path`, row-major, little-endian.

    Attributes
    ----------
    stamp : of the file when its header was read
    parts : where it is put together of others: their rows, one after the other; then it has no
        place of its own
    axes : of the one part, in the order in which the tensor has them; of a small tensor
    decoder : where it is computed from stored tensors; then it has no place of its own
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset_bytes: int
    nbytes: int
    stamp: Stamp | None = None
    parts: tuple[TensorInfo, ...] = ()
    axes: tuple[int, ...] = ()
    decoder: Decoder | None = None

    @property
    def row_count(self) -> int:
        """Rows that `read_rows` reads: elements, of a vector or a scalar."""
        return prod(self.shape[:-1]) if len(self.shape) > 1 else prod(self.shape)

    @property
    def leaves(self) -> tuple[TensorInfo, ...]:
        """The tensors that its rows are read from: of files, or computed."""
        return tuple(leaf for part in self.parts for leaf in part.leaves) or (self,)

    @property
    def stored(self) -> tuple[TensorInfo, ...]:
        """The tensors of files that it consists of, or is computed from."""
        inner = self.decoder.tensors if self.decoder is not None else self.parts
        return tuple(leaf for part in inner for leaf in part.stored) or (self,)


class Decoder(Protocol):
    """Computes the rows of a tensor from stored ones; hashable, as a frozen dataclass is."""

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """What it reads: tensors of files, or computed ones; at least one."""

    def read_rows(self, begin: int, end: int) -> Float32Array:
        """Rows [begin, end), one at least, as the function `read_rows` counts them."""


@dataclass(frozen=True)
class OfOne:
    """What the decoders that read one tensor have in common."""

    stored: TensorInfo

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """See `Decoder`."""
        return (self.stored,)


def computed(name: str, shape: tuple[int, ...], decoder: Decoder) -> TensorInfo:
    """A tensor of float32 whose rows a decoder computes."""
    path = decoder.tensors[0].stored[0].path
    return TensorInfo(name, "F32", shape, path, 0, 4 * prod(shape), decoder=decoder)


@dataclass(frozen=True)
class _Rows:
    """Some rows of a decoder's."""

    whole: Decoder
    first: int

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return self.whole.tensors

    def read_rows(self, begin: int, end: int) -> Float32Array:
        return self.whole.read_rows(self.first + begin, self.first + end)


def stamp_of(found: os.stat_result) -> Stamp:
    """What a file is known by while it is in use."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _header(path: Path) -> tuple[dict[str, object], int, int, Stamp]:
    """The parsed header, the position of the data, the bytes of data, and the file's stamp."""
    try:
        with regular_files.open_regular(path) as file:
            found = os.fstat(file.fileno())
            size = found.st_size
            begin = file.read(BEGIN_BYTES)
            check_is_file_itself(path.name, begin)
            file.seek(8)
            if size < _LEAST_BYTES:
                raise CheckpointError(
                    f"`{path.name}` is no safetensors file, or truncated: it "
                    + (f"ends after {size} bytes" if size else "is empty"),
                    hint=f"{_DOWNLOAD_AGAIN}: it ended early, or the disk was full",
                )
            length = int.from_bytes(begin[:8], "little")
            if not 2 <= length <= size - 8:
                check_is_no_other_format(path.name, begin)
                raise CheckpointError(
                    f"`{path.name}` is no safetensors file, or truncated: its header should have "
                    f"{length} bytes, the file has {size}",
                    hint=_DOWNLOAD_AGAIN,
                )
            if length > MAX_HEADER_BYTES:
                raise CheckpointError(
                    f"the header of `{path.name}` is too large: {length} bytes, at most "
                    f"{MAX_HEADER_BYTES}",
                    hint="save the model again without the metadata",
                )
            text = file.read(length)
    except OSError as error:
        raise CheckpointError(f"cannot read `{path.name}`: {error.strerror}") from error
    try:
        if not text.startswith(b"{"):  # the format's first letter; it has no other encoding
            raise ValueError("it does not begin with `{`")
        header = parse_object(text, max_values=_MAX_HEADER_VALUES)
    except ValueError as error:
        raise CheckpointError(
            f"the header of `{path.name}` is damaged: {error}", hint=_DOWNLOAD_AGAIN
        ) from error
    return header, 8 + length, size - 8 - length, stamp_of(found)


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 0


def _entry(name: str, entry: object, path: Path, data_begin: int, stamp: Stamp) -> TensorInfo:
    """One header entry, checked by itself."""
    where = f"tensor `{name}` in `{path.name}`"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where}: the header entry is damaged", hint=_DOWNLOAD_AGAIN)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPE_BYTES:
        raise CheckpointError(
            f"{where}: unknown dtype {str(dtype)[:40]!r}",
            hint="save the model in bfloat16, float16 or float32",
        )
    if (
        not isinstance(shape, list)
        or len(shape) > MAX_DIMENSIONS
        or not all(_is_size(size) for size in shape)
    ):
        raise CheckpointError(f"{where}: the shape is damaged", hint=_DOWNLOAD_AGAIN)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise CheckpointError(f"{where}: the offsets are damaged", hint=_DOWNLOAD_AGAIN)
    nbytes = math.prod(shape) * _DTYPE_BYTES[dtype]
    begin, end = offsets
    if end - begin != nbytes:
        raise CheckpointError(
            f"{where}: shape {tuple(shape)} of {dtype} needs {nbytes} bytes, the offsets span "
            f"{end - begin}",
            hint=_DOWNLOAD_AGAIN,
        )
    return TensorInfo(name, dtype, tuple(shape), path, data_begin + begin, nbytes, stamp)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Read and check the header of a safetensors file; returns its tensors by name.

    Raises
    ------
    CheckpointError
        If the file cannot be read, is truncated, or its header is damaged: sizes, shapes, dtypes,
        and data that overlaps, has gaps or does not end where the file ends.
    """
    header, data_begin, available, stamp = _header(path)
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise CheckpointError(
            f"`{path.name}` lists {len(header)} tensors, at most {MAX_TENSORS}",
            hint="it is no Gemma 4: the largest released one has some thousands",
        )
    tensors = {name: _entry(name, entry, path, data_begin, stamp) for name, entry in header.items()}
    position = data_begin
    for tensor in sorted(tensors.values(), key=lambda item: (item.offset_bytes, item.nbytes)):
        if tensor.offset_bytes != position:
            raise CheckpointError(
                f"tensor `{tensor.name}` in `{path.name}` overlaps another or leaves a gap",
                hint=_DOWNLOAD_AGAIN,
            )
        position += tensor.nbytes
    if position - data_begin != available:
        what = "is truncated" if position - data_begin > available else "has trailing bytes"
        raise CheckpointError(
            f"`{path.name}` {what}: its tensors need {position - data_begin} bytes, it holds "
            f"{available}",
            hint=_DOWNLOAD_AGAIN,
        )
    return tensors


def check_stamp(tensor: TensorInfo, found: os.stat_result) -> None:
    """Raise CheckpointError if this is not the file that a tensor's header was read from."""
    if tensor.stamp is not None and stamp_of(found) != tensor.stamp:
        raise CheckpointError(
            f"`{tensor.path.name}` changed while in use", hint="wait, then run the command again"
        )


def check_unchanged(tensors: Iterable[TensorInfo]) -> None:
    """Raise CheckpointError if a file of these tensors is not what it was when it was opened."""
    stored = (leaf for tensor in tensors for leaf in tensor.stored)
    for tensor in {tensor.path: tensor for tensor in stored}.values():
        try:
            check_stamp(tensor, tensor.path.stat())
        except OSError as error:
            raise CheckpointError(f"cannot read `{tensor.path.name}`: {error.strerror}") from error


def read_rows(tensor: TensorInfo, begin: int, end: int) -> Float32Array:
    """Read rows [begin, end) of a tensor (elements, of a vector or a scalar), widened to float32.

    A tensor of several matrices has the rows of all of them, one matrix after the other.

    Raises
    ------
    CheckpointError
        If the file changed since its header was read, or the dtype is none of FLOAT_DTYPES and
        ID_DTYPES.
    """
    count = tensor.row_count
    assert 0 <= begin <= end <= count, f"rows {begin}:{end} of {tensor}"
    if tensor.decoder is not None:
        width = tensor.shape[1:][-1:]
        if begin == end:
            return np.empty((0, *width), np.float32)
        rows = tensor.decoder.read_rows(begin, end)
        assert rows.dtype == np.float32, rows.dtype
        return rows.reshape(end - begin, *width)
    if tensor.axes:
        (part,) = tensor.parts
        values = read_rows(part, 0, part.row_count).reshape(part.shape)
        return values.transpose(tensor.axes).reshape(count, -1)[begin:end]
    if tensor.parts:
        return _read_parts(tensor, begin, end)
    if tensor.dtype not in (*FLOAT_DTYPES, *ID_DTYPES):
        raise CheckpointError(
            f"tensor `{tensor.name}` has dtype {tensor.dtype}, which is no weight",
            hint="save the model in bfloat16, float16 or float32",
        )
    return widened(read_stored(tensor, begin, end), tensor.dtype)


def widened(stored: StoredArray, dtype: str) -> Float32Array:
    """Numbers that `read_stored` gave, of FLOAT_DTYPES or ID_DTYPES, as float32."""
    if dtype == "BF16":
        bits = stored.astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    return stored.astype(np.float32, copy=False)


def read_stored(
    tensor: TensorInfo, begin: int, end: int, columns: tuple[int, int] | None = None
) -> StoredArray:
    """Read rows [begin, end) of a file's tensor as they are stored; of `columns` alone if given.

    Numbers that NumPy has not are their bits: bfloat16 and those of 8 bits. Errors as `read_rows`.
    """
    dtype = np.dtype(_STORED_AS[tensor.dtype])
    width = prod(tensor.shape[1:][-1:])
    first, last = columns or (0, width)
    span = None if columns is None else (first * dtype.itemsize, last * dtype.itemsize)
    values = read_bytes(tensor, begin, end, span).view(dtype)
    return values.reshape(end - begin, *((last - first,) if len(tensor.shape) > 1 else ()))


def read_bytes(
    tensor: TensorInfo, begin: int, end: int, span: tuple[int, int] | None = None
) -> npt.NDArray[np.uint8]:
    """Bytes of rows [begin, end) of a tensor of a file, as they lie; errors as `read_rows`.

    `span` are those that are taken of every row, if not all of them.
    """
    row_bytes = tensor.nbytes // max(1, tensor.row_count)
    try:
        with regular_files.open_regular(tensor.path) as file:
            check_stamp(tensor, os.fstat(file.fileno()))
            if span is not None:
                return _read_spans(tensor, file.fileno(), range(begin, end), span)
            raw = np.empty((end - begin) * row_bytes, np.uint8)
            file.seek(tensor.offset_bytes + begin * row_bytes)
            view, done = raw.data, 0
            while done < raw.size and (count := file.readinto(view[done:])):
                done += count
    except OSError as error:
        raise CheckpointError(f"cannot read `{tensor.path.name}`: {error.strerror}") from error
    if done < raw.size:
        raise _ended_inside(tensor)
    return raw


def _read_spans(
    tensor: TensorInfo, descriptor: int, rows: range, span: tuple[int, int]
) -> npt.NDArray[np.uint8]:
    """A span of each row; they are too small for a buffer to be of use."""
    row_bytes = tensor.nbytes // max(1, tensor.row_count)
    begin, size = tensor.offset_bytes + span[0], span[1] - span[0]
    found = [read_at(descriptor, size, begin + row * row_bytes) for row in rows]
    raw = np.frombuffer(b"".join(found), np.uint8)
    if raw.size < len(rows) * size:
        raise _ended_inside(tensor)
    return raw


def _ended_inside(tensor: TensorInfo) -> CheckpointError:
    return CheckpointError(
        f"`{tensor.path.name}` ended inside tensor `{tensor.name}`: it changed while in use",
        hint="run the command again",
    )


def _read_parts(tensor: TensorInfo, begin: int, end: int) -> Float32Array:
    rows, position = [np.empty((0, tensor.shape[-1]), np.float32)], 0
    for part in tensor.parts:
        low, high = max(begin - position, 0), min(end - position, part.row_count)
        if low < high:
            rows.append(read_rows(part, low, high))
        position += part.row_count
    return np.concatenate(rows)


def rows_of(tensor: TensorInfo, begin: int, end: int) -> TensorInfo:
    """Rows [begin, end) of a stored or computed tensor as a matrix of their own."""
    row_bytes = tensor.nbytes // max(1, tensor.row_count)
    return replace(
        tensor,
        shape=(end - begin, tensor.shape[-1]),
        offset_bytes=tensor.offset_bytes + begin * row_bytes,
        nbytes=(end - begin) * row_bytes,
        decoder=None if tensor.decoder is None else _Rows(tensor.decoder, begin),
    )
