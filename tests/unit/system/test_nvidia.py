from pathlib import Path

import pytest

from gemma4_compile.system.nvidia import CUDA, wheel_folders


def test_folders_of_the_wheels_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia" / CUDA).mkdir(parents=True)
    (tmp_path / "nvidia" / "cu12").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert tmp_path / "nvidia" / CUDA in list(wheel_folders())
    assert all(folder.name == CUDA for folder in wheel_folders())
