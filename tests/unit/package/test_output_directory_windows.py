"""The output where an open file keeps its name and its folders, as on Windows.

A kernel that refuses such renames is made up: `os.rename` looks at the open descriptors, as Windows
does. What it does with real files is seen by the workflow alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma4_compile.errors import ArtifactError, InterruptedRunError, UsageError
from gemma4_compile.package.output_directory import (
    LOCK_FILE,
    PROGRESS_FILE,
    check_place,
    is_package,
    output_directory,
    write_errors,
)
from gemma4_compile.system import locks
from gemma4_compile.system import names as file_names
from tests.unit.package.test_output_directory import make_package, names, stop
from tests.unit.system.test_names import as_on_windows

DESCRIPTORS = Path("/proc/self/fd")
pytestmark = pytest.mark.skipif(
    not DESCRIPTORS.is_dir(), reason="open files are listed by Linux's /proc alone"
)


def open_files() -> Iterator[Path]:
    for descriptor in DESCRIPTORS.iterdir():
        try:
            yield Path(os.readlink(descriptor))
        except OSError:
            continue  # the one of the listing


@pytest.fixture(autouse=True)
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    real_rename, real_unlink = os.rename, os.unlink

    def refuse(path: object) -> None:
        whole = Path(os.path.abspath(str(path)))
        if any(file.is_relative_to(whole) for file in open_files()):
            raise PermissionError(13, "Access is denied", str(path))

    def rename(source: Path, target: Path) -> None:
        refuse(source)
        real_rename(source, target)

    def unlink(path: Path, *, dir_fd: int | None = None) -> None:
        if dir_fd is None:
            refuse(path)
        real_unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(locks, "OPEN_FILES_STAY", True)
    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "unlink", unlink)


def test_a_package_appears_and_nothing_is_left(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "out"
    with output_directory(output, force=False) as partial:
        (partial / "file").write_text("new")
    assert names(output.parent) == ["out"]
    assert names(output) == ["file"]


def test_a_package_is_replaced(tmp_path: Path) -> None:
    output = tmp_path / "out"
    make_package(output)
    with output_directory(output, force=True) as partial:
        (partial / "new").write_text("")
    assert names(tmp_path) == ["out"]
    assert names(output) == ["new"]


def test_after_an_error_nothing_is_left(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "out"
    with pytest.raises(KeyError), output_directory(output, force=False):
        raise KeyError
    assert names(tmp_path) == []


def test_two_runs_at_once(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with (
        output_directory(output, force=False) as partial,
        pytest.raises(ArtifactError, match="another run is writing"),
        output_directory(output, force=False),
    ):
        pytest.fail(f"must not begin in {partial}")
    assert names(tmp_path) == ["out"]


def test_an_interrupted_run_can_be_gone_on_from(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(InterruptedRunError):
        stop(output, KeyboardInterrupt(), PROGRESS_FILE)
    assert names(tmp_path) == [".out.partial"]
    with output_directory(output, force=False) as partial:
        assert names(partial) == [LOCK_FILE, PROGRESS_FILE]


def test_a_package_that_is_in_use_is_told_before_the_work(tmp_path: Path) -> None:
    output = tmp_path / "out"
    make_package(output)
    with (
        (output / "file").open(),
        pytest.raises(ArtifactError, match="while a program has it open") as caught,
        output_directory(output, force=True),
    ):
        pytest.fail("must not begin")
    assert "close the chat" in str(caught.value.hint)
    assert is_package(output)
    assert names(tmp_path) == ["out"]


def test_a_place_in_another_spelling_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that takes `Model` for `model`: the link is the other spelling, left as it is."""
    (tmp_path / "model").mkdir()
    (tmp_path / "Model").symlink_to("model")
    monkeypatch.setattr("gemma4_compile.system.regular_files.resolved", lambda path: path)
    with pytest.raises(UsageError, match="would replace the checkpoint"):
        check_place(tmp_path / "Model", [tmp_path / "model"])


def test_a_name_that_the_system_has_for_a_device_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_names, "check_new_name", as_on_windows)
    with pytest.raises(UsageError, match="`aux` for a device"):
        check_place(tmp_path / "aux")
    check_place(tmp_path / "auxiliary")


def test_a_path_that_is_too_long_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_names, "length_hint", lambda path: "; the path has 300 characters")
    with pytest.raises(ArtifactError, match="300 characters"), write_errors(tmp_path):
        raise FileNotFoundError(2, "No such file or directory")
