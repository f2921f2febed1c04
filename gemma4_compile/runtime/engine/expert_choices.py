"""Which experts the forwards of a model read: copied aside on the device, read now and then."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from math import prod

import numpy as np
import numpy.typing as npt
import tvm_ffi

from gemma4_compile.runtime.device.cuda_runtime import CudaRuntime
from gemma4_compile.runtime.device.device import Device, copy, view

_DTYPE = "int32"
_ON_DEVICE = 3  # cudaMemcpyDeviceToDevice
_BYTES = 4
_NOBODY = -1

MOST_IDS = 512
"""Of a layer that are kept of a forward of a few rows; 26B-A4B has eight a row."""

Counts = npt.NDArray[np.float64]


class ExpertChoices:
    """Instrument of a virtual machine that copies what the matmuls of experts are told to read.

    Copies are the device's own, on the stream that the kernels run on, so that they are in a CUDA
    graph as well, which repeats them. It must not refer to the machine, which refers to it.

    Attributes
    ----------
    copies : that were made
    """

    def __init__(self, device: Device, layers: Mapping[int, int], experts: int) -> None:
        """Make room for the choices of one forward.

        Parameters
        ----------
        layers : row of the counts by the addresses of a layer's stored tensors of experts
        experts : of a layer
        """
        self.copies = 0
        self._device, self._layers, self._experts = device, layers, experts
        self._nobody = np.full((len(set(layers.values())), MOST_IDS), _NOBODY, np.int32)
        self._ids = device.empty(self._nobody.shape, _DTYPE)
        self._tiles: dict[int, tvm_ffi.Tensor] = {}  # by row, as long as the longest yet
        self._tile_counts: dict[int, int] = {}  # of the last chunk
        self._cuda = CudaRuntime() if device.kind.has_driver else None
        self._forget_ids()

    def __call__(
        self, _function: object, _name: str, before: bool, _result: object, *arguments: object
    ) -> int:
        """Take note of one call of the machine, which is made in any case."""
        if before:
            return 0
        tensors = [one for one in arguments if isinstance(one, tvm_ffi.Tensor)]
        row = next((r for t in tensors if (r := self._layers.get(t.data_ptr())) is not None), None)
        if row is None:
            return 0
        numbers = [one for one in tensors if str(one.dtype) == _DTYPE]
        chosen = [one for one in numbers if len(one.shape) == 2]
        # A chunk's call has the order of its pairs beside tiles, any other the ids themselves.
        is_chunk = len(chosen) < len(numbers)
        for one in chosen:
            count = prod(int(size) for size in one.shape)
            if is_chunk:
                self._keep_tiles(row, one, count)
            else:
                target = self._ids.data_ptr() + _BYTES * MOST_IDS * row
                self._copy(one, target, min(MOST_IDS, count))
        return 0

    @property
    def has_chunk(self) -> bool:
        """Whether a chunk has run since the last `read`."""
        return bool(self._tile_counts)

    def read(self) -> Counts:
        """How often each expert was read, (layers, experts), by the last forward of each kind.

        One that is read for several rows at once counts once. Waits for the device; what was read
        is forgotten.
        """
        counts = np.zeros((len(self._nobody), self._experts))
        ids = self._device.read(self._ids)
        for row, own in enumerate(ids):
            counts[row, np.unique(own[self._is_known(own)])] += 1
        for row, count in self._tile_counts.items():
            tiles = self._device.read(view(self._tiles[row], (count // 3, 3)))
            used = self._is_known(tiles[:, 0]) & (tiles[:, 2] > tiles[:, 1])
            np.add.at(counts[row], tiles[used, 0], 1)
        self._tile_counts.clear()
        self._forget_ids()
        return counts

    def _is_known(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        return (ids >= 0) & (ids < self._experts)

    def _forget_ids(self) -> None:
        """A graph that is replayed does not say that it has written: what it leaves is no id."""
        copy(tvm_ffi.from_dlpack(self._nobody), self._ids)

    def _keep_tiles(self, row: int, tiles: tvm_ffi.Tensor, count: int) -> None:
        if row not in self._tiles or self._tiles[row].numel() < count:
            self._tiles[row] = self._device.empty((count,), _DTYPE)
        self._tile_counts[row] = count
        self._copy(tiles, self._tiles[row].data_ptr(), count)

    def _copy(self, numbers: tvm_ffi.Tensor, target: int, count: int) -> None:
        """Copy so many numbers, on the stream of the kernels."""
        self.copies += 1
        if self._cuda is None:
            ctypes.memmove(target, numbers.data_ptr(), _BYTES * count)
            return
        stream = tvm_ffi.get_raw_stream(tvm_ffi.device(self._device.name, 0))
        source, size = ctypes.c_void_p(numbers.data_ptr()), ctypes.c_size_t(_BYTES * count)
        kind = ctypes.c_int(_ON_DEVICE)
        own = ctypes.c_void_p(target), source, size, kind, ctypes.c_void_p(stream)
        self._cuda.call("cudaMemcpyAsync", *own)
