"""Memory of the host that a GPU reaches by itself: read by its kernels, or what it copies.

CUDA maps page-locked memory into the address space of every GPU, at the address that it has on the
host. Kernels take such an address as any other, and a CUDA graph may hold it: nothing is copied,
and nothing moves. Copies from and to it are the GPU's own; to and from other memory the driver
copies everything once more.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt
import tvm_ffi

from gemma4_compile.device_kinds import DeviceType
from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.device.device import Device, allocate
from gemma4_compile.system.available_memory import available_bytes

_PAGE_LOCKED = 3  # kDLCUDAHost, whose memory is `cudaMallocHost`'s
_CAPSULE = b"dltensor"
_log = logging.getLogger(__name__)

ROOM_LEFT_BYTES = 1 << 30
"""Of the host's memory, for everything else: what is page-locked is never swapped out."""


class _DLDevice(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DLTensor(ctypes.Structure):
    """The first fields of DLPack's `DLManagedTensor`, which begins with its `DLTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


class _Capsule:
    """Hands a DLPack capsule on."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> object:
        return self._capsule


def empty_on_host(device: Device, shape: Sequence[int], dtype: str) -> tvm_ffi.Tensor:
    """A tensor of a GPU, its values undefined, whose memory is the host's.

    `bytes_of` is how the host writes it. The memory is freed with the last tensor that has it.

    Raises
    ------
    ArtifactError
        If the host has no memory for it that could be page-locked.
    """
    assert device.kind.reads_host, "asked before"
    try:
        memory = allocate(shape, dtype, _PAGE_LOCKED)
    except RuntimeError as error:
        nbytes = int(np.prod(shape)) * tvm_ffi.dtype(dtype).itemsize
        raise ArtifactError(
            f"no room for {nbytes} bytes of the host's memory that the {device.name} device reads: "
            f"{error}",
            hint="close other programs, or leave more of the experts on the GPU: --experts 75%",
        ) from error
    capsule = memory.__dlpack__()
    # To DLPack it is the host's. Here it is said to be the GPU's, which compiled code asks for. The
    # description is the capsule's own; the memory stays with `memory`, which that keeps.
    _described(capsule).device.type = int(DeviceType.CUDA)
    return tvm_ffi.from_dlpack(_Capsule(capsule))


class _Memory:
    """Hands bytes to NumPy, which keeps this object, and so their owner, as long as them."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def tensor_of(
    device: Device, address: int, owner: object, shape: Sequence[int], dtype: str
) -> tvm_ffi.Tensor:
    """A tensor of a device at an address, which keeps the owner of that memory."""
    described = tvm_ffi.dtype(dtype)
    nbytes = prod(shape) * described.itemsize
    words = np.asarray(_Memory(address, nbytes, owner)).view(f"u{described.itemsize}")
    capsule = words.reshape(tuple(shape)).__dlpack__()
    # What NumPy says of host and type is corrected: it knows neither the device nor bfloat16.
    own = _described(capsule)
    own.device.type = device.type
    own.type_code = described.type_code
    return tvm_ffi.from_dlpack(_Capsule(capsule))


def memory_for_copies(device: Device, nbytes: int) -> npt.NDArray[np.uint8]:
    """Memory of the host (nbytes,), its values undefined, for copies from a device and to it.

    Page-locked where that is quicker and the host has it; MemoryError where it has none at all.
    """
    if device.kind.reads_host and nbytes and _has_room(nbytes):
        try:
            locked = allocate((nbytes,), "uint8", _PAGE_LOCKED)
            return np.asarray(_Memory(locked.data_ptr(), nbytes, locked))
        except RuntimeError as error:
            _log.info("%d bytes of the host's memory are not page-locked: %s", nbytes, error)
    return np.empty(nbytes, np.uint8)


def bytes_of(tensor: tvm_ffi.Tensor) -> memoryview:
    """The bytes of a tensor of `empty_on_host`, to be written; right as long as the tensor is."""
    nbytes = tensor.numel() * tensor.dtype.itemsize
    return memoryview((ctypes.c_uint8 * nbytes).from_address(tensor.data_ptr())).cast("B")


def check_room(nbytes: int) -> None:
    """ArtifactError if host or container have too little memory left to page-lock so much of it.

    Linux would end programs to make room, this one among them.
    """
    if not _has_room(nbytes):
        raise ArtifactError(
            f"experts in the host's memory need {nbytes} bytes of it, and {ROOM_LEFT_BYTES} are "
            f"left for the rest; {available_bytes()} are available",
            hint="close other programs, or leave more of the experts on the GPU: --experts 75%",
        )


def _has_room(nbytes: int) -> bool:
    available = available_bytes()
    return available is None or nbytes + ROOM_LEFT_BYTES <= available


def _described(capsule: object) -> _DLTensor:
    """The description in a capsule, to be changed."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return _DLTensor.from_address(get(capsule, _CAPSULE))
