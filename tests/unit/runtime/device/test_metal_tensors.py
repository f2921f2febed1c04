"""Which Macs have tensor operations, asked of libraries that are made up."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from gemma4_compile.device_kinds import TENSOR_OPERATIONS
from gemma4_compile.runtime.device import metal_launcher
from gemma4_compile.runtime.device.metal_tensors import FAMILIES, missing, without_units

M4, M5 = (FAMILIES["Metal4"],), tuple(FAMILIES.values())
OTHER_BYTES = 0x7F00  # of a register whose lowest byte is the answer


def mac(families: Collection[int]) -> Any:
    """Loads the two libraries of a Mac whose GPU is of these families."""

    def function(answer: Any) -> Any:
        return lambda *arguments: answer(*arguments)

    def send(device: int, selector: bytes, family: int) -> int:
        assert (device, selector) == (1, b"supportsFamily:")
        return OTHER_BYTES + (family in families)

    library = SimpleNamespace(
        MTLCreateSystemDefaultDevice=function(lambda: 1),
        sel_registerName=function(lambda name: name),
        objc_msgSend=function(send),
    )
    return lambda path: library


def nothing(path: str) -> Any:
    raise OSError(path)


@pytest.mark.parametrize(
    ("load", "macos", "told"),
    [
        (mac(M5), "26.1", ""),
        (mac(M5), "27", ""),
        (mac(M5), "16.0", ""),  # macOS 26, told to a Python that was built for macOS 15
        (mac(M5), "15.6.1", "this is macOS 15.6.1: macOS 26 or newer has them"),
        (mac(M4), "26.1", "this GPU is not of Metal's family Apple10, as M5 and later are"),
        (mac(()), "15.6", "this GPU is not of Metal's family Metal4 or Apple10"),
        (nothing, "26.1", "this machine has no Metal"),
    ],
)
def test_a_mac_has_units_by_its_family_and_system(load: Any, macos: str, told: str) -> None:
    found = without_units(load, macos)
    assert found.startswith(told)
    assert bool(found) == bool(told)


def test_a_library_that_asks_for_them_needs_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("shader-f16", TENSOR_OPERATIONS)
    monkeypatch.delenv(metal_launcher.SWITCH, raising=False)
    assert missing(asked[:1], nothing) == ""
    assert f"set {metal_launcher.SWITCH}=own" in missing(asked, mac(M5), "26.1")
    assert "Apple10" in missing(asked, mac(M4), "26.1")
    monkeypatch.setenv(metal_launcher.SWITCH, "own")
    assert missing(asked, mac(M5), "26.1") == ""
    assert "this machine has no Metal" in missing(asked, nothing, "26.1")
