"""CUDA's runtime library, in the few functions that TVM's runtime does not offer."""

from __future__ import annotations

import ctypes

import tvm_ffi

from gemma4_compile.errors import Gemma4CompileError

LIBRARY = "libcudart.so.13"
"""Of the version that TVM's runtime was built with."""
DEFAULT_STREAM = ctypes.c_void_p()
"""Stream on which TVM launches and copies by default."""

_TO_HOST = 2  # cudaMemcpyDeviceToHost
_WITHOUT_TIMING = 2  # cudaEventDisableTiming


_HINT = (
    "GEMMA4_CUDA_GRAPHS=0 in the environment leaves CUDA graphs off, and GEMMA4_ROW_STREAM=0 the "
    "stream of kept rows"
)


class CudaError(Gemma4CompileError):
    """CUDA refused a call."""


class CudaRuntime:
    """The library that `Device.open` has loaded."""

    def __init__(self) -> None:
        """Find it by its name."""
        try:
            self._library = ctypes.CDLL(LIBRARY)
            self._launch = self._library.cudaGraphLaunch
            self._library.cudaGetErrorName.restype = ctypes.c_char_p
            self._library.cudaGetErrorString.restype = ctypes.c_char_p
        except (OSError, AttributeError) as error:
            raise CudaError(f"`{LIBRARY}` cannot be used: {error}", hint=_HINT) from error

    def code(self, name: str, *arguments: object) -> int:
        """Call a function; return its error code. Pointers are given as ctypes' objects."""
        return int(getattr(self._library, name)(*arguments))

    def check(self, name: str, code: int) -> None:
        """Raise CudaError for an error code, and clear it, so that no later call reports it."""
        if code:
            self._library.cudaGetLastError()
            text = (self._library.cudaGetErrorString(code) or b"").decode()
            kind = (self._library.cudaGetErrorName(code) or b"").decode()
            raise CudaError(f"{name}: {text} ({kind}, {code})", hint=_HINT)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function; CudaError if it fails."""
        self.check(name, self.code(name, *arguments))

    def make(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """Call a function whose first argument takes a new handle; return that."""
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle

    def make_event(self) -> ctypes.c_void_p:
        """An event that tells no time."""
        return self.make("cudaEventCreateWithFlags", ctypes.c_uint(_WITHOUT_TIMING))

    def address(self, name: str) -> int:
        """Where a function is, for a library that calls it."""
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0

    def launch_graph(self, executable: ctypes.c_void_p, stream: ctypes.c_void_p) -> None:
        """`cudaGraphLaunch`, once a token."""
        code = self._launch(executable, stream)
        if code:
            self.check("cudaGraphLaunch", code)


class Readback:
    """Some int32 of the device's on their way to the host: asked for now, waited for later.

    What the device is given after `queue` is not waited for.
    """

    def __init__(self, cuda: CudaRuntime, most: int = 1) -> None:
        """Allocate memory that the device can write while the host does something else."""
        self._cuda = cuda
        self._event = self._memory = None
        self._memory = cuda.make("cudaMallocHost", ctypes.c_size_t(4 * most))
        self._event = cuda.make_event()
        assert self._memory.value is not None, "cudaMallocHost gave memory"
        self._values = (ctypes.c_int32 * most).from_address(self._memory.value)

    def queue(self, tensor: tvm_ffi.Tensor, count: int = 1) -> None:
        """Copy a tensor's first numbers after all work that the device was given before."""
        source, size = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(4 * count)
        kind = ctypes.c_int(_TO_HOST)
        self._cuda.call("cudaMemcpyAsync", self._memory, source, size, kind, DEFAULT_STREAM)
        self._cuda.call("cudaEventRecord", self._event, DEFAULT_STREAM)

    def wait(self) -> int:
        """The first of the numbers that were asked for last."""
        return self.wait_all(1)[0]

    def wait_all(self, count: int) -> list[int]:
        """The first `count` of the numbers that were asked for last."""
        self._cuda.call("cudaEventSynchronize", self._event)
        return self._values[:count]

    def __del__(self) -> None:
        if self._event:
            self._cuda.code("cudaEventSynchronize", self._event)
            self._cuda.code("cudaEventDestroy", self._event)
        if self._memory:
            self._cuda.code("cudaFreeHost", self._memory)
