"""Checkpoint rows to stored tensors, as small steps: a few row blocks in memory, never a tensor.

Steps share nothing, so that several can run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import numpy as np

from gemma4_compile.errors import QuantizationError
from gemma4_compile.model_spec.parameters import Arrangement, Parameter, Source
from gemma4_compile.quantization.recipe import RowSplit, StoredParameter
from gemma4_compile.quantization.scheme import Float32Array, StoredTensor
from gemma4_compile.types import Array

RowReader = Callable[[str, int, int], Float32Array]
"""Reads rows [begin, end) of the checkpoint tensor of that name (elements, of a vector)."""

BLOCK_BYTES = 4 << 20  # float32 bytes of one row block: a core's share of the cache


@dataclass(frozen=True)
class StoredBlock:
    """Some neighbouring rows of a stored tensor: `data` belongs at `offset_bytes` of `tensor`."""

    tensor: StoredTensor
    offset_bytes: int
    data: Array


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
    elif parameter.arrangement is Arrangement.STACK:
        taken = parameter.sources[begin:end]
        rows = np.stack([read_rows(source.name, 0, *source.shape) for source in taken])
    elif parameter.arrangement is Arrangement.SCALARS:
        taken = parameter.sources[begin:end]
        rows = np.concatenate([read_rows(source.name, 0, 1).reshape(1) for source in taken])
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


@dataclass(frozen=True)
class ConversionStep:
    """Rows [row_begin, row_end) of one split of a parameter: a piece of work of its own."""

    stored: StoredParameter
    split: RowSplit
    row_begin: int
    row_end: int

    def run(self, read_rows: RowReader) -> tuple[StoredBlock, ...]:
        """Read and store the rows: a block of each tensor of the split.

        Raises
        ------
        QuantizationError
            If a weight is not finite, or too large for the scheme.
        """
        parameter, begin = self.stored.parameter, self.row_begin
        rows = read_parameter_rows(parameter, read_rows, begin, self.row_end)
        with named_by_checkpoint(parameter, read_rows):
            arrays = self.stored.scheme.store(rows, name=parameter.name, first_row=begin)
        before = begin - self.split.row_begin
        return tuple(
            StoredBlock(tensor, before * (tensor.nbytes // self.split.rows), array)
            for tensor, array in zip(self.split.tensors, arrays, strict=True)
        )


@contextmanager
def named_by_checkpoint(parameter: Parameter, read_rows: RowReader) -> Iterator[None]:
    """Name a weight that is not finite by its tensor in the checkpoint."""
    try:
        yield
    except QuantizationError:
        for source in parameter.sources:
            _refuse_not_finite(source, read_rows)
        raise


def _refuse_not_finite(source: Source, read_rows: RowReader) -> None:
    """Raise QuantizationError with the first row of a checkpoint tensor that is not finite."""
    for begin, end in row_blocks(source.shape):
        rows = read_rows(source.name, begin, end)
        bad = ~np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)
        if bad.any():
            raise QuantizationError(
                f"checkpoint tensor `{source.name}`: row {begin + int(np.argmax(bad))} holds a "
                "weight that is not finite",
                hint="the checkpoint is damaged: download it again, or see --allow-nonfinite",
            )


def row_blocks(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Rows [begin, end) of a checkpoint tensor's blocks: elements, of a vector or a scalar."""
    count = prod(shape[:-1]) if len(shape) > 1 else prod(shape)
    size = max(1, BLOCK_BYTES // (4 * prod(shape[1:][-1:])))
    for begin in range(0, count, size):
        yield begin, min(begin + size, count)


def conversion_steps(
    stored: StoredParameter,
    wanted: Callable[[RowSplit], bool] = lambda split: True,
    *,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[ConversionStep]:
    """The steps that convert a parameter's `wanted` row splits, in the order of their rows.

    What they make together does not depend on `block_bytes`; a step's memory is a few times that.
    """
    row_bytes = 4 * int(np.prod(stored.parameter.shape[1:], dtype=np.int64))
    size = max(1, block_bytes // row_bytes)
    for split in filter(wanted, stored.row_splits):
        for begin in range(split.row_begin, split.row_end, size):
            yield ConversionStep(stored, split, begin, min(begin + size, split.row_end))
