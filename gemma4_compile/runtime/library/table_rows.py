"""Rows of a table where they lie in a package's shards."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.interface import RowTable
from gemma4_compile.types import Array

_MIXED = "compile the package again"


class TableRows:
    """A table of rows whose tensors are mapped: of the disk it reads the rows that are asked for.

    Attributes
    ----------
    shapes : (columns, dtype) of each tensor of a split, in their order
    """

    def __init__(self, table: RowTable, mapped: Callable[[str], Array]) -> None:
        """Map the tensors; ArtifactError where they are not what the table says.

        Parameters
        ----------
        mapped : gives a stored tensor by its name, as memory that is the file's; KeyError for none
        """
        self._ends = np.cumsum([split.rows for split in table.splits])
        self._begins = self._ends - [split.rows for split in table.splits]
        self._asked = np.zeros(table.rows, np.bool_)
        try:
            self._splits = [[mapped(name) for name in split.tensors] for split in table.splits]
        except KeyError as error:
            raise ArtifactError(
                f"the table of per-layer embeddings: there is no weight {error}", hint=_MIXED
            ) from error
        self.shapes = [(one.shape[1:], one.dtype.newbyteorder("=")) for one in self._splits[0]]
        for split, tensors in zip(table.splits, self._splits, strict=True):
            for one, (columns, dtype) in zip(tensors, self.shapes, strict=True):
                if one.shape != (split.rows, *columns) or one.dtype.newbyteorder("=") != dtype:
                    raise ArtifactError(
                        f"the table of per-layer embeddings: a tensor is {one.dtype} of shape "
                        f"{one.shape}; expected {dtype} of shape {(split.rows, *columns)}",
                        hint=_MIXED,
                    )

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return int(self._ends[-1])

    def read_ahead(self, ids: npt.NDArray[np.int64]) -> None:
        """Have the system fetch rows from the disk while something else is done, where it can.

        Each row once: to ask for a thousand again takes a millisecond.

        Parameters
        ----------
        ids : (n,), of which those outside of the table have no rows
        """
        inside = np.unique(ids[(ids >= 0) & (ids < self.rows)])
        wanted = inside[~self._asked[inside]]
        self._asked[wanted] = True
        of = np.searchsorted(self._ends, wanted, side="right")
        for index, tensors in enumerate(self._splits):
            rows = wanted[of == index] - self._begins[index]
            for tensor in tensors:
                _fetch(tensor, rows)

    def read(self, ids: npt.NDArray[np.int64], to: Sequence[Array]) -> None:
        """Copy rows; of an id that is outside of the table nothing is written.

        Parameters
        ----------
        ids : (n,)
        to : for each tensor of a split n rows, which are overwritten
        """
        of = np.searchsorted(self._ends, ids, side="right")
        for index, tensors in enumerate(self._splits):
            mine = np.flatnonzero((of == index) & (ids >= 0))
            if mine.size:
                rows = ids[mine] - self._begins[index]
                for source, target in zip(tensors, to, strict=True):
                    target[mine] = source[rows]


def pages_of(begin: int, row_bytes: int, rows: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """First byte and length of the pages that rows lie in, of a tensor that begins at a byte."""
    for first in (begin + rows * row_bytes).tolist():
        page = first - first % mmap.PAGESIZE
        yield page, first + row_bytes - page


def _fetch(tensor: Array, rows: npt.NDArray[np.int64]) -> None:
    """Ask for some rows of a mapped tensor; nothing where it is not mapped."""
    memory, will_need = _memory(tensor), getattr(mmap, "MADV_WILLNEED", None)
    if memory is None or will_need is None or not hasattr(memory, "madvise"):  # Windows
        return
    begin = tensor.ctypes.data - np.frombuffer(memory, np.uint8).ctypes.data
    for page, count in pages_of(begin, tensor.strides[0], rows):
        memory.madvise(will_need, page, count)


def _memory(array: Array) -> mmap.mmap | None:
    """The mapping that an array lies in."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None
