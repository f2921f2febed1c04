"""A folder of prefixes: what a later process finds, and what it does not go on from."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.library.kv_rows import RowEntry
from gemma4_compile.runtime.library.row_stream import Rows
from gemma4_compile.runtime.prefixes.memory import PrefixMemory
from gemma4_compile.runtime.prefixes.prefix_file import Layout, unread_note
from gemma4_compile.runtime.prefixes.prefix_folder import (
    FolderInUseError,
    PrefixFolder,
    check_folder,
    check_free,
    forget,
)
from gemma4_compile.runtime.prefixes.saved_rows import RowBlock, SavedRows
from gemma4_compile.runtime.prefixes.tree import Node

ENTRIES = (RowEntry(0, 50, 0, 2, 3), RowEntry(50, 50, 0, 2, 3), RowEntry(0, 20, 8, 1, 4))
LAYOUT = Layout("package", ENTRIES, "float32")
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")


def rows(entry: int, first: int, last: int) -> Rows:
    shape = LAYOUT.shape(entry, last - first)
    values = np.random.default_rng([entry, first, last]).standard_normal(shape, np.float32)
    return Rows(entry, first, values)


def saved(length: int, base: SavedRows | None = None) -> SavedRows:
    """Rows of a prefix as `save` makes them, up to three of its tokens to be taken back."""
    begin, shortest = 0 if base is None else base.length, max(0, length - 3)
    full = [
        rows(index, max(begin, one.first), min(length, one.first + one.rows))
        for index, one in enumerate(ENTRIES[:2])
        if max(begin, one.first) < min(length, one.first + one.rows)
    ]
    blocks = () if base is None else base.blocks
    rings = RowBlock((rows(2, max(0, shortest - 7), length),))
    return SavedRows(length, shortest, (*blocks, RowBlock(tuple(full))), rings)


class Server:
    """A memory and its folder, as a process has them."""

    def __init__(self, path: Path, layout: Layout = LAYOUT, budget: int = 10**6) -> None:
        self.notes: list[str] = []
        self.files: PrefixFolder | None = None
        self.memory: PrefixMemory[SavedRows] = PrefixMemory(budget, self._left)
        files = PrefixFolder(path, layout, self.notes.append)
        files.read(self.memory.add, budget)
        self.files = files

    def _left(self, node: Node[SavedRows]) -> None:
        if self.files is not None:
            self.files.remove(node)

    def add(self, keys: list[int], state: SavedRows) -> None:
        node = self.memory.add(keys, state)
        assert self.files is not None
        if node is not None:
            self.files.write(node, tuple(keys))

    def end(self) -> None:
        assert self.files is not None
        self.files.close()


KEYS = [-(2**280), *range(300, 389)]


def filled(path: Path) -> tuple[SavedRows, SavedRows]:
    """Two prefixes, of which the longer one shares a block, in a folder that nobody has open."""
    server = Server(path)
    short = saved(40)
    long = saved(90, short)
    server.add(KEYS[:40], short)
    server.add(KEYS, long)
    server.end()
    return short, long


def names(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if not name.endswith(".lock"))


def test_a_later_process_goes_on_from_what_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    written = filled(path)
    assert sorted(name.partition(".")[2] for name in names(path)) == ["prefix"] * 2 + ["rows"] * 2
    server = Server(path)
    found = [server.memory.at(KEYS[:40]), server.memory.at(KEYS)]
    assert server.notes == []
    for one, other in zip(found, written, strict=True):
        assert one is not None
        assert (one.length, one.shortest) == (other.length, other.shortest)
        for block, expected in zip(one.parts, other.parts, strict=True):
            for mine, theirs in zip(block.rows, expected.rows, strict=True):
                assert (mine.entry, mine.first) == (theirs.entry, theirs.first)
                np.testing.assert_array_equal(mine.array, theirs.array)
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].blocks[0] is found[1].blocks[0]
    server.end()


def test_what_goes_from_memory_goes_from_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    filled(path)
    server = Server(path)
    server.memory.clear()
    server.end()
    assert names(path) == []
    server = Server(path)
    server.add(KEYS[:40], saved(40))
    server.add([1, *KEYS[:40]], saved(41))
    server.end()
    (small,) = (x.nbytes for x in saved(41).blocks)
    server = Server(path, budget=5 * small // 2)  # of one of them
    assert len(server.memory) == 1
    server.end()
    assert len(names(path)) == 2


def test_of_a_folder_with_more_than_the_budget_only_the_latest_are_read(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    server = Server(path)
    for number in range(5):
        server.add([number, *KEYS[:39]], saved(40))
    server.end()
    for name in names(path):  # the last one first
        if name.endswith(".prefix"):
            number = json.loads((path / name).read_bytes()[8:].partition(b"}")[0] + b"}")["keys"][0]
            os.utime(path / name, ns=(0, 10**18 - number * 10**9))
    block, rings = (part.nbytes for part in saved(40).parts)  # all five have the same rows
    notes: list[str] = []
    read: list[int] = []
    files = PrefixFolder(path, LAYOUT, notes.append)
    memory: PrefixMemory[SavedRows] = PrefixMemory(10**6)

    def add(keys: tuple[int, ...], state: SavedRows) -> Node[SavedRows] | None:
        read.append(keys[0])
        return memory.add(keys, state)

    files.read(add, block + 2 * rings)
    files.close()
    assert read == [1, 0]
    assert notes == [f"`{path}` has more than --prefix-memory: the oldest ones go"]
    assert len(names(path)) == 3


def test_a_file_that_is_larger_than_the_budget_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    filled(path)
    huge = path / ("f" * 64 + ".prefix")
    huge.touch(0o600)
    os.truncate(huge, 1 << 40)  # of which the disk has nothing
    os.utime(huge, ns=(0, 10**19))
    server = Server(path)
    assert len(server.memory) == 2
    assert server.notes == [f"`{huge}` is not gone on from: it is larger than --prefix-memory"]
    server.end()
    assert not huge.exists()


def test_what_the_host_has_no_memory_for_does_not_end_a_start(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    filled(path)

    def none(nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        raise MemoryError

    notes: list[str] = []
    kept: PrefixMemory[SavedRows] = PrefixMemory(10**6)
    files = PrefixFolder(path, LAYOUT, notes.append, none)
    files.read(kept.add, 10**6)
    files.close()
    assert len(kept) == 0
    assert notes == [f"`{path}`: 2 prefixes are not gone on from (2: no memory)"]


def test_a_prefix_that_went_before_its_turn_is_not_written(tmp_path: Path) -> None:
    server = Server(tmp_path / "kept")
    state = saved(40)
    node = server.memory.add(KEYS[:40], state)
    assert node is not None
    server.memory.clear()
    assert server.files is not None
    server.files.write(node, tuple(KEYS[:40]))
    server.end()
    assert names(tmp_path / "kept") == []


@POSIX
def test_files_and_folder_are_the_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    filled(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE((path / name).stat().st_mode) for name in os.listdir(path)} == {0o600}
    path.chmod(0o750)
    with pytest.raises(UsageError, match="expected mode 700, found 750"):
        Server(path)
    path.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(path)
    for wrong, why in ((link, "a link"), (path / names(path)[0], "no directory")):
        with pytest.raises(UsageError, match=why):
            Server(wrong)
    with pytest.raises(UsageError, match="cannot keep prefixes"):
        check_folder(tmp_path / "a" / "b", make=True)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def link(path: Path) -> None:
    other = path.parent.parent / "other"
    other.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(other)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def open_to_others(path: Path) -> None:
    path.chmod(0o644)


@POSIX
@pytest.mark.parametrize(
    "damage", [cut, flip, empty, link, pipe, folder, open_to_others, Path.unlink]
)
@pytest.mark.parametrize("kind", [".prefix", ".rows"])
def test_a_damaged_file_is_ignored_with_a_note(
    tmp_path: Path, damage: Callable[[Path], object], kind: str
) -> None:
    path = tmp_path / "kept"
    filled(path)
    outside = tmp_path / "other"
    for name in names(path):
        if name.endswith(kind):
            damage(path / name)
    server = Server(path)
    assert len(server.memory) == 0
    if (damage, kind) != (Path.unlink, ".prefix"):
        (note,) = server.notes
        assert "not gone on from" in note
    server.add(KEYS[:40], saved(40))
    server.end()
    if damage is not folder:  # nothing of ours takes its place
        assert len(names(path)) == 2
    assert damage is not link or outside.is_file()


@pytest.mark.parametrize(
    "other",
    [
        Layout("another", ENTRIES, "float32"),
        Layout("package", ENTRIES, "float16"),
        Layout("package", (RowEntry(0, 60, 0, 2, 3), *ENTRIES[1:]), "float32"),
    ],
)
def test_what_another_package_or_context_left_is_not_gone_on_from(
    tmp_path: Path, other: Layout
) -> None:
    path = tmp_path / "kept"
    filled(path)
    server = Server(path, other)
    assert len(server.memory) == 0
    why = "it is of another package, version or context length"
    assert server.notes == [f"`{path}`: 2 prefixes are not gone on from (2: {why})"]
    server.end()
    assert names(path) == []


def test_many_reasons_are_one_line() -> None:
    unread = {f"reason {i}": [f"{i}.prefix"] * i for i in range(1, 6)}
    said = unread_note(Path("kept"), unread)
    assert said == (
        "`kept`: 15 prefixes are not gone on from (1: reason 1; 2: reason 2; 3: reason 3; ...)"
    )


def test_a_write_that_was_interrupted_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    filled(path)
    before = names(path)
    (path / "written.part").write_bytes(b"half")
    (path / "mine.txt").write_text("a user's")
    Server(path).end()
    assert names(path) == sorted([*before, "mine.txt"])


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (MemoryError(), "no memory"),
    ],
)
def test_a_disk_that_is_full_is_told_once_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, why: str
) -> None:
    path = tmp_path / "kept"
    server = Server(path)
    assert server.files is not None

    def full(name: str, other: str) -> None:
        raise error

    monkeypatch.setattr(server.files._folder, "replace", full)
    for length in (20, 30):
        server.add(KEYS[:length], saved(length))
    server.end()
    assert server.notes == [f"no more prefixes are written to `{path}`: {why}"]
    assert names(path) == []


def test_a_folder_is_one_servers_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    server = Server(path)
    for other in (lambda: Server(path), lambda: forget(path), lambda: check_free(path)):
        with pytest.raises(FolderInUseError, match="keeps its prefixes"):
            other()
    server.end()
    check_free(path)
    Server(path).end()


def test_prefixes_are_forgotten_and_others_files_are_not(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    filled(path)
    assert forget(path) == 4
    assert not path.exists()
    filled(path)
    (path / "mine.txt").write_text("a user's")
    assert forget(path) == 4
    assert os.listdir(path) == ["mine.txt"]
    with pytest.raises(UsageError, match="cannot keep prefixes"):
        forget(tmp_path / "none")
