"""Which of two drives Metal, by the environment."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from numpy.random import mtrand

from gemma4_compile.device_kinds import METAL, METAL_LAUNCHER
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.runtime.device import metal_launcher
from gemma4_compile.runtime.device.device import Device


@pytest.mark.parametrize(("word", "kind"), [(None, METAL), ("tvm", METAL), ("own", METAL_LAUNCHER)])
def test_the_environment_chooses(
    word: str | None, kind: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(metal_launcher.SWITCH, raising=False)
    if word is not None:
        monkeypatch.setenv(metal_launcher.SWITCH, word)
    assert Device("metal").kind is kind
    assert not Device("cpu").kind.has_launcher


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(metal_launcher.SWITCH, "mine")
    with pytest.raises(UsageError, match="expected `tvm` or `own`, found `mine`"):
        metal_launcher.is_chosen()


@pytest.mark.parametrize("text", ["0", "-1", "4097", "many", ""])
def test_a_number_of_launches_that_cannot_be_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(metal_launcher.LAUNCHES, text)
    with pytest.raises(UsageError, match="GEMMA4_METAL_LAUNCHES: expected 1 to 4096"):
        metal_launcher.launches()


def test_a_system_without_metal_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(metal_launcher.SWITCH, "own")
    monkeypatch.setattr(metal_launcher, "has_metal", lambda: False)
    with pytest.raises(ArtifactError):
        Device.open("metal")


def test_a_library_of_the_folder_that_one_is_in_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of `gemma4-chat .`; what it has besides no launcher does not matter."""
    shutil.copy(mtrand.__file__, tmp_path / "model.dylib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(metal_launcher, "is_installed", lambda: False)
    with pytest.raises(ArtifactError, match=r"`model\.dylib` has no launcher for Metal"):
        metal_launcher.install(Path("model.dylib"))
