"""The fake CUDA's own functions, as a test asks them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    Attributes
    ----------
    kernel : name, grid, block and shared memory
    params : as 64 bits each
    from_graph : whether a graph made it
    begins_early : by an edge of the graph that does not wait for the end of the one before
    due : copies of a stream beside the default one that had not come when it was launched
    """

    kernel: tuple[Any, ...]
    params: tuple[int, ...]
    from_graph: bool
    begins_early: bool
    due: int = field(default=0, compare=False)


class FakeCuda:
    """The library that stands for CUDA in this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcudart.so.13")
        self._library.fake_name.restype = ctypes.c_char_p
        self._library.fake_param.restype = ctypes.c_uint64
        self._library.fake_dim.restype = ctypes.c_uint32
        for name in (
            *("launches", "uploads", "downloads", "bytes", "host_bytes"),
            *("handles", "reserved", "mapped", "due", "copies_due", "launches_before"),
        ):
            getattr(self._library, f"fake_{name}").restype = ctypes.c_int64

    def launches(self) -> list[Launch]:
        """All since `clear`, in order."""
        return [self._launch(ctypes.c_int64(i)) for i in range(self._library.fake_launches())]

    def _launch(self, i: ctypes.c_int64) -> Launch:
        library = self._library
        dims = (library.fake_dim(i, j) for j in range(7))
        params = (library.fake_param(i, j) for j in range(library.fake_param_count(i)))
        name = library.fake_name(i).decode()
        found = bool(library.fake_from_graph(i)), bool(library.fake_begins_early(i))
        return Launch((name, *dims), tuple(params), *found, int(library.fake_due(i)))

    def clear(self) -> None:
        """Forget launches and copies."""
        self._library.fake_clear()

    def fail(self, function: str) -> None:
        """Let a function of CUDA's fail from now on; none with an empty name."""
        self._library.fake_fail(function.encode())

    def corrupt(self, on: bool) -> None:
        """Let graphs compute something else."""
        self._library.fake_corrupt(int(on))

    def set_generation(self, major: int) -> None:
        """Let the GPU have this compute capability."""
        self._library.fake_capability(major)

    def set_free(self, count: int) -> None:
        """Let so many bytes of the device be free, whatever is allocated."""
        self._library.fake_free(ctypes.c_int64(count))

    @property
    def host_bytes(self) -> int:
        """Memory of the host that is page-locked."""
        return int(self._library.fake_host_bytes())

    @property
    def uploads(self) -> int:
        """Copies to the device since `clear`."""
        return int(self._library.fake_uploads())

    @property
    def downloads(self) -> int:
        """Copies to the host since `clear`."""
        return int(self._library.fake_downloads())

    @property
    def copies_due(self) -> int:
        """Copies of a stream beside the default one that nobody has waited for."""
        return int(self._library.fake_copies_due())

    @property
    def launches_before(self) -> int:
        """Of the launches since `clear`, those that such copies come after."""
        return int(self._library.fake_launches_before())

    @property
    def bytes(self) -> int:
        """Memory of the device that is allocated."""
        return int(self._library.fake_bytes())

    def handles(self, on_device: bool) -> int:
        """Pieces of memory of the driver's, on the device or the host."""
        return int(self._library.fake_handles(1 if on_device else 3))

    @property
    def virtual_bytes(self) -> tuple[int, int]:
        """Addresses of virtual memory that are reserved, and those that have memory."""
        return int(self._library.fake_reserved()), int(self._library.fake_mapped())

    @property
    def alive(self) -> int:
        """Graphs, streams and events."""
        return int(self._library.fake_alive())

    @property
    def capturing(self) -> bool:
        """Return whether a capture is under way."""
        return bool(self._library.fake_capturing())


def fake_cuda() -> FakeCuda:
    """The process's one."""
    return FakeCuda()
