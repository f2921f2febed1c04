"""Entries of the object cache: whole or not, and how they get their name."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.targets import object_cache

NAMES = ["a.o", "b.o"]


def objects(folder: Path, content: str = "object") -> Path:
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(content)
    return folder


def publish(tmp_path: Path, name: str, content: str = "object") -> Path:
    scratch = tmp_path / f"build-{name}"
    scratch.mkdir()
    object_cache.publish(objects(scratch / "objects", content), tmp_path / "entry", NAMES, scratch)
    return tmp_path / "entry"


def test_a_published_entry_is_whole(tmp_path: Path) -> None:
    assert not object_cache.is_whole(tmp_path / "entry", NAMES)
    entry = publish(tmp_path, "one")
    assert object_cache.is_whole(entry, NAMES)
    assert not object_cache.is_whole(entry, [*NAMES, "c.o"])


def test_what_is_whole_stays_and_what_is_damaged_makes_room(tmp_path: Path) -> None:
    entry = publish(tmp_path, "one")
    publish(tmp_path, "two", "as good")
    assert (entry / "a.o").read_text() == "object"
    (entry / "a.o").write_text("objecT")
    assert not object_cache.is_whole(entry, NAMES)
    publish(tmp_path, "three", "new")
    assert (entry / "a.o").read_text() == "new"
    assert object_cache.is_whole(entry, NAMES)


def test_a_link_is_no_entry(tmp_path: Path) -> None:
    entry = publish(tmp_path, "one")
    (tmp_path / "link").symlink_to(entry)
    with pytest.raises(OSError, match="a link"):
        object_cache.is_whole(tmp_path / "link", NAMES)
