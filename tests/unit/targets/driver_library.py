"""A library for the CPU with what only a browser's has: driver functions and checkpoints.

The limits of a checkpoint are small ones here.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gemma4_compile.targets import cpu, webgpu
from gemma4_compile.targets.linker import link as linker
from gemma4_compile.targets.linker.runtime_objects import runtime_objects

UNITS = ("web_driver.cc", "kv_page_groups.cc", "kv_checkpoint.cc")
GROUP_BYTES = 1024
CHECKPOINT_BYTES = 16 * 1024
LIMITS = (f"-DGEMMA4_GROUP_BYTES={GROUP_BYTES}", f"-DGEMMA4_CHECKPOINT_BYTES={CHECKPOINT_BYTES}")
EXPORTS = "{ global: __tvm_ffi_*; __TVM*; gemma4_driver_*; local: *; };\n"


def link(executable: Any, output: Path) -> None:
    """Link an executable for this machine, with the browser's functions next to the state's."""
    native = cpu.native_platform(sys.platform, platform.machine())
    flags = native.link_flags
    if sys.platform == "linux":
        exports = output.with_suffix(".map")
        exports.write_text(EXPORTS)
        flags = tuple(str(exports) if flag.endswith("exports.map") else flag for flag in flags)
    target = replace(native, link_flags=flags)  # of the same objects and C++ library
    flags = (*native.compile_flags, *LIMITS)
    added = runtime_objects(replace(native, units=UNITS, compile_flags=flags))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linker, "runtime_objects", lambda *asked: [*runtime_objects(*asked), *added])
        linker.link_library(executable, output, target)


class Driver:
    """What a browser module calls, with the objects' handles."""

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        self._functions = {
            name.removeprefix("gemma4_driver_"): getattr(loaded, name)
            for name in webgpu.DRIVER_CALLS
        }
        self._functions["interface"].restype = ctypes.c_char_p
        self._functions["tensor"].restype = ctypes.c_void_p

    def __call__(self, name: str, *arguments: Any) -> Any:
        return self._functions[name](*(_argument(value) for value in arguments))

    def state(self, state: Any, capacity: int) -> tuple[int, list[int]]:
        """Return the count, and an array of `capacity + 2` that began as -7."""
        numbers = (ctypes.c_int32 * (capacity + 2))(*[-7] * (capacity + 2))
        return self("state", state, numbers, capacity), list(numbers)

    def step(
        self, state: Any, position: int, pairs: int
    ) -> tuple[int, list[int], NDArray[np.float32]]:
        """Return the result, the four positions and the rotary row."""
        positions = (ctypes.c_int32 * 4)()
        rotary = np.full((pairs, 2), np.nan, np.float32)
        target = rotary.ctypes.data_as(ctypes.c_void_p)
        result = self("step", state, position, positions, target)
        return result, list(positions), rotary


def _argument(value: Any) -> Any:
    return ctypes.c_void_p(value.__chandle__()) if hasattr(value, "__chandle__") else value
