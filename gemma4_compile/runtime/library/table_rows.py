"""Rows of a table where they lie in a package's shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
