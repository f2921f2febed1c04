"""The calls that a KV state makes, and what is said where a device has no room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.device.device import Device
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


def state_of(library: Library, sequences: int = 1) -> KvState:
    return KvState(cast("NativeLibrary", library), Device("cpu"), 1000, 64, sequences)


def test_each_call_names_its_sequences() -> None:
    library = Library(**{abi.KV_LENGTH: 7, abi.KV_ADD_SEQUENCE: 1, abi.KV_FORK_SEQUENCE: 2})
    state = state_of(library, 3)
    assert library.sizes == [3, 1000, 64, 16, 0]
    assert state.handle is HANDLE
    assert state.add(4) == 1
    assert state.fork(4, 5, 9) == 2
    assert state.length(4) == 7
    state.begin((4,), (3,))
    state.end()
    state.pop(4, 2)
    state.remove(4)
    assert library.calls == [
        (abi.KV_ADD_SEQUENCE, HANDLE, 4),
        (abi.KV_FORK_SEQUENCE, HANDLE, 4, 5, 9),
        (abi.KV_LENGTH, HANDLE, 4),
        (abi.KV_BEGIN_FORWARD, HANDLE, (4,), (3,)),
        (abi.KV_END_FORWARD, HANDLE),
        (abi.KV_POP_N, HANDLE, 4, 2),
        (abi.KV_REMOVE_SEQUENCE, HANDLE, 4),
    ]


@pytest.mark.parametrize("removed", [None, ValueError("there is no sequence 4 in this state")])
def test_a_sequence_is_there_again_after_its_tokens_are_forgotten(
    removed: ValueError | None,
) -> None:
    """Also where Ctrl-C came between the two calls before."""
    library = Library(**{abi.KV_REMOVE_SEQUENCE: removed, abi.KV_ADD_SEQUENCE: 3})
    assert state_of(library).renew(4) == 3
    assert library.calls == [(abi.KV_REMOVE_SEQUENCE, HANDLE, 4), (abi.KV_ADD_SEQUENCE, HANDLE, 4)]


def test_no_room_on_the_device() -> None:
    full = RuntimeError("out of memory")
    told = "1000 tokens on the cpu device: out of memory"
    with pytest.raises(ArtifactError, match=told):
        state_of(Library(**{abi.CREATE_KV_CACHE: full}))
    state = state_of(Library(**{abi.KV_ADD_SEQUENCE: full, abi.KV_FORK_SEQUENCE: full}), 2)
    calls: tuple[Callable[[], int], ...] = (lambda: state.add(1), lambda: state.fork(0, 1, 2))
    for call in calls:
        with pytest.raises(ArtifactError, match=told):
            call()


def test_what_a_ring_cannot_take_back() -> None:
    state = state_of(Library(**{abi.KV_POP_N: ValueError("beyond the window")}))
    with pytest.raises(ValueError, match="window"):
        state.pop(0, 100)
