"""Memory of the host for copies of rows, some of it ready before it is needed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.device.host_memory import memory_for_copies


class CopyMemory:
    """As `memory_for_copies`, with pieces that are ready.

    CUDA's driver locks some 3 MB a millisecond: what a prompt replaces in its slot is copied before
    it is read, so that the first token would wait for that. One thread uses this.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._ready: list[npt.NDArray[np.uint8]] = []

    def prepare(self, sizes: Sequence[int]) -> None:
        """Have pieces of so many bytes ready, at least; MemoryError where the host has none."""
        if not self._device.kind.reads_host:
            return  # other memory is there at once
        ready = [self._taken(nbytes) for nbytes in sizes]
        self._ready = [
            memory_for_copies(self._device, nbytes) if piece is None else piece
            for piece, nbytes in zip(ready, sizes, strict=True)
        ]

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Memory of so many bytes, or of less than twice as many; MemoryError as above."""
        piece = self._taken(nbytes)
        return memory_for_copies(self._device, nbytes) if piece is None else piece

    def _taken(self, nbytes: int) -> npt.NDArray[np.uint8] | None:
        fitting = [piece for piece in self._ready if nbytes <= len(piece) < 2 * nbytes]
        if not fitting:
            return None
        best = min(fitting, key=len)
        self._ready = [piece for piece in self._ready if piece is not best]
        return best
