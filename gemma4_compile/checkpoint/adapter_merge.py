"""Matrices merged with an adapter: computed while they are read, block by block.

Sums are of float64, and rounded to float32 once: then the order in which a machine adds, which
goes with the size of a block, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from gemma4_compile.checkpoint.safetensors_file import Float32Array, TensorInfo, read_rows, rows_of
from gemma4_compile.quantization.convert import row_blocks

Float64Array = npt.NDArray[np.float64]

_BLOCK_FLOATS = 4 << 20
_KEPT_BYTES = 128 << 20  # of a factor whose columns are read


@lru_cache(maxsize=2)
def _kept(tensor: TensorInfo) -> Float32Array:
    """A factor as a whole: blocks of one matrix, one after the other, read columns of the same."""
    return read_rows(tensor, 0, tensor.row_count)


def _columns(tensor: TensorInfo, begin: int, end: int) -> Float32Array:
    """Columns [begin, end) of a matrix, as rows."""
    rows, cols = tensor.shape
    if 4 * rows * cols <= _KEPT_BYTES:
        return _kept(tensor)[:, begin:end].T
    flat = replace(tensor, shape=(rows * cols,))
    parts = [read_rows(flat, row * cols + begin, row * cols + end) for row in range(rows)]
    return np.stack(parts, axis=1)


@dataclass(frozen=True)
class Factor:
    """One of the two matrices of a product, as it takes part in it.

    Attributes
    ----------
    tensor : a matrix of a file
    first, step : which of its columns: every `step`-th from the `first` on
    is_transposed : those columns are its rows
    """

    tensor: TensorInfo
    first: int = 0
    step: int = 1
    is_transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols) of what is read."""
        rows, cols = self.tensor.shape
        cols = len(range(self.first, cols, self.step))
        return (cols, rows) if self.is_transposed else (rows, cols)

    def read(self, begin: int, end: int) -> Float32Array:
        """Rows [begin, end)."""
        if not self.is_transposed and self.step == 1:
            return read_rows(self.tensor, begin, end)
        if self.step == 1:
            return _columns(self.tensor, begin, end)
        is_small = self.tensor.row_count * self.tensor.shape[1] * 4 <= _KEPT_BYTES
        if self.is_transposed:
            return self._select(self.tensor.row_count, is_small, 0).T[begin:end]
        return self._select(end, is_small, begin)

    def _select(self, end: int, is_small: bool, begin: int) -> Float32Array:
        if is_small:
            return _kept(self.tensor)[begin:end, self.first :: self.step]
        blocks = [
            read_rows(self.tensor, low, high)[:, self.first :: self.step]
            for low, high in _blocks(begin, end, self.tensor.shape[1])
        ]
        return np.concatenate(blocks)


def _blocks(begin: int, end: int, cols: int) -> Iterator[tuple[int, int]]:
    size = max(1, _BLOCK_FLOATS // max(1, cols))
    for low in range(begin, end, size):
        yield low, min(low + size, end)


@dataclass(frozen=True)
class Update:
    """A product that is added to some rows: `scaling` times `left` (rows, r) by `right` (r, cols).

    `first` is the row of the matrix that its first one is added to.
    """

    left: Factor
    right: Factor
    scaling: float
    first: int = 0

    def add_to(self, rows: Float64Array, begin: int) -> None:
        """Add what falls on `rows`, which are those of the matrix from `begin` on, in place."""
        count, rank = self.left.shape
        low, high = max(begin, self.first), min(begin + len(rows), self.first + count)
        if low >= high:
            return
        cols = rows.shape[1]
        for top, bottom in _blocks(low, high, max(rank, cols)):
            left = self.left.read(top - self.first, bottom - self.first).astype(np.float64)
            left *= self.scaling
            for one, other in _blocks(0, rank, cols):
                right = self.right.read(one, other).astype(np.float64)
                rows[top - begin : bottom - begin] += left[:, one:other] @ right


def stack_layout(base: TensorInfo, a: TensorInfo, b: TensorInfo) -> str | None:
    """How two factors lie for a stack of experts; None if they do not fit it.

    In the `new` layout A multiplies the experts' inputs. Earlier versions of PEFT took the stack's
    second axis for the inputs, whatever it is; where both are as long, it is the new one.
    """
    if len(base.shape) != 3 or len(a.shape) != 2 or len(b.shape) != 2:
        return None
    experts, rows, cols = base.shape
    if a.shape[0] != b.shape[1] or a.shape[0] % experts:
        return None
    if (b.shape[0], a.shape[1]) == (rows, cols):
        return "new"
    return "old" if (b.shape[0], a.shape[1]) == (cols, rows) else None


def stack_updates(base: TensorInfo, a: TensorInfo, b: TensorInfo, scaling: float) -> list[Update]:
    """The updates of a stack of experts.

    A has their factors one below the other, in B the columns of one expert come after those of
    another: as PEFT's `ParamWrapper` has them.
    """
    experts, rows, _ = base.shape
    rank = a.shape[0] // experts
    is_old = stack_layout(base, a, b) == "old"
    updates = []
    for expert in range(experts):
        own = rows_of(a, expert * rank, (expert + 1) * rank)
        left, right = Factor(b, expert, experts), Factor(own)
        if is_old:
            left = Factor(own, is_transposed=True)
            right = Factor(b, expert, experts, is_transposed=True)
        updates.append(Update(left, right, scaling, expert * rows))
    return updates


@dataclass(frozen=True)
class Merged:
    """A matrix, or a stack of them, with an adapter merged into it: a `Decoder`.

    Attributes
    ----------
    magnitude : of DoRA, the length that each row gets, or each column of an embedding
    """

    base: TensorInfo
    updates: tuple[Update, ...]
    magnitude: TensorInfo | None = None
    is_embedding: bool = False

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """The matrix and the adapter's."""
        factors = (factor.tensor for one in self.updates for factor in (one.left, one.right))
        magnitude = () if self.magnitude is None else (self.magnitude,)
        return self.base, *dict.fromkeys(factors), *magnitude

    def read_rows(self, begin: int, end: int) -> Float32Array:
        """Rows [begin, end), merged."""
        rows = self._sum(begin, end)
        if self.magnitude is not None and self.is_embedding:
            rows *= read_rows(self.magnitude, 0, self.magnitude.row_count) / _column_lengths(self)
        elif self.magnitude is not None:
            wanted = read_rows(self.magnitude, begin, end)
            with np.errstate(divide="ignore", invalid="ignore"):  # a row of zeros has no direction
                rows *= (wanted / np.linalg.norm(rows, axis=1))[:, None]
        with np.errstate(over="ignore"):  # an infinite weight is told of where it is stored
            return rows.astype(np.float32)

    def _sum(self, begin: int, end: int) -> Float64Array:
        rows = read_rows(self.base, begin, end).astype(np.float64)
        for update in self.updates:
            update.add_to(rows, begin)
        return rows


@lru_cache(maxsize=8)
def _column_lengths(merged: Merged) -> Float64Array:
    squares = np.zeros(merged.base.shape[-1], np.float64)
    for begin, end in row_blocks(merged.base.shape):
        squares += np.square(merged._sum(begin, end)).sum(axis=0)
    return np.sqrt(squares)


@dataclass(frozen=True)
class ReplacedRows:
    """An embedding some of whose rows were trained: a `Decoder`; `rows` has one of each index."""

    base: TensorInfo
    indices: tuple[int, ...]
    rows: TensorInfo

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """The table and its new rows."""
        return self.base, self.rows

    def read_rows(self, begin: int, end: int) -> Float32Array:
        """Rows [begin, end) of the table."""
        table = np.array(read_rows(self.base, begin, end))
        for position, index in enumerate(self.indices):
            if begin <= index < end:
                table[index - begin] = read_rows(self.rows, position, position + 1)[0]
        return table


def is_finite(tensor: TensorInfo) -> bool:
    """Return whether every value of a tensor is a finite number; read block by block."""
    size = prod(tensor.shape[1:][-1:])
    return size == 0 or all(
        bool(np.isfinite(read_rows(tensor, begin, end)).all())
        for begin, end in row_blocks(tensor.shape)
    )
