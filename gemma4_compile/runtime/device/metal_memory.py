"""Memory that Metal lets a process use, which TVM's runtime does not tell."""

from __future__ import annotations

import ctypes

from gemma4_compile.runtime.device.metal_objects import Load, MetalObject


def metal_free_bytes(load: Load = ctypes.CDLL) -> int | None:
    """What is left of the size that Metal recommends; None where there is no Metal.

    Parameters
    ----------
    load : loads a library of the system

    References
    ----------
    Apple: MTLDevice.recommendedMaxWorkingSetSize, currentAllocatedSize; of macOS 10.13 on.
    """
    device = MetalObject.of_system(load)
    if device is None:
        return None
    most, used = map(device.ask, (b"recommendedMaxWorkingSetSize", b"currentAllocatedSize"))
    return max(0, most - used) if most else None
