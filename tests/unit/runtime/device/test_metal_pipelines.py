"""Files of kernels that the launcher for Metal has compiled."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import pytest

from gemma4_compile.runtime.device.metal_pipelines import MOST_FILES, KeptPipelines


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gemma4_compile" / "metal-pipelines"


def library(tmp_path: Path, content: bytes = b"a library") -> Path:
    path = tmp_path / "model.dylib"
    path.write_bytes(content)
    return path


def save(kept: KeptPipelines, content: bytes) -> None:
    def write(path: str) -> bool:
        Path(path).write_bytes(content)
        return True

    kept.save(write)


def test_what_is_saved_is_found_by_the_next_run_and_replaced(tmp_path: Path, cache: Path) -> None:
    kept = KeptPipelines(library(tmp_path))
    assert kept.find() is None
    for content in (b"first", b"second"):
        save(kept, content)
        found = KeptPipelines(library(tmp_path)).find()
        assert found is not None
        assert found.read_bytes() == content
    assert list(cache.iterdir()) == [found]
    if sys.platform != "win32":
        assert cache.stat().st_mode & 0o777 == 0o700


def test_another_library_and_another_macos_have_files_of_their_own(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(KeptPipelines(library(tmp_path)), b"kernels")
    assert KeptPipelines(library(tmp_path, b"another library")).find() is None
    monkeypatch.setattr(platform, "mac_ver", lambda: ("99.1", ("", "", ""), ""))
    assert KeptPipelines(library(tmp_path)).find() is None


def test_a_damaged_file_is_removed(tmp_path: Path, cache: Path) -> None:
    kept = KeptPipelines(library(tmp_path))
    save(kept, b"kernels")
    found = kept.find()
    assert found is not None
    found.write_bytes(b"kernelz")
    assert kept.find() is None
    assert list(cache.iterdir()) == []


def test_files_that_another_process_takes_away_meanwhile_are_no_error(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptPipelines(library(tmp_path))
    save(kept, b"kernels")
    glob = Path.glob

    def listed(folder: Path, pattern: str) -> list[Path]:
        """Each file, and one that is gone when it is looked at."""
        return [folder / "gone-gone", *glob(folder, pattern)]

    monkeypatch.setattr(Path, "glob", listed)
    found = kept.find()
    assert found is not None
    assert found.read_bytes() == b"kernels"
    save(kept, b"others")
    assert [path.read_bytes() for path in cache.iterdir()] == [b"others"]


def test_nothing_is_changed_where_nothing_is_new(tmp_path: Path, cache: Path) -> None:
    kept = KeptPipelines(library(tmp_path))
    save(kept, b"kernels")
    before = kept.find()
    kept.save(lambda path: False)
    assert kept.find() == before
    assert len(list(cache.iterdir())) == 1


def test_there_are_never_more_than_a_few(tmp_path: Path, cache: Path) -> None:
    for number in range(MOST_FILES + 3):
        kept = KeptPipelines(library(tmp_path, b"%d" % number))
        save(kept, b"kernels")
        found = kept.find()
        assert found is not None
        os.utime(found, (number, number))
    assert len(list(cache.iterdir())) == MOST_FILES
    assert KeptPipelines(library(tmp_path, b"0")).find() is None
    assert KeptPipelines(library(tmp_path, b"%d" % number)).find() is not None


@pytest.mark.skipif(sys.platform == "win32", reason="there are no modes")
def test_a_cache_that_others_can_write_to_is_not_used(tmp_path: Path, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    (cache.parent / "planted").touch()
    cache.parent.chmod(0o777)
    with pytest.raises(OSError, match="others"):
        KeptPipelines(library(tmp_path))
