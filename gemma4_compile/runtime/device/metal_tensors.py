"""Whether a Mac has Metal 4's tensor operations in units of its GPU, and what it lacks."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence

from gemma4_compile.device_kinds import TENSOR_OPERATIONS
from gemma4_compile.runtime.device import metal_launcher
from gemma4_compile.runtime.device.metal_objects import Load, MetalObject

FAMILIES = {"Metal4": 5002, "Apple10": 1010}
"""MTLGPUFamily: those that a GPU has that multiplies tensors by units of its own, M5 and later."""
OLDEST_MACOS, AS_TOLD = 26, 16
"""The first macOS that has them, and what it calls itself to a Python built for an earlier one."""
_BOOL = 0xFF  # of an answer that is one byte, other bytes say nothing


def missing(features: Sequence[str], load: Load = ctypes.CDLL, macos: str | None = None) -> str:
    """What this Mac lacks of what a library asks for, and what to do; "" where that is nothing.

    Parameters
    ----------
    features : of the library's requirements
    macos : version of the system, by default this one's
    """
    if TENSOR_OPERATIONS not in features:
        return ""
    needs = without_units(load, macos)
    if needs:
        return f"it multiplies by Metal 4's tensor operations, and {needs}"
    if not metal_launcher.is_chosen():
        return (
            "it multiplies by Metal 4's tensor operations, which TVM's runtime cannot compile: "
            f"set {metal_launcher.SWITCH}=own"
        )
    return ""


def without_units(load: Load = ctypes.CDLL, macos: str | None = None) -> str:
    """Why this machine has no tensor operations in units of its GPU; "" where it has them.

    References
    ----------
    Apple: MTLDevice.supportsFamily, MTLGPUFamily; Metal feature set tables.
    """
    device = MetalObject.of_system(load)
    if device is None:
        return "this machine has no Metal"
    lacks = [
        name
        for name, number in FAMILIES.items()
        if not device.ask(b"supportsFamily:", (number,)) & _BOOL
    ]
    if lacks:
        return f"this GPU is not of Metal's family {' or '.join(lacks)}, as M5 and later are"
    version = platform.mac_ver()[0] if macos is None else macos
    major = version.partition(".")[0]
    if not major.isdecimal() or int(major) < AS_TOLD:  # there is none between the two
        return f"this is macOS {version}: macOS {OLDEST_MACOS} or newer has them"
    return ""
