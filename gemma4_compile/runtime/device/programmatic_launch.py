"""Programmatic dependent launch: kernels of a CUDA graph that begin before the last one has ended.

Only between kernels whose text says itself when it needs what came before
(targets/cuda_programmatic.py): libraries say whether theirs do, and on other GPUs than Hopper
they have an image that does not.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from gemma4_compile.package.interface import PROGRAMMATIC_LAUNCH
from gemma4_compile.runtime.device.cuda_runtime import CudaRuntime
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.types import JsonObject

SWITCH = "GEMMA4_PROGRAMMATIC_LAUNCH"
"""Environment variable; 0 has every kernel wait for the end of the one before it."""

_HOPPER = "9.0"
_EDGE = ctypes.c_ubyte * 8  # cudaGraphEdgeData: from_port, to_port, type, reserved
_WHEN_ENDED = _EDGE()
_WHEN_BEGUN = _EDGE(1, 0, 1)  # cudaGraphKernelNodePortProgrammatic, ...DependencyTypeProgrammatic


def is_programmatic(described: JsonObject, device: Device) -> bool:
    """Return whether a library's kernels, by its metadata, may begin early on the device."""
    if os.environ.get(SWITCH, "1") == "0" or described.get(PROGRAMMATIC_LAUNCH) is not True:
        return False
    return device.compute_capability == _HOPPER


def begin_early(
    cuda: CudaRuntime, graph: ctypes.c_void_p, is_kernel: Callable[[ctypes.c_void_p], bool]
) -> None:
    """Let a graph's kernels begin when all blocks of the kernel before have begun; CudaError."""
    count = ctypes.c_size_t()
    cuda.call("cudaGraphGetEdges", graph, None, None, None, ctypes.byref(count))
    starts, ends = ((ctypes.c_void_p * count.value)() for _ in range(2))
    data = (_EDGE * count.value)()
    cuda.call("cudaGraphGetEdges", graph, starts, ends, data, ctypes.byref(count))
    one = ctypes.c_size_t(1)
    for start, end in zip(map(ctypes.c_void_p, starts), map(ctypes.c_void_p, ends), strict=True):
        if is_kernel(start) and is_kernel(end):
            edge = graph, ctypes.byref(start), ctypes.byref(end)
            cuda.call("cudaGraphRemoveDependencies", *edge, _WHEN_ENDED, one)
            cuda.call("cudaGraphAddDependencies", *edge, _WHEN_BEGUN, one)
