"""What Metal says of memory, asked of libraries that are made up."""

from __future__ import annotations

from typing import Any

from gemma4_compile.runtime.device.metal_memory import metal_free_bytes

GB = 10**9


class FakeMetal:
    """The two libraries of a Mac with so much memory for its GPU."""

    def __init__(self, most: int, used: int, device: int = 1) -> None:
        sizes = {b"recommendedMaxWorkingSetSize": most, b"currentAllocatedSize": used}

        def function(answer: Any) -> Any:
            def call(*arguments: Any) -> Any:
                return answer(*arguments)

            return call

        self.MTLCreateSystemDefaultDevice = function(lambda: device)
        self.sel_registerName = function(lambda name: name)
        self.objc_msgSend = function(lambda _, name: sizes[name])


def loading(library: Any) -> Any:
    """Loads this in the place of the system's libraries."""
    return lambda path: library


def test_metal_says_what_is_left() -> None:
    assert metal_free_bytes(loading(FakeMetal(12 * GB, 2 * GB))) == 10 * GB
    assert metal_free_bytes(loading(FakeMetal(2 * GB, 12 * GB))) == 0
    assert metal_free_bytes(loading(FakeMetal(0, 0))) is None
    assert metal_free_bytes(loading(FakeMetal(GB, 0, device=0))) is None

    def missing(path: str) -> Any:
        raise OSError(path)

    assert metal_free_bytes(missing) is None
    assert metal_free_bytes(loading(object())) is None
