"""Messages to a device of Metal that is made up."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

from gemma4_compile.runtime.device.metal_objects import METAL, OBJC, MetalObject


def test_a_question_has_the_types_of_its_method() -> None:
    asked: list[tuple[Any, ...]] = []

    def send(*arguments: Any) -> int:
        asked.append(arguments)
        return 7

    objc = SimpleNamespace(sel_registerName=lambda name: name.decode(), objc_msgSend=send)
    metal = SimpleNamespace(MTLCreateSystemDefaultDevice=lambda: 5)
    libraries: dict[str, Any] = {OBJC: objc, METAL: metal}
    found = MetalObject.of_system(libraries.__getitem__)
    assert found is not None
    assert (found.ask(b"count"), found.ask(b"has:", (3,))) == (7, 7)
    assert asked == [(5, "count"), (5, "has:", 3)]
    assert vars(send)["argtypes"] == (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    assert vars(send)["restype"] is ctypes.c_uint64


def test_without_metal_there_is_none() -> None:
    def missing(path: str) -> Any:
        raise OSError(path)

    assert MetalObject.of_system(missing) is None
    objc = SimpleNamespace(sel_registerName=lambda name: name, objc_msgSend=lambda *_: 0)
    libraries: dict[str, Any] = {
        OBJC: SimpleNamespace(**vars(objc)),
        METAL: SimpleNamespace(MTLCreateSystemDefaultDevice=lambda: 0),
    }
    assert MetalObject.of_system(libraries.__getitem__) is None
