"""Texts of a user: from files, pipes and devices, never without end."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.options import given_text


def test_files_and_pipes_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Grüße")
    assert given_text.read_text("--text", tmp_path / "a.txt") == "Grüße"
    reader, writer = os.pipe()  # as of a shell's <(...)
    os.write(writer, b"Hi")
    os.close(writer)
    assert given_text.read_text("--text", Path(f"/dev/fd/{reader}")) == "Hi"
    os.close(reader)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe")
    for path, why in (
        (tmp_path, "Is a directory"),
        (tmp_path / "pipe", "to which nobody writes"),
        (tmp_path / "none", "No such file"),
        (tmp_path / "latin.txt", "is not UTF-8"),
        (Path("/dev/zero"), f"more than {given_text.MAX_TEXT_BYTES} bytes"),
        (tmp_path / "a\0b", "null"),
    ):
        with pytest.raises(UsageError, match=why) as caught:
            given_text.read_text("--text", path)
        assert str(caught.value).startswith("--text: ")


def test_stdin_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n"))
    assert given_text.read_stdin("--prompt-file") == "Hi\n"
    with Path("/dev/zero").open() as endless:
        monkeypatch.setattr("sys.stdin", endless)
        with pytest.raises(UsageError, match="--prompt-file: stdin has more than"):
            given_text.read_stdin("--prompt-file")
