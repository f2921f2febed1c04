"""Consoles of Windows, made up."""

from __future__ import annotations

import ctypes
import sys

import pytest

from gemma4_compile.system.terminals import asks_for_styles, shows_styles

OUTPUT, SEQUENCES = 0x3, 0x4


class Console:
    """kernel32 with one console, of a mode; None: stderr is none."""

    def __init__(self, mode: int | None, *, refuses: bool = False) -> None:
        self.mode, self._refuses = mode, refuses

    def GetStdHandle(self, number: ctypes.c_uint32) -> int:
        assert ctypes.c_int32(number.value).value == -12
        return 7

    def GetConsoleMode(self, handle: ctypes.c_void_p, mode: object) -> int:
        assert handle.value == 7
        if self.mode is None:
            return 0
        ctypes.cast(mode, ctypes.POINTER(ctypes.c_uint32))[0] = self.mode  # type: ignore[arg-type]
        return 1

    def SetConsoleMode(self, handle: ctypes.c_void_p, mode: ctypes.c_uint32) -> int:
        if self._refuses:
            return 0
        self.mode = mode.value
        return 1


def test_a_console_is_asked_for_styles_and_keeps_its_other_modes() -> None:
    console = Console(OUTPUT)
    assert asks_for_styles(console)
    assert console.mode == OUTPUT | SEQUENCES


@pytest.mark.parametrize(
    ("console", "expected"),
    [
        (Console(OUTPUT | SEQUENCES, refuses=True), True),  # it does already
        (Console(OUTPUT, refuses=True), False),
        (Console(None), False),
    ],
)
def test_what_takes_no_styles_gets_none(console: Console, expected: bool) -> None:
    assert asks_for_styles(console) is expected


@pytest.mark.skipif(sys.platform == "win32", reason="asks the console")
def test_other_systems_terminals_show_them() -> None:
    assert shows_styles()
