"""The host's memory for a GPU: how much is taken. `tests/cuda/test_experts.py` has tensors."""

from __future__ import annotations

import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.device import host_memory
from gemma4_compile.runtime.device.host_memory import ROOM_LEFT_BYTES, check_room

AVAILABLE = 4 << 30


def test_some_memory_is_left_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "available_bytes", lambda: AVAILABLE)
    most = AVAILABLE - ROOM_LEFT_BYTES
    check_room(most)
    with pytest.raises(ArtifactError, match=f"need {most + 1} bytes of it, .*; {AVAILABLE} are"):
        check_room(most + 1)


def test_a_system_that_does_not_tell_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "available_bytes", lambda: None)
    check_room(1 << 60)
