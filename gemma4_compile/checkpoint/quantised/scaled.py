"""Weights from codes, scales and zero points: `(code - zero point) * scale`, by blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from gemma4_compile.checkpoint.quantised.packed import index_of
from gemma4_compile.checkpoint.safetensors_file import Float32Array, TensorInfo, read_rows
from gemma4_compile.errors import CheckpointError


@dataclass(frozen=True)
class Scaled:
    """A matrix whose numbers have a scale each for `rows_each` rows and `columns_each` columns.

    Attributes
    ----------
    codes : (rows, columns)
    scales : (blocks of rows, blocks of columns)
    zeros : as the scales; None where they are 0
    groups : the block of every column, where the blocks are of columns that lie apart
    divisor : one number that all scales are divided by
    offsets : as the scales; what is added in the end
    """

    codes: TensorInfo
    scales: TensorInfo
    rows_each: int
    columns_each: int
    zeros: TensorInfo | None = None
    groups: TensorInfo | None = None
    divisor: TensorInfo | None = None
    offsets: TensorInfo | None = None

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """All of them."""
        given = (self.codes, self.scales, self.zeros, self.groups, self.divisor, self.offsets)
        return tuple(tensor for tensor in given if tensor is not None)

    def read_rows(self, begin: int, end: int) -> Float32Array:
        """Weights of rows [begin, end); what is no number in a scale is none in a weight."""
        values = read_rows(self.codes, begin, end)
        with np.errstate(all="ignore"):
            if self.zeros is not None:
                _by_block(values, self._of_columns(self.zeros, begin, end), np.subtract)
            scales = self._of_columns(self.scales, begin, end)
            if self.divisor is not None:
                scales = scales / read_rows(self.divisor, 0, 1)
            _by_block(values, scales, np.multiply)
            if self.offsets is not None:
                _by_block(values, self._of_columns(self.offsets, begin, end), np.add)
        return values

    def _of_columns(self, tensor: TensorInfo, begin: int, end: int) -> Float32Array:
        """(rows, blocks of columns), or (rows, columns) where the blocks are no runs of them."""
        first, last = begin // self.rows_each, ceil(end / self.rows_each)
        found = read_rows(tensor, first, last).reshape(last - first, -1)
        if self.rows_each > 1:
            found = found[np.arange(begin, end) // self.rows_each - first]
        columns = self.codes.shape[-1]
        if self.groups is not None:
            index = _checked(index_of(self.groups), found.shape[1], self.groups)
            if not np.array_equal(index, np.arange(columns) // self.columns_each):
                return found[:, index]
        if columns % self.columns_each:
            return np.repeat(found, self.columns_each, axis=1)[:, :columns]
        return found


def _by_block(values: Float32Array, factors: Float32Array, change: np.ufunc) -> None:
    blocks = values.reshape(*factors.shape, values.shape[1] // factors.shape[1])
    change(blocks, factors[..., None], out=blocks)


def _checked(
    index: np.ndarray[tuple[int, ...], np.dtype[np.int32]], count: int, tensor: TensorInfo
) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    wrong = index[(index < 0) | (index >= count)]
    if len(wrong):
        raise CheckpointError(
            f"tensor `{tensor.name}` in `{tensor.path.name}` names group {wrong[0]}, there are "
            f"{count}",
            hint="the checkpoint is damaged: download it again",
        )
    return index
