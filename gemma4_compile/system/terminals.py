"""Terminals: whether they show styles, which on Windows a program asks for."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Protocol

_STDERR = 0xFFFFFFF4  # STD_ERROR_HANDLE: -12 as the function takes it
_SEQUENCES = 0x4  # ENABLE_VIRTUAL_TERMINAL_PROCESSING

Function = Callable[..., int]


class Consoles(Protocol):
    """What is used of kernel32.dll: its functions return 0 when they fail."""

    @property
    def GetStdHandle(self) -> Function:
        """The handle of a standard stream."""

    @property
    def GetConsoleMode(self) -> Function:
        """Write a console's mode."""

    @property
    def SetConsoleMode(self) -> Function:
        """Set it."""


def shows_styles() -> bool:
    """Return whether the terminal of stderr takes sequences that begin with ESC as styles."""
    return sys.platform != "win32" or asks_for_styles(ctypes.WinDLL("kernel32"))


def asks_for_styles(kernel32: Consoles) -> bool:
    """`shows_styles` on Windows, where a console shows the letters before it is asked.

    Consoles before Windows 10 refuse, and terminals of other programs are no consoles.
    """
    handle = ctypes.c_void_p(kernel32.GetStdHandle(ctypes.c_uint32(_STDERR)))
    mode = ctypes.c_uint32()
    if not kernel32.GetConsoleMode(handle, ctypes.byref(mode)):
        return False
    wanted = mode.value | _SEQUENCES
    return bool(wanted == mode.value or kernel32.SetConsoleMode(handle, ctypes.c_uint32(wanted)))
