"""Notes in the cache: through one folder, never through a link."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.package import notes
from gemma4_compile.runtime.package.notes import read_note, write_note
from gemma4_compile.system.folders import NamedFolder, open_folder

KIND, NAME = "checked-packages", "0" * 64


@contextlib.contextmanager
def named(path: Path) -> Iterator[NamedFolder]:
    """As on Windows, which opens no folders."""
    yield NamedFolder(path)


@pytest.fixture(params=[open_folder, named])
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    monkeypatch.setattr(notes, "open_folder", request.param)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gemma4_compile" / KIND


def test_a_note_is_kept(folder: Path) -> None:
    assert read_note(KIND, NAME, 64) is None
    write_note(KIND, NAME, b"one", 5)
    write_note(KIND, NAME, b"two", 5)
    assert read_note(KIND, NAME, 64) == b"two"
    assert read_note(KIND, NAME, 1) == b"t"
    assert [path.name for path in folder.iterdir()] == [NAME]
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("what", ["link", "dangling link", "directory", "pipe"])
def test_what_is_put_in_its_place_is_an_error(folder: Path, tmp_path: Path, what: str) -> None:
    write_note(KIND, NAME, b"one", 5)
    (folder / NAME).unlink()
    outside = tmp_path / "outside"
    if what == "directory":
        (folder / NAME).mkdir()
    elif what == "pipe":
        os.mkfifo(folder / NAME)
    else:
        (folder / NAME).symlink_to(outside)
    if what == "link":
        outside.write_bytes(b"one")
    with pytest.raises(ArtifactError, match=f"{NAME}` is a link, or something else"):
        read_note(KIND, NAME, 64)


def test_a_note_replaces_a_link_and_does_not_write_through_it(folder: Path, tmp_path: Path) -> None:
    write_note(KIND, NAME, b"one", 5)
    (folder / NAME).unlink()
    (folder / NAME).symlink_to(tmp_path / "outside")
    write_note(KIND, NAME, b"two", 5)
    assert read_note(KIND, NAME, 64) == b"two"
    assert not (tmp_path / "outside").exists()


def test_a_folder_that_is_a_link_is_an_error(folder: Path, tmp_path: Path) -> None:
    folder.parent.mkdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(ArtifactError, match=f"{KIND}` is a link"):
        read_note(KIND, NAME, 64)
    with pytest.raises(ArtifactError, match=f"{KIND}` is a link"):
        write_note(KIND, NAME, b"", 5)
    assert not (tmp_path / NAME).exists()


def test_nothing_is_known_where_others_may_write(folder: Path, tmp_path: Path) -> None:
    write_note(KIND, NAME, b"one", 5)
    tmp_path.chmod(0o777)
    assert read_note(KIND, NAME, 64) is None
    write_note(KIND, NAME, b"two", 5)
    tmp_path.chmod(0o700)
    assert read_note(KIND, NAME, 64) == b"one"
