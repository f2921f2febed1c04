"""The cache folder: made for its user alone, and refused where others could exchange it."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemma4_compile.system import cache_folder
from gemma4_compile.system.cache_folder import UnsafeFolderError, own_cache_folder

OTHER = 12_345  # a user that is neither this one nor root


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "a" / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def test_it_is_made_for_this_user_alone(base: Path) -> None:
    for _ in range(2):
        assert own_cache_folder() == base / "gemma4_compile"
    for folder in (base.parent, base, base / "gemma4_compile"):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_one_that_others_could_read_is_closed(base: Path) -> None:
    (base / "gemma4_compile").mkdir(parents=True)
    (base / "gemma4_compile").chmod(0o755)
    assert own_cache_folder().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("which", ["a", "a/cache", "a/cache/gemma4_compile"])
@pytest.mark.parametrize("mode", [0o777, 0o757, 0o722])
def test_what_others_may_write_is_refused(
    base: Path, tmp_path: Path, which: str, mode: int
) -> None:
    own_cache_folder()
    (tmp_path / which).chmod(mode)
    with pytest.raises(UnsafeFolderError, match="written to by others") as caught:
        own_cache_folder()
    assert f"`{tmp_path / which}`" in str(caught.value.strerror)


def test_a_folder_with_the_sticky_bit_may_lie_above(base: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o1777)
    assert own_cache_folder().is_dir()
    (base / "gemma4_compile").chmod(0o1777)  # but others could put entries into this one
    with pytest.raises(UnsafeFolderError, match="written to by others"):
        own_cache_folder()


def test_links_are_followed_and_every_step_is_looked_at(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    base.parent.mkdir()
    base.symlink_to(Path("..", "disk", "..", "disk", "cache"))
    assert own_cache_folder() == disk / "cache" / "gemma4_compile"
    disk.chmod(0o777)
    with pytest.raises(UnsafeFolderError):
        own_cache_folder()
    disk.chmod(0o700)
    base.unlink()
    base.symlink_to(base)
    with pytest.raises(OSError, match="leads to itself"):
        own_cache_folder()


def test_what_belongs_to_another_user_is_refused(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache_folder()
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    monkeypatch.setattr(cache_folder, "_is_trusted", lambda uid: uid == OTHER)
    with pytest.raises(UnsafeFolderError, match="belongs to another user"):
        own_cache_folder()


def test_a_file_in_the_way_and_no_home_are_named(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base.parent.mkdir()
    base.write_text("in the way")
    with pytest.raises(OSError, match="cache` is no directory"):
        own_cache_folder()

    def homeless() -> Path:
        raise RuntimeError("no home directory")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(OSError, match="has no home directory"):
        own_cache_folder()


def test_of_two_processes_that_make_it_both_have_it(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir

    def late(path: Path, mode: int) -> None:
        mkdir(path, mode)  # by the other one
        mkdir(path, mode)

    monkeypatch.setattr(Path, "mkdir", late)
    assert own_cache_folder() == base / "gemma4_compile"


def test_one_on_a_disk_that_can_only_be_read_stays_as_it_is(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base / "gemma4_compile").mkdir(parents=True, mode=0o755)

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "chmod", refuse)
    assert own_cache_folder() == base / "gemma4_compile"


def test_a_group_of_one_may_write_above_it_and_a_list_of_users_may_not(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache_folder()
    (tmp_path / "a").chmod(0o775)
    group = SimpleNamespace(gr_name="ann", gr_mem=[])
    monkeypatch.setattr(grp, "getgrgid", lambda _: group)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="ann"))
    assert own_cache_folder() == base / "gemma4_compile"
    group.gr_mem.append("ben")
    with pytest.raises(UnsafeFolderError):
        own_cache_folder()
    group.gr_mem.clear()
    if sys.platform == "linux":  # where the mode shows a list of users as the group's
        monkeypatch.setattr(os, "getxattr", lambda *_, **__: b"ben: rwx")
        with pytest.raises(UnsafeFolderError):
            own_cache_folder()


def test_the_owner_of_the_root_directory_is_trusted(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container without root's rights root has the number of nobody."""
    lstat = Path.lstat

    def numbered(path: Path) -> Any:
        found = lstat(path)
        mine = path in (base, *base.parents)
        return SimpleNamespace(st_mode=found.st_mode, st_uid=65534 if mine else found.st_uid)

    monkeypatch.setattr(Path, "lstat", numbered)
    monkeypatch.setattr(os, "lstat", lambda _: SimpleNamespace(st_uid=0))
    with pytest.raises(UnsafeFolderError, match="belongs to another user"):
        own_cache_folder()
    monkeypatch.setattr(os, "lstat", lambda _: SimpleNamespace(st_uid=65534))
    assert own_cache_folder() == base / "gemma4_compile"
