from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gemma4_compile.runtime.terminal.history import (
    MAX_ENTRIES,
    MAX_ENTRY_CHARACTERS,
    KeptHistory,
    history_path,
)


def fail(text: str) -> None:
    pytest.fail(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "chat-history"


def loaded(path: Path) -> list[str]:
    """Oldest first."""
    return [*KeptHistory(path, fail).load_history_strings()][::-1]


def test_lines_come_back_in_the_next_run_and_nobody_else_reads_them(path: Path) -> None:
    history = KeptHistory(path, fail)
    entries = ["Hi", "two\nlines", 'with "quotes" and ü 🙂', "\x1b[31m", "\udcff"]
    for entry in entries:
        history.store_string(entry)
    assert loaded(path) == entries
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    assert loaded(path) == entries
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_is_bounded(path: Path) -> None:
    history = KeptHistory(path, fail)
    history.store_string("x" * (MAX_ENTRY_CHARACTERS + 1))
    assert not path.exists()
    for index in range(3 * MAX_ENTRIES):
        history.store_string(str(index))
    newest = [str(index) for index in range(2 * MAX_ENTRIES, 3 * MAX_ENTRIES)]
    assert loaded(path) == newest
    assert len(path.read_bytes().splitlines()) == MAX_ENTRIES  # the file was written anew
    assert loaded(path) == newest


def test_a_huge_file_costs_little_and_what_is_no_line_is_left_out(path: Path) -> None:
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse
        file.seek(0, os.SEEK_END)
        file.write(b'\n"kept"\n{}\nnonsense\n"' + b"[" * 5000 + b'\n"also"\n')
    assert loaded(path) == ["kept", "also"]
    assert path.stat().st_size < 100


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "forbidden"])
def test_what_is_no_file_of_ours_is_reported_once_and_left_alone(kind: str, path: Path) -> None:
    path.parent.mkdir()
    target = path.parent / "thesis.txt"
    target.write_text("mine")
    if kind == "link":
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.parent.rmdir() if not any(path.parent.iterdir()) else None
        path = path.parent / "thesis.txt" / "chat-history"
    told: list[str] = []
    history = KeptHistory(path, told.append)
    assert [*history.load_history_strings()] == []
    history.store_string("a")
    history.store_string("b")
    assert len(told) == 1
    assert told[0].startswith("lines are not kept: ")
    assert target.read_text() == "mine"


def test_the_mark_of_a_block_is_not_kept(path: Path) -> None:
    KeptHistory(path, fail).store_string('"""')
    assert not path.exists()


def test_the_place_is_the_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_path() == tmp_path / "gemma4-compile" / "chat-history"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert history_path() == tmp_path / ".local" / "state" / "gemma4-compile" / "chat-history"
