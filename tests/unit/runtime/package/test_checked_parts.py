"""What is remembered of checked files: a library apart from what the libraries share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gemma4_compile.runtime import Package
from gemma4_compile.runtime.package import checked_parts, integrity
from tests.libraries import record, with_libraries


def test_another_library_of_a_checked_package_is_hashed_alone(
    tiny_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(checked_parts, "_checked_here", set())
    libraries = [(record("cpu", "cpu"), None), (record("other", "cpu"), None)]
    folder = with_libraries(tiny_package, tmp_path / "p", libraries)
    hashed: list[str] = []
    original = integrity._hash

    def note(path: Path, nbytes: int, advance: Callable[[int], None]) -> str:
        hashed.append(path.name)
        return original(path, nbytes, advance)

    monkeypatch.setattr(integrity, "_hash", note)
    Package.open(folder, device="cpu")
    assert "params_shard_0.bin" in hashed
    assert "model-cpu.so" in hashed
    assert "model-other.so" not in hashed
    hashed.clear()
    Package.open(folder, device="other")
    assert hashed == ["model-other.so"]
    hashed.clear()
    checked_parts._checked_here.clear()  # as another process
    for name in ("cpu", "other"):
        Package.open(folder, device=name)
    assert hashed == []
