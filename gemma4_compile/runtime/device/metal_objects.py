"""Questions to Metal's device, which TVM's runtime does not answer."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

OBJC = "/usr/lib/libobjc.A.dylib"
METAL = "/System/Library/Frameworks/Metal.framework/Metal"
Load = Callable[[str], ctypes.CDLL]
"""Loads a library of the system."""


@dataclass(frozen=True)
class MetalObject:
    """The first device of Metal, and the runtime that sends it messages."""

    device: int
    objc: ctypes.CDLL

    @classmethod
    def of_system(cls, load: Load) -> MetalObject | None:
        """The device; None where there is no Metal."""
        try:
            objc, metal = load(OBJC), load(METAL)
            metal.MTLCreateSystemDefaultDevice.restype = ctypes.c_void_p
            device = metal.MTLCreateSystemDefaultDevice()
            objc.sel_registerName.restype = ctypes.c_void_p
            objc.sel_registerName.argtypes = (ctypes.c_char_p,)
            objc.objc_msgSend.restype = ctypes.c_uint64
        except (OSError, AttributeError):
            return None
        return cls(device, objc) if device else None

    def ask(self, selector: bytes, numbers: Sequence[int] = ()) -> int:
        """A number that it answers, to a question with signed words of 64 bits."""
        words = [ctypes.c_int64] * len(numbers)
        self.objc.objc_msgSend.argtypes = (ctypes.c_void_p, ctypes.c_void_p, *words)
        found = self.objc.objc_msgSend(self.device, self.objc.sel_registerName(selector), *numbers)
        return int(found)
