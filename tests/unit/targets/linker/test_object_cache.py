"""Entries of the object cache: whole or not, and how they get their name."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gemma4_compile.errors import TargetError
from gemma4_compile.system.cache_folder import cache_folder
from gemma4_compile.targets.linker import object_cache
from tests.child import first_line

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


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_folder()


def make(_scratch: Path, made: Path) -> None:
    for name in NAMES:
        (made / name).write_text("object")


def test_of_two_processes_one_makes_and_the_other_waits(cache: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from gemma4_compile.system.loading import without_torch\n"
        "with without_torch(): from gemma4_compile.targets.linker import object_cache\n"
        "def make(scratch, made):\n"
        "    print('makes', flush=True)\n"
        "    sys.stdin.readline()\n"
        f"    [(made / name).write_text('object') for name in {NAMES}]\n"
        f"object_cache.find_or_make('entry', {NAMES}, make, lambda line: print(line, flush=True))\n"
    )
    command = [sys.executable, "-c", program]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    waits = "waiting for another process, which builds for this machine's cache"
    with start() as first, start() as second:
        processes = {first_line(process, 60): process for process in (first, second)}
        assert set(processes) == {"makes", waits}
        # The one that makes goes on first: the other's input is read by nobody.
        for line in ("makes", waits):
            assert processes[line].communicate("go on\n", timeout=120)[0] == ""
            assert processes[line].returncode == 0
    assert [path.name for path in cache.iterdir()] == ["entry"]
    assert object_cache.is_whole(cache / "entry", NAMES)


def test_what_a_killed_process_left_is_removed(cache: Path, tmp_path: Path) -> None:
    for name, age in (("build-old", 7200), ("build-now", 0)):
        (cache / name / "objects").mkdir(parents=True)
        os.utime(cache / name, (time.time() - age,) * 2)
    outside = tmp_path / "outside"
    outside.mkdir()
    (cache / "build-link").symlink_to(outside)
    os.utime(cache / "build-link", (0, 0), follow_symlinks=False)
    object_cache.find_or_make("entry", NAMES, make)
    assert sorted(path.name for path in cache.iterdir()) == ["build-link", "build-now", "entry"]
    assert outside.is_dir()


def test_a_cache_that_others_may_write_is_not_used(cache: Path, tmp_path: Path) -> None:
    (entry,) = {path.parent for path in object_cache.find_or_make("entry", NAMES, make)}
    for folder in (tmp_path, cache):
        folder.chmod(0o777)
        with pytest.raises(TargetError, match="is not safe") as caught:
            object_cache.find_or_make("entry", NAMES, make)
        assert f"`{folder}`" in str(caught.value)
        assert "XDG_CACHE_HOME" in str(caught.value.hint)
        folder.chmod(0o700)
    assert object_cache.find_or_make("entry", NAMES, make)[0].parent == entry


def test_a_place_that_cannot_be_written_is_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(TargetError, match="cannot write") as caught:
        object_cache.find_or_make("entry", NAMES, make)
    assert f"Permission denied: {cache}" in str(caught.value)
    assert "XDG_CACHE_HOME" in str(caught.value.hint)


@pytest.mark.parametrize("kind", ["link", "file", "pipe"])
def test_what_lies_in_an_entrys_place_is_named(cache: Path, tmp_path: Path, kind: str) -> None:
    cache.mkdir(parents=True)
    entry = cache / "entry"
    if kind == "link":
        entry.symlink_to(tmp_path)
    elif kind == "file":
        entry.touch()
    else:
        os.mkfifo(entry)
    with pytest.raises(TargetError, match=f"(link|no directory): {entry}$"):
        object_cache.find_or_make("entry", NAMES, make)


def test_a_lock_that_is_held_for_nothing_is_an_error(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir(parents=True)
    monkeypatch.setattr(object_cache, "_IDLE_SECONDS", 0.5)
    held = os.open(cache, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        with pytest.raises(TargetError, match=r"holds the lock of .* and builds nothing"):
            object_cache.find_or_make("entry", NAMES, make)
    finally:
        os.close(held)
    assert object_cache.find_or_make("entry", NAMES, make)


def test_copies_are_what_was_stored(cache: Path, tmp_path: Path) -> None:
    found = object_cache.find_or_make("entry", NAMES, make)
    copied = object_cache.copies(found, tmp_path / "copies")
    assert [path.read_text() for path in copied] == ["object"] * len(NAMES)
    found[1].write_text("another")
    with pytest.raises(TargetError, match=r"b\.o has changed since it was checked"):
        object_cache.copies(found, tmp_path / "again")
    found[1].unlink()
    found[1].symlink_to(tmp_path)
    with pytest.raises(TargetError, match="cannot read the compiled object"):
        object_cache.copies(found, tmp_path / "a third time")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_can_only_be_read_serves_what_it_holds(cache: Path) -> None:
    found = object_cache.find_or_make("entry", NAMES, make)
    cache.chmod(0o500)
    try:
        assert object_cache.find_or_make("entry", NAMES, make) == found
        with pytest.raises(TargetError, match="cannot write"):
            object_cache.find_or_make("another", NAMES, make)
    finally:
        cache.chmod(0o700)


def test_what_fails_leaves_nothing(cache: Path) -> None:
    def fail(scratch: Path, made: Path) -> None:
        (scratch / "something").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        object_cache.find_or_make("entry", NAMES, fail)
    assert list(cache.iterdir()) == []
    assert len(object_cache.find_or_make("entry", NAMES, make)) == 2
