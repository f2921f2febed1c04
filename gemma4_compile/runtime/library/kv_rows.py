"""Rows of a sequence in a KV state, copied to the host's memory and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.runtime.library.row_stream import Rows, row_stream
from gemma4_compile.types import Array

_UPLOADS = 4
"""Uploads of a `write` at most: keys and values, a ring's end and its beginning."""


@dataclass(frozen=True)
class RowEntry:
    """Keys and values of a layer, or of a part of its positions.

    Attributes
    ----------
    first : position in the first row
    rows : positions that fit
    window : positions that a query sees, itself included; 0 for all of them
    """

    first: int
    rows: int
    window: int
    heads: int
    head_dim: int


class KvRows:
    """Copies rows by a library's functions.

    Attributes
    ----------
    entries : what a sequence has
    dtype : of keys and values
    stream : brings rows beside forwards; None where forwards come after them
    """

    def __init__(
        self, library: NativeLibrary, device: Device, handle: tvm_ffi.Object, dtype: str
    ) -> None:
        """Take the functions; ArtifactError for a library of before there were any."""
        self._device, self._handle, self.dtype = device, handle, dtype
        self._read = library.linked_function(abi.KV_READ_ROWS)
        self._write = library.linked_function(abi.KV_WRITE_ROWS)
        self._shortest = library.linked_function(abi.KV_SHORTEST_LENGTH)
        self._resume = library.linked_function(abi.KV_RESUME)
        layout = [int(number) for number in library.linked_function(abi.KV_ROW_LAYOUT)(handle)]
        self.entries = tuple(RowEntry(*layout[i : i + 5]) for i in range(0, len(layout), 5))
        self.stream = row_stream(library, device, handle, len(self.entries))

    def shortest(self, sequence: int) -> int:
        """The fewest tokens, besides none, that can be left by taking back the last ones."""
        return int(self._shortest(self._handle, sequence))

    def read(self, sequence: int, entry: int, first: int, array: Array) -> None:
        """Copy keys and values of positions from `first` on to an array.

        The device may not have written them yet: they are there after `Device.wait`. ValueError
        where it does not hold them.

        Parameters
        ----------
        array : (2, n, heads, head_dim), keys first
        """
        self.join()
        self._read(self._handle, sequence, entry, first, tvm_ffi.from_dlpack(array))

    def write(self, sequence: int, entry: int, first: int, array: Array) -> None:
        """Put such rows into a sequence without tokens; `resume` makes them its own.

        The device may take them from the array's memory until `Device.wait`.
        """
        self.join()
        whole = array if array.flags.c_contiguous and array.flags.writeable else array.copy()
        self._device.expect_uploads(_UPLOADS)
        self._write(self._handle, sequence, entry, first, tvm_ffi.from_dlpack(whole))

    def send(self, sequence: int, pieces: Iterable[Rows]) -> None:
        """As `write` of each, in this order; they may come beside the next forward.

        The device may take them from the arrays' memory until `join` and `Device.wait`.
        """
        if self.stream is not None:
            self.stream.send(sequence, pieces)
            return
        for rows in pieces:
            self.write(sequence, rows.entry, rows.first, rows.array)

    def join(self) -> None:
        """Have whatever the device is given next come after all rows that were sent."""
        if self.stream is not None:
            self.stream.join()

    def resume(self, sequence: int, length: int, shortest: int) -> None:
        """Give a sequence the tokens whose rows were written; `shortest` can be left at least."""
        self._resume(self._handle, sequence, length, shortest)
