"""Reading, writing, renaming and linking; the forms of Windows with this system's calls."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gemma4_compile.system import files


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(opened, b"0123456789")
    os.lseek(opened, 7, os.SEEK_SET)
    yield opened
    os.close(opened)


@pytest.mark.parametrize("read", [files.read_at, files.seek_and_read])
def test_a_read_leaves_the_position(read: Callable[..., object], descriptor: int) -> None:
    assert read(descriptor, 4, 2) == b"2345"
    assert read(descriptor, 4, 8) == b"89"
    assert os.read(descriptor, 3) == b"789"


@pytest.mark.parametrize("write", [files.write_at, files.seek_and_write])
def test_what_is_written_lies_at_its_offset(
    write: Callable[..., object], descriptor: int, tmp_path: Path
) -> None:
    assert write(descriptor, b"ab", 3) == 2
    assert write(descriptor, memoryview(b"cd"), 12) == 2
    assert (tmp_path / "file").read_bytes() == b"012ab56789\0\0cd"


def test_a_rename_is_tried_while_a_scanner_has_the_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PAUSE_SECONDS", 0)
    (tmp_path / "new").touch()
    refusals = iter([PermissionError(13, "in use"), PermissionError(13, "in use")])

    def change(source: Path, target: Path) -> None:
        for refusal in refusals:
            raise refusal
        source.rename(target)

    files.again_while_open(change, tmp_path / "new", tmp_path / "name", 3)
    assert (tmp_path / "name").exists()


def test_a_file_that_stays_open_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PAUSE_SECONDS", 0)
    tried = []

    def change(source: Path, target: Path) -> None:
        tried.append(source)
        raise PermissionError(13, "in use")

    with pytest.raises(PermissionError, match="in use"):
        files.again_while_open(change, tmp_path / "new", tmp_path / "name", 3)
    assert len(tried) == 3


def test_other_errors_are_not_tried_again(tmp_path: Path) -> None:
    tried = []

    def change(source: Path, target: Path) -> None:
        tried.append(source)
        raise FileNotFoundError

    with pytest.raises(FileNotFoundError):
        files.again_while_open(change, tmp_path / "new", tmp_path / "name", 3)
    assert len(tried) == 1


def test_a_link_is_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.write_text("content")
    files.link_file(source, tmp_path / "one")
    monkeypatch.setattr(os, "supports_follow_symlinks", set())  # as on Windows
    files.link_file(source, tmp_path / "two")
    assert source.stat().st_nlink == 3


@pytest.mark.parametrize("sync", [files.sync, files.sync_writable])
def test_files_and_folders_reach_the_disk(
    sync: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(descriptor)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    (tmp_path / "file").touch()
    sync(tmp_path / "file")
    sync(tmp_path)
    assert len(synced) == (2 if sync is files.sync else 1)


class Kernel32:
    """Second names of files, as a disk has them."""

    def __init__(self, short: str) -> None:
        self._short = short

    def GetShortPathNameW(
        self, path: object, buffer: ctypes.Array[ctypes.c_wchar], most: object
    ) -> int:
        buffer.value = self._short
        return len(self._short)


def test_a_path_of_plain_letters_goes_to_tvm_as_it_is() -> None:
    path = r"C:\Users\me\tiny-cpu\model.so"
    assert files.plain_path(path, Kernel32("")) == path


def test_tvm_gets_the_second_name_of_a_path_with_other_letters() -> None:
    short = r"C:\Users\JRGEN~1\tiny-cpu\model.so"
    assert files.plain_path(r"C:\Users\Jürgen\tiny-cpu\model.so", Kernel32(short)) == short


@pytest.mark.parametrize("short", ["", r"D:\Jürgen\model.so"])
def test_a_disk_without_second_names_is_an_error(short: str) -> None:
    with pytest.raises(OSError, match="such letters"):
        files.plain_path(r"D:\Jürgen\model.so", Kernel32(short))


def test_here_a_path_goes_to_tvm_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert files.path_for_tvm(Path("model.so")) == str(tmp_path / "model.so")


class Control:
    """`fcntl` of macOS."""

    F_FULLFSYNC = 51

    def __init__(self, refusal: OSError | None) -> None:
        self._refusal = refusal
        self.asked: list[tuple[int, int]] = []

    def fcntl(self, fd: int, cmd: int, /) -> int:
        self.asked.append((fd, cmd))
        if self._refusal is not None:
            raise self._refusal
        return 0


@pytest.mark.parametrize("refusal", [None, OSError(45, "not supported")])
def test_macos_is_asked_to_write_through_the_disks_memory(
    descriptor: int, refusal: OSError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    control = Control(refusal)
    files.force_through(descriptor, control)
    assert control.asked == [(descriptor, 51)]
    assert synced == ([] if refusal is None else [descriptor])


def test_a_folder_is_known_in_another_spelling(tmp_path: Path) -> None:
    """As on a disk that takes `Models` for `models`: here a link has the other spelling."""
    (tmp_path / "models" / "gemma").mkdir(parents=True)
    (tmp_path / "Models").symlink_to("models")
    (tmp_path / "other").mkdir()
    inside = tmp_path / "models" / "gemma"
    assert files.is_below(inside, tmp_path / "models")
    assert files.is_below(inside, tmp_path / "Models" / "gemma")
    assert files.is_below(inside / "not there", tmp_path / "Models")
    assert not files.is_below(inside, tmp_path / "other")
    assert not files.is_below(inside, tmp_path / "missing")
    assert not files.is_below(tmp_path / "models", tmp_path / "Models" / "gemma")


@pytest.mark.parametrize("refused", [(), ("symlink",), ("symlink", "link")])
def test_a_file_has_another_name_where_links_need_rights(
    tmp_path: Path, refused: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(1, "a required privilege is not held")

    for name in refused:
        monkeypatch.setattr(os, name, refuse)
    (tmp_path / "shard").write_bytes(b"weights")
    files.point_to(tmp_path / "shard", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == b"weights"
    assert (tmp_path / "again").is_symlink() is (not refused)


@pytest.mark.parametrize(("system", "stays"), [("win32", True), ("linux", False)])
def test_on_windows_a_scratch_folder_may_hold_open_files(
    system: str, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "used by another process")

    monkeypatch.setattr(sys, "platform", system)
    scratch = files.scratch_folder("gemma4-")
    Path(scratch.name, "mapped").touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        if stays:
            scratch.cleanup()
        else:
            with pytest.raises(OSError, match=r"."):
                scratch.cleanup()
    shutil.rmtree(scratch.name)


def test_scratch_folders_are_made_here_alone() -> None:
    root = Path(__file__).parents[3]
    product = [
        path for part in ("gemma4_compile", "targets") for path in (root / part).rglob("*.py")
    ]
    users = [path.name for path in product if "TemporaryDirectory(" in path.read_text("utf-8")]
    assert users == ["files.py"]


def test_windows_is_told_where_a_wheel_has_its_other_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(os, "add_dll_directory", told.append, raising=False)
    files.find_libraries_in(tmp_path)
    assert told == []
    monkeypatch.setattr(sys, "platform", "win32")
    files.find_libraries_in(tmp_path / "missing")
    files.find_libraries_in(tmp_path)
    assert told == [str(tmp_path)]
