"""The host's memory for a GPU: how much is taken. `tests/cuda/test_experts.py` has tensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.device import host_memory
from gemma4_compile.runtime.device.host_memory import ROOM_LEFT_BYTES, check_room

KIB = 4 << 20
"""That are available."""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(f"MemTotal: 7 kB\nMemFree: 1 kB\nMemAvailable:  {KIB} kB\nBuffers: 2 kB\n")
    monkeypatch.setattr(host_memory, "_MEMORY_TABLE", path)
    return path


def test_some_memory_is_left_for_the_rest(table: Path) -> None:
    most = 1024 * KIB - ROOM_LEFT_BYTES
    check_room(most)
    with pytest.raises(ArtifactError, match=f"need {most + 1} bytes of it, .*; {1024 * KIB} are"):
        check_room(most + 1)


@pytest.mark.parametrize("text", [None, "", "MemAvailable:\n", "MemAvailable: much kB\n", "\n\n"])
def test_a_system_that_does_not_tell_is_not_asked(table: Path, text: str | None) -> None:
    table.unlink()
    if text is not None:
        table.write_text(text)
    check_room(1 << 60)
