"""Weights onto a device, through one piece of the host's memory."""

from __future__ import annotations

import mmap
from typing import Protocol

import numpy as np
import tvm_ffi

from gemma4_compile.runtime.device.device import Device, copy, usable, view
from gemma4_compile.types import Array

PIECE_BYTES = 8 << 20
"""Of the host's memory that an upload takes. A driver or Metal keeps one of its own beside it."""


class Source(Protocol):
    """Values that lie in a file, little-endian."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def dtype(self) -> str: ...  # noqa: D102

    @property
    def nbytes(self) -> int: ...  # noqa: D102

    def mapped(self) -> Array:
        """All of them, as memory that is the file's."""
        ...

    def read_into(self, memory: memoryview, begin: int) -> None:
        """Copy those from byte `begin` on into memory, which they fill."""
        ...


class Uploads:
    """Brings values of files onto a device, one after the other.

    Where the device's memory is the host's, kernels read what is mapped. Elsewhere the files are
    read and not mapped: the pages of a mapping would count as this process's until the end, and a
    file that is cut off meanwhile would end it.
    """

    def __init__(self, device: Device, piece_bytes: int = PIECE_BYTES) -> None:
        """Take the device; `piece_bytes` is a multiple of every item's size."""
        self._device = device
        self._piece_bytes = piece_bytes
        self._piece: mmap.mmap | None = None  # whole pages, so that they go back to the system

    def __call__(self, source: Source) -> tvm_ffi.Tensor:
        """A tensor with the values of `source`; ArtifactError if there is no room for it.

        On the CPU that is mapped memory where kernels can take its address, else a copy.
        """
        if self._device.is_cpu:
            return tvm_ffi.from_dlpack(usable(source.mapped()))
        tensor = self._device.empty(source.shape, source.dtype)
        self.fill(tensor, source)
        return tensor

    def fill(self, tensor: tvm_ffi.Tensor, source: Source) -> None:
        """Copy the values of `source` into a tensor of its shape and dtype."""
        stored = np.dtype(source.dtype).newbyteorder("<")
        if self._piece is None:
            self._piece = mmap.mmap(-1, self._piece_bytes)
        memory = np.frombuffer(self._piece, np.uint8)
        for begin in range(0, source.nbytes, self._piece_bytes):
            piece = memory[: source.nbytes - begin]
            source.read_into(piece.data, begin)
            values = usable(piece.view(stored))
            copy(tvm_ffi.from_dlpack(values), view(tensor, values.shape, begin))
            self._device.wait()  # Metal keeps a copy of each piece until it is there
