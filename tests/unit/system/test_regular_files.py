"""Only regular files are read; what is written never goes through a link."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gemma4_compile.system import regular_files


def make(kind: str, path: Path) -> None:
    """Something that is no regular file."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(os.path.relpath(path))  # the whole path may be too long
    else:
        (path.parent / "victim").write_text("precious")
        path.symlink_to("victim")


OTHERS = ["pipe", "directory", "socket"]


@pytest.mark.parametrize("kind", OTHERS)
def test_only_regular_files_are_read(kind: str, tmp_path: Path) -> None:
    make(kind, tmp_path / "x")
    with pytest.raises(OSError, match=f"no regular file, but a {kind}"):
        regular_files.open_regular(tmp_path / "x")


def test_devices_are_not_read() -> None:
    with pytest.raises(OSError, match="a device"):
        regular_files.read_regular(Path("/dev/zero"), 10)


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("x")
    assert regular_files.read_regular(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        regular_files.read_regular(tmp_path / "x", 4)


@pytest.mark.parametrize("kind", [*OTHERS, "link"])
def test_only_regular_files_are_replaced(kind: str, tmp_path: Path) -> None:
    make(kind, tmp_path / "x")
    for opener in (regular_files.open_new, regular_files.open_lock):
        with pytest.raises(OSError, match=f"no regular file, but a {kind}"):
            opener(tmp_path / "x")
    if kind == "link":
        assert (tmp_path / "victim").read_text() == "precious"


def test_a_file_that_is_replaced_keeps_its_content_under_other_names(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    os.link(tmp_path / "victim", tmp_path / "x")
    regular_files.write_new(tmp_path / "x", b"new")
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "x").read_text() == "new"


def test_exclusive_takes_no_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    with pytest.raises(FileExistsError):
        regular_files.open_new(tmp_path / "x", exclusive=True)


def test_a_lock_cuts_nothing_off(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    regular_files.open_lock(tmp_path / "x").close()
    assert (tmp_path / "x").read_text() == "old"


def test_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regular_files.check_own_directory(tmp_path)
    (tmp_path / "link").symlink_to(".")
    (tmp_path / "file").write_text("")
    for name, what in (("link", "a link"), ("file", "no directory")):
        with pytest.raises(OSError, match=what):
            regular_files.check_own_directory(tmp_path / name)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OSError, match="another user"):
        regular_files.check_own_directory(tmp_path)


def test_links_that_lead_out(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    (tmp_path / "secret").write_text("x")
    (inside / "own").write_text("x")
    (inside / "good").symlink_to("own")
    (inside / "bad").symlink_to("../secret")
    (inside / "circle").symlink_to("circle")
    regular_files.check_inside(inside / "good")
    with pytest.raises(OSError, match="leads out"):
        regular_files.check_inside(inside / "bad")
    snapshot = tmp_path / "snapshots" / "commit"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "b").write_text("x")
    (snapshot / "file").symlink_to("../../blobs/b")
    (snapshot / "bad").symlink_to("../../secret")
    regular_files.check_inside(snapshot / "file")
    with pytest.raises(OSError, match="leads out"):
        regular_files.check_inside(snapshot / "bad")
