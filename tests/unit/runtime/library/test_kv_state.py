"""The calls that a KV state makes, and what is said where a device has no room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.library.kv_state import KvState
from gemma4_compile.runtime.library.native_library import NativeLibrary

HANDLE = object()


class Library:
    """Functions that note their calls; some answer."""

    def __init__(self, **answers: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.sizes: list[int] = []
        self._answers = answers

    def linked_function(self, name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.calls.append((name, *args))
            answer = self._answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    def compiled_function(self, name: str) -> Callable[..., Any]:
        assert name == abi.CREATE_KV_CACHE

        def create(*shapes: tuple[int, ...]) -> object:
            if error := self._answers.get(name):
                raise error
            self.sizes = [size for (size,) in shapes]
            return HANDLE

        return create


def state_of(library: Library) -> KvState:
    return KvState(cast("NativeLibrary", library), "cpu", 1000, 64)


def test_one_sequence_of_its_length() -> None:
    library = Library(**{abi.KV_LENGTH: 7})
    state = state_of(library)
    assert library.sizes == [1, 1000, 64, 16, 0]
    assert state.handle is HANDLE
    assert state.length == 7
    state.begin(3)
    state.end()
    state.pop(2)
    assert library.calls == [
        (abi.KV_ADD_SEQUENCE, HANDLE, 0),
        (abi.KV_LENGTH, HANDLE),
        (abi.KV_BEGIN_FORWARD, HANDLE, 3),
        (abi.KV_END_FORWARD, HANDLE),
        (abi.KV_POP_N, HANDLE, 2),
    ]


def test_a_cleared_state_has_its_sequence_again() -> None:
    library = Library()
    state = state_of(library)
    library.calls.clear()
    state.clear()
    assert library.calls == [(abi.KV_CLEAR, HANDLE), (abi.KV_ADD_SEQUENCE, HANDLE, 0)]


def test_no_room_on_the_device() -> None:
    library = Library(**{abi.CREATE_KV_CACHE: RuntimeError("out of memory")})
    with pytest.raises(ArtifactError, match="1000 tokens on the cpu device: out of memory"):
        state_of(library)


def test_what_a_ring_cannot_take_back() -> None:
    state = state_of(Library(**{abi.KV_POP_N: ValueError("beyond the window")}))
    with pytest.raises(ValueError, match="window"):
        state.pop(100)
