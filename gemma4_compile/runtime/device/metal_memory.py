"""Memory that Metal lets a process use, which TVM's runtime does not tell."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_OBJC = "/usr/lib/libobjc.A.dylib"
_METAL = "/System/Library/Frameworks/Metal.framework/Metal"


def metal_free_bytes(load: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> int | None:
    """What is left of the size that Metal recommends; None where there is no Metal.

    Parameters
    ----------
    load : loads a library of the system

    References
    ----------
    Apple: MTLDevice.recommendedMaxWorkingSetSize, currentAllocatedSize; of macOS 10.13 on.
    """
    try:
        objc, metal = load(_OBJC), load(_METAL)
        metal.MTLCreateSystemDefaultDevice.restype = ctypes.c_void_p
        device = metal.MTLCreateSystemDefaultDevice()
        objc.sel_registerName.restype = ctypes.c_void_p
        objc.sel_registerName.argtypes = (ctypes.c_char_p,)
        objc.objc_msgSend.restype = ctypes.c_uint64
        objc.objc_msgSend.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    except (OSError, AttributeError):
        return None
    if not device:
        return None
    most, used = (
        int(objc.objc_msgSend(device, objc.sel_registerName(name)))
        for name in (b"recommendedMaxWorkingSetSize", b"currentAllocatedSize")
    )
    return max(0, most - used) if most else None
