"""Checkpoint rows to stored tensors, as small steps: a few row blocks in memory, never a tensor.

Steps share nothing, so that several can run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import numpy as np

from gemma4_compile.errors import QuantizationError
from gemma4_compile.model_spec.parameters import Arrangement, Parameter, Source
from gemma4_compile.quantization.recipe import RowSplit, StoredParameter
from gemma4_compile.quantization.scheme import Float32Array, StoredTensor
from gemma4_compile.types import Array

RowReader = Callable[[str, int, int], Float32Array]
"""Reads rows [begin, end) of the checkpoint tensor of that name (elements, of a vector)."""

StoredReaders = Mapping[str, tuple[Callable[[int, int], Array], ...]]
"""Checkpoint tensors that a scheme holds already: readers of rows [begin, end) of what it stores,
one a stored tensor."""

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
    rows: Float32Array = _arranged_rows(parameter, read_rows, begin, end)
    return rows if parameter.scale == 1.0 else rows * np.float32(parameter.scale)


def _arranged_rows(
    parameter: Parameter, read_rows: Callable[[str, int, int], Array], begin: int, end: int
) -> Array:
    """Rows [begin, end) of a parameter, of any dtype and width, arranged from its sources'."""
    if parameter.arrangement is Arrangement.COPY:
        return read_rows(parameter.sources[0].name, begin, end)
    if parameter.arrangement is Arrangement.CONCAT_ROWS:
        pieces, first = [], 0
        for source in parameter.sources:
            low, high = max(begin - first, 0), min(end - first, source.shape[0])
            if low < high:
                pieces.append(read_rows(source.name, low, high))
            first += source.shape[0]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    if parameter.arrangement is Arrangement.INTERLEAVE_ROWS:
        even, odd = parameter.sources
        return _interleaved(
            read_rows(even.name, (begin + 1) // 2, (end + 1) // 2),
            read_rows(odd.name, begin // 2, end // 2),
            begin % 2,
        )
    if parameter.arrangement is Arrangement.STACK:
        taken = parameter.sources[begin:end]
        return np.stack([read_rows(source.name, 0, *source.shape) for source in taken])
    if parameter.arrangement is Arrangement.SCALARS:
        taken = parameter.sources[begin:end]
        return np.concatenate([read_rows(source.name, 0, 1).reshape(1) for source in taken])
    return _interleave_halves(parameter, read_rows, begin, end)


def _interleave_halves(
    parameter: Parameter, read_rows: Callable[[str, int, int], Array], begin: int, end: int
) -> Array:
    """Rows of a stack of matrices: row 2r of each is its row r, row 2r + 1 the other half's."""
    (source,) = parameter.sources
    size, pieces = parameter.row_group, []
    for first in range(begin // size * size, end, size):
        low, high = max(begin, first) - first, min(end, first + size) - first
        second = first + size // 2
        pieces.append(
            _interleaved(
                read_rows(source.name, first + (low + 1) // 2, first + (high + 1) // 2),
                read_rows(source.name, second + low // 2, second + high // 2),
                low % 2,
            )
        )
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _interleaved(even: Array, odd: Array, first: int) -> Array:
    """Rows that take turns; row `first`, 0 or 1, is an even one."""
    rows = np.empty((len(even) + len(odd), *even.shape[1:]), even.dtype)
    rows[first::2], rows[1 - first :: 2] = even, odd
    return rows


@dataclass(frozen=True)
class ConversionStep:
    """Rows [row_begin, row_end) of one split of a parameter: a piece of work of its own."""

    stored: StoredParameter
    split: RowSplit
    row_begin: int
    row_end: int

    def run(
        self, read_rows: RowReader, held: StoredReaders = MappingProxyType({})
    ) -> tuple[StoredBlock, ...]:
        """Read and store the rows: a block of each tensor of the split.

        Parameters
        ----------
        held : sources that the scheme holds already; of a parameter all or none

        Raises
        ------
        QuantizationError
            If a weight is not finite, or too large for the scheme.
        """
        parameter, begin = self.stored.parameter, self.row_begin
        if any(source.name in held for source in parameter.sources):
            assert parameter.scale == 1.0, "stored values are not multiplied"
            arrays = tuple(self._held(held, index) for index in range(len(self.split.tensors)))
        else:
            rows = read_parameter_rows(parameter, read_rows, begin, self.row_end)
            with named_by_checkpoint(parameter, read_rows):
                arrays = self.stored.scheme.store(rows, name=parameter.name, first_row=begin)
        before = begin - self.split.row_begin
        return tuple(
            StoredBlock(tensor, before * (tensor.nbytes // self.split.rows), array)
            for tensor, array in zip(self.split.tensors, arrays, strict=True)
        )

    def _held(self, held: StoredReaders, index: int) -> Array:
        """The rows of one stored tensor."""

        def read(name: str, begin: int, end: int) -> Array:
            return held[name][index](begin, end)

        return _arranged_rows(self.stored.parameter, read, self.row_begin, self.row_end)


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
