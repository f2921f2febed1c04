"""Checkpoint rows to stored tensors, as a stream: a few row blocks in memory, never a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma4_compile.model_spec.parameters import Arrangement, Parameter
from gemma4_compile.quantization.packing import Float32Array, quantize, to_dense
from gemma4_compile.quantization.recipe import Part, StoredParameter
from gemma4_compile.quantization.scheme import DenseScheme, StoredTensor

RowReader = Callable[[str, int, int], Float32Array]
"""Reads rows [begin, end) of the checkpoint tensor of that name (elements, of a vector)."""

BLOCK_BYTES = 16 << 20  # float32 bytes of one row block


@dataclass(frozen=True)
class StoredBlock:
    """Some neighbouring rows of a stored tensor: `data` belongs at `offset_bytes` of `tensor`."""

    tensor: StoredTensor
    offset_bytes: int
    data: npt.NDArray[Any]


def read_parameter_rows(
    parameter: Parameter, read_rows: RowReader, begin: int, end: int
) -> Float32Array:
    """Rows [begin, end) of a parameter, arranged from its sources and multiplied by its scale."""
    rows: Float32Array
    if parameter.arrangement is Arrangement.COPY:
        rows = read_rows(parameter.sources[0].name, begin, end)
    elif parameter.arrangement is Arrangement.CONCAT_ROWS:
        pieces, first = [], 0
        for source in parameter.sources:
            low, high = max(begin - first, 0), min(end - first, source.shape[0])
            if low < high:
                pieces.append(read_rows(source.name, low, high))
            first += source.shape[0]
        rows = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    elif parameter.arrangement is Arrangement.INTERLEAVE_ROWS:
        even, odd = parameter.sources
        rows = np.empty((end - begin, *parameter.shape[1:]), np.float32)
        rows[begin % 2 :: 2] = read_rows(even.name, (begin + 1) // 2, (end + 1) // 2)
        rows[(begin + 1) % 2 :: 2] = read_rows(odd.name, begin // 2, end // 2)
    else:
        rows = _interleave_halves(parameter, read_rows, begin, end)
    return rows if parameter.scale == 1.0 else rows * np.float32(parameter.scale)


def _interleave_halves(
    parameter: Parameter, read_rows: RowReader, begin: int, end: int
) -> Float32Array:
    """Rows of a stack of matrices: row 2r of each is its row r, row 2r + 1 the other half's."""
    (source,) = parameter.sources
    size = parameter.row_group
    rows = np.empty((end - begin, *parameter.shape[1:]), np.float32)
    for first in range(begin // size * size, end, size):
        low, high = max(begin, first) - first, min(end, first + size) - first
        out = rows[first + low - begin : first + high - begin]
        second = first + size // 2
        out[low % 2 :: 2] = read_rows(source.name, first + (low + 1) // 2, first + (high + 1) // 2)
        out[(low + 1) % 2 :: 2] = read_rows(source.name, second + low // 2, second + high // 2)
    return rows


def _part_blocks(
    stored: StoredParameter, part: Part, read_rows: RowReader, block_bytes: int
) -> Iterator[StoredBlock]:
    parameter, scheme = stored.parameter, stored.scheme
    row_bytes = 4 * int(np.prod(parameter.shape[1:], dtype=np.int64))
    step = max(1, block_bytes // row_bytes)
    for begin in range(part.row_begin, part.row_end, step):
        rows = read_parameter_rows(parameter, read_rows, begin, min(begin + step, part.row_end))
        name = parameter.name
        arrays: tuple[npt.NDArray[Any], ...]
        if isinstance(scheme, DenseScheme):
            arrays = (to_dense(rows, scheme.dtype, name=name, first_row=begin),)
        else:
            arrays = quantize(rows, scheme, name=name, first_row=begin)
        for tensor, array in zip(part.tensors, arrays, strict=True):
            offset = (begin - part.row_begin) * (tensor.nbytes // part.rows)
            yield StoredBlock(tensor, offset, array)


def convert(
    stored: StoredParameter, read_rows: RowReader, *, block_bytes: int = BLOCK_BYTES
) -> Iterator[StoredBlock]:
    """Yield the blocks of a parameter's stored tensors, row block by row block.

    Deterministic, and independent of `block_bytes`; peak memory is a few times that.

    Raises
    ------
    QuantizationError
        If a weight is not finite, or too large for the scheme.
    """
    for part in stored.parts:
        yield from _part_blocks(stored, part, read_rows, block_bytes)
