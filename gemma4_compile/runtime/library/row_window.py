"""The rows of a call's tokens on the device, in the place of a table that is not there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.package.interface import RowTable
from gemma4_compile.runtime.device.device import Device, copy, usable, view
from gemma4_compile.runtime.library.table_rows import TableRows


class RowWindow:
    """A window of a table, which the library takes in its place (ADR 0024).

    It keeps its place on the device, so that what was recorded of a call stays right. Rows are
    written after all work that the device was given before: a step that still reads them is not
    disturbed.

    Attributes
    ----------
    stand_ins : what a call takes for each tensor of the table, by its name
    """

    def __init__(self, device: Device, table: RowTable, rows: TableRows, most: int) -> None:
        """Make room for calls of at most so many tokens; ArtifactError if there is none."""
        self._table, self._rows = table, rows
        count = table.window_rows(most)
        shapes = [((count, *columns), dtype) for columns, dtype in rows.shapes]
        self._host = [usable(np.zeros(shape, dtype)) for shape, dtype in shapes]
        self._device = [device.empty(shape, dtype.name) for shape, dtype in shapes]
        self.stand_ins = {
            name: tensor
            for split in table.splits
            for name, tensor in zip(split.tensors, self._device, strict=True)
        }
        self._views = self._pairs(1)  # of a token: to make them takes as long as to copy

    def read_ahead(self, ids: Sequence[int]) -> None:
        """Have the rows of a later call's tokens fetched from the disk meanwhile."""
        self._rows.read_ahead(np.array(ids, np.int64))

    def put(self, ids: Sequence[int], modalities: Sequence[int] | None = None) -> None:
        """Have the device hold the rows of a call's tokens when the call begins.

        Parameters
        ----------
        modalities : of each, as the library takes them; None where all are of text
        """
        tokens = np.array(ids, np.int64)
        if modalities is not None:
            is_text = np.array(modalities) == abi.MODALITY_TEXT
            tokens = np.where(is_text, tokens, self._table.pad_token_id)
        # One that the table lacks is token 0, as Gemma 3n has it; Gemma 4's library reads no row.
        tokens = np.where(tokens < self._table.rows, tokens, 0)
        if len(tokens) > 1:  # all of them at a time, where they have to come from the disk
            self._rows.read_ahead(tokens)
        self._rows.read(tokens, [array[: len(tokens)] for array in self._host])
        for source, target in self._views if len(tokens) == 1 else self._pairs(len(tokens)):
            copy(source, target)

    def _pairs(self, count: int) -> list[tuple[tvm_ffi.Tensor, tvm_ffi.Tensor]]:
        """The first rows, on the host and on the device."""
        return [
            (tvm_ffi.from_dlpack(host[:count]), view(tensor, (count, *host.shape[1:])))
            for host, tensor in zip(self._host, self._device, strict=True)
        ]
