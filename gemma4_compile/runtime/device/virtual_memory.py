"""CUDA's virtual memory: addresses whose pages lie on the host or on the device, and may change.

What reads an address finds the same bytes whichever place its page is in, so kernels, and CUDA
graphs that hold addresses, know nothing of it. A page's copy on the host stays, so that to take
one off the device copies nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from math import prod

import tvm_ffi

from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.device.cuda_runtime import DEFAULT_STREAM, CudaError, CudaRuntime
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.device.host_memory import tensor_of

DRIVER = "libcuda.so.1"

_PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
_ON_DEVICE, _ON_NODE = 1, 3  # CU_MEM_LOCATION_TYPE_DEVICE, _HOST_NUMA
_READ_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_MINIMUM = 0  # CU_MEM_ALLOC_GRANULARITY_MINIMUM
_NODE_OF_DEVICE = 134  # CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID
_BY_ADDRESS = 4  # cudaMemcpyDefault
_HINT = "do without: --expert-cache 0"


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """`CUmemAllocationProp`."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    )


class _Access(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class Driver:
    """The driver's functions of virtual memory, which CUDA's runtime library does not have."""

    def __init__(self, path: str = DRIVER, runtime: CudaRuntime | None = None) -> None:
        """Find them; CudaError where they are not to be had.

        Parameters
        ----------
        path : of the driver's library
        runtime : CUDA's runtime library, by default that of this process
        """
        self._runtime = runtime or CudaRuntime()
        try:
            self._library = ctypes.CDLL(path)
            self._library.cuMemCreate  # noqa: B018
        except (OSError, AttributeError) as error:
            raise CudaError(f"`{path}` cannot be used: {error}", hint=_HINT) from error
        node = ctypes.c_int(-1)
        self.code("cuDeviceGetAttribute", ctypes.byref(node), ctypes.c_int(_NODE_OF_DEVICE), 0)
        self.host = _Location(_ON_NODE, max(0, node.value))
        self.device = _Location(_ON_DEVICE, 0)

    def code(self, name: str, *arguments: object) -> int:
        """Call a function; return its error code."""
        return int(getattr(self._library, name)(*arguments))

    def call(self, name: str, *arguments: object) -> None:
        """Call a function; CudaError if it fails."""
        code = self.code(name, *arguments)
        if code:
            text = ctypes.c_char_p()
            self.code("cuGetErrorName", code, ctypes.byref(text))
            raise CudaError(f"{name}: {(text.value or b'').decode()} ({code})", hint=_HINT)

    def page_bytes(self) -> int:
        """Size of a page, the same on host and device."""
        sizes = []
        for place in (self.host, self.device):
            size, properties = ctypes.c_size_t(), _Properties(_PINNED, 0, place)
            to = ctypes.byref(size), ctypes.byref(properties)
            self.call("cuMemGetAllocationGranularity", *to, ctypes.c_int(_MINIMUM))
            sizes.append(size.value)
        return max(sizes)

    def create(self, place: _Location, nbytes: int) -> int:
        """Memory in a place, without an address; its handle."""
        handle, properties = ctypes.c_uint64(), _Properties(_PINNED, 0, place)
        size = ctypes.c_size_t(nbytes), ctypes.byref(properties), ctypes.c_uint64(0)
        self.call("cuMemCreate", ctypes.byref(handle), *size)
        return handle.value

    def release(self, handle: int) -> None:
        """Free memory, once it has no address."""
        self.code("cuMemRelease", ctypes.c_uint64(handle))

    def reserve(self, nbytes: int) -> int:
        """Addresses without memory."""
        address, rest = ctypes.c_uint64(), (ctypes.c_size_t(0), ctypes.c_uint64(0))
        size = ctypes.c_size_t(nbytes)
        self.call("cuMemAddressReserve", ctypes.byref(address), size, *rest, ctypes.c_uint64(0))
        return address.value

    def free(self, address: int, nbytes: int) -> None:
        """Give addresses back, which have no memory."""
        self.code("cuMemAddressFree", ctypes.c_uint64(address), ctypes.c_size_t(nbytes))

    def map(self, address: int, nbytes: int, handle: int) -> None:
        """Give addresses the memory of a handle, which the device may read and write."""
        at, size = ctypes.c_uint64(address), ctypes.c_size_t(nbytes)
        own = ctypes.c_uint64(handle), ctypes.c_uint64(0)
        self.call("cuMemMap", at, size, ctypes.c_size_t(0), *own)
        access = _Access(self.device, _READ_WRITE)
        try:
            self.call("cuMemSetAccess", at, size, ctypes.byref(access), ctypes.c_size_t(1))
        except CudaError:
            self.unmap(address, nbytes)
            raise

    def unmap(self, address: int, nbytes: int) -> None:
        """Take the memory of addresses away."""
        self.call("cuMemUnmap", ctypes.c_uint64(address), ctypes.c_size_t(nbytes))

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy among addresses, after all work that the device was given before."""
        at, origin, size = ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(nbytes)
        kind = ctypes.c_int(_BY_ADDRESS)
        self._runtime.call("cudaMemcpyAsync", at, origin, size, kind, DEFAULT_STREAM)


class _Pages:
    """Addresses, and a page of memory in one place for each; freed with this object."""

    def __init__(self, driver: Driver, place: _Location, page_bytes: int, count: int) -> None:
        self.handles: list[int] = []
        self._driver, self._page_bytes, self._nbytes = driver, page_bytes, page_bytes * count
        self._mapped = self.address = 0
        if count:
            self.address = driver.reserve(self._nbytes)
        for page in range(count):
            self.handles.append(driver.create(place, page_bytes))
            driver.map(self.address_of(page), page_bytes, self.handles[-1])
            self._mapped += 1

    def address_of(self, page: int) -> int:
        return self.address + page * self._page_bytes

    def put(self, page: int, handle: int) -> None:
        """Let a page have other memory; CudaError where it keeps that or gets its own again."""
        self._driver.unmap(self.address_of(page), self._page_bytes)
        try:
            self._driver.map(self.address_of(page), self._page_bytes, handle)
        except CudaError as error:
            try:
                self._driver.map(self.address_of(page), self._page_bytes, self.handles[page])
            except CudaError:
                raise ArtifactError(
                    f"a page of experts has lost its memory: {error}",
                    hint=f"start again; if it happens again, {_HINT}",
                ) from error
            raise

    def __del__(self) -> None:
        for page in range(self._mapped):
            with suppress(CudaError):  # at the end of the process the driver may be gone
                self._driver.unmap(self.address_of(page), self._page_bytes)
        for handle in self.handles:
            self._driver.release(handle)
        if self.address:
            self._driver.free(self.address, self._nbytes)


class VirtualMemory:
    """Tensors of a device whose pages begin on the host, and so many frames of the device's memory.

    Attributes
    ----------
    page_bytes : size of a page and of a frame
    frames : how many pages can be on the device at a time
    page_count : of all tensors, numbered in the order in which they were made
    """

    def __init__(
        self,
        device: Device,
        device_bytes: int,
        sizes: Sequence[int],
        driver: Driver | None = None,
    ) -> None:
        """Take frames; ArtifactError if there is no room, or no such memory on device or host.

        Parameters
        ----------
        device_bytes : of the device's memory, at most
        sizes : bytes of the tensors to come, more than whose pages are not taken
        driver : by default that of this process
        """
        self._device = device
        where, nbytes = device.name, device_bytes
        try:
            self._driver = driver or Driver()
            self.page_bytes = self._driver.page_bytes()
            pages = sum(-(-nbytes // self.page_bytes) for nbytes in sizes)
            self.frames = min(device_bytes // self.page_bytes, pages)
            self._frames = self._pages(self._driver.device, self.frames)
            # A driver may have such memory on the device alone, as in many containers: known before
            # a tensor is placed.
            where, nbytes = "host", self.page_bytes
            self._pages(self._driver.host, 1)
        except CudaError as error:
            raise self._refused(nbytes, where, error) from error
        self._places: list[tuple[_Pages, int]] = []  # of each page: its tensor's, and which of them

    @property
    def page_count(self) -> int:
        """See the attribute."""
        return len(self._places)

    def empty(self, shape: tuple[int, ...], dtype: str) -> tuple[tvm_ffi.Tensor, range]:
        """A tensor, its values undefined, and its pages; ArtifactError if the host has no room."""
        nbytes = prod(shape) * tvm_ffi.dtype(dtype).itemsize
        try:
            pages = self._pages(self._driver.host, -(-nbytes // self.page_bytes))
        except CudaError as error:
            raise self._refused(nbytes, "host", error) from error
        first = len(self._places)
        self._places += ((pages, page) for page in range(len(pages.handles)))
        made = tensor_of(self._device, pages.address, pages, shape, dtype)
        return made, range(first, len(self._places))

    def fill(self, frame: int, page: int) -> None:
        """Copy a page that is on the host into a frame that no page has, after all work given."""
        pages, own = self._places[page]
        at = self._frames.address_of(frame)
        self._driver.copy(at, pages.address_of(own), self.page_bytes)

    def to_frame(self, page: int, frame: int) -> None:
        """Let a page be read from a frame, which has its bytes; nothing of the device may run.

        CudaError if the driver refuses: it is read from the host then.
        """
        pages, own = self._places[page]
        pages.put(own, self._frames.handles[frame])

    def to_host(self, page: int) -> None:
        """Let a page be read from the host; as `to_frame`."""
        pages, own = self._places[page]
        pages.put(own, pages.handles[own])

    def _pages(self, place: _Location, count: int) -> _Pages:
        return _Pages(self._driver, place, self.page_bytes, count)

    def _refused(self, nbytes: int, where: str, error: CudaError) -> ArtifactError:
        return ArtifactError(
            f"no {nbytes} bytes for pages of experts on the {where}: {error}",
            hint="a smaller --expert-cache, a larger --experts share where the host is short, or "
            f"{_HINT}",
        )
