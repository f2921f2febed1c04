"""A folder by its descriptor, and by its path as on Windows."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from gemma4_compile.system.folders import Folder, NamedFolder, open_folder


@contextlib.contextmanager
def by_name(path: Path) -> Iterator[Folder]:
    yield NamedFolder(path)


@pytest.fixture(params=[open_folder, by_name])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    way: Callable[[Path], AbstractContextManager[Folder]] = request.param
    with way(tmp_path) as folder, folder.inside("kind") as inner:
        yield inner


def write(folder: Folder, name: str, content: bytes) -> None:
    descriptor = folder.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def test_files_are_made_named_listed_and_removed(opened: Folder, tmp_path: Path) -> None:
    write(opened, "new", b"one\n")
    write(opened, "other", b"two")
    assert (tmp_path / "kind" / "new").read_bytes() == b"one\n"
    assert (tmp_path / "kind" / "new").stat().st_mode & 0o077 == 0
    opened.replace("new", "other")
    assert opened.names() == ["other"]
    os.utime(tmp_path / "kind" / "other", ns=(7, 9_000))
    assert opened.changed_ns("other") == 9_000
    with pytest.raises(FileExistsError):
        opened.open("other", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    opened.remove("other")
    assert opened.names() == []
    with pytest.raises(FileNotFoundError):
        opened.open("other", os.O_RDONLY)


def test_a_folder_that_is_there_is_taken(opened: Folder) -> None:
    with opened.inside("a") as first:
        write(first, "file", b"")
    with opened.inside("a") as again:
        assert again.names() == ["file"]


def test_links_are_not_followed(opened: Folder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"of somebody")
    (tmp_path / "kind" / "file").symlink_to(outside / "file")
    (tmp_path / "kind" / "folder").symlink_to(outside)
    with pytest.raises(OSError, match=r".") as refused:
        opened.open("file", os.O_RDONLY)
    assert refused.value.errno == errno.ELOOP
    with pytest.raises(OSError, match=r".") as refused, opened.inside("folder"):
        pass
    assert refused.value.errno in (errno.ELOOP, errno.ENOTDIR)


def test_a_file_is_no_folder(opened: Folder) -> None:
    write(opened, "file", b"")
    with pytest.raises(NotADirectoryError), opened.inside("file"):
        pass
