from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.chat import transcript
from gemma4_compile.runtime.chat.transcript import load, save
from gemma4_compile.runtime.prompt.prompt import Message
from tests.unit.system.test_names import as_on_windows

MESSAGES = [
    Message("system", "Be brief."),
    Message("user", "Grüße,\n你好 🙂"),
    Message("assistant", 'a "b" \\ \x1b', (1, 2)),
]


def test_what_was_saved_is_loaded_as_text(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    save(path, MESSAGES)
    assert [(m.role, m.content) for m in load(path)] == [(m.role, m.content) for m in MESSAGES]
    assert all(message.token_ids is None for message in load(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_that_is_there_is_replaced_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text("mine")
    with pytest.raises(ArtifactError, match="is there already") as found:
        save(path, MESSAGES)
    assert found.value.hint == f"to replace it: /save --force {path}"
    assert path.read_text() == "mine"
    save(path, MESSAGES, replace=True)
    assert len(load(path)) == 3
    assert [*tmp_path.iterdir()] == [path]


def test_no_hard_links_are_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "chat.json"
    save(path, MESSAGES)
    assert len(load(path)) == 3
    with pytest.raises(ArtifactError, match="is there already"):
        save(path, MESSAGES)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("kind", ["link", "dangling link", "directory", "pipe"])
def test_what_is_no_file_is_never_written(kind: str, replace: bool, tmp_path: Path) -> None:
    path, target = tmp_path / "chat.json", tmp_path / "thesis.txt"
    if kind != "dangling link":
        target.write_text("mine")
    if "link" in kind:
        path.symlink_to(target)
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(ArtifactError):
        save(path, MESSAGES, replace=replace)
    assert target.exists() == (kind != "dangling link")
    assert not [each for each in tmp_path.iterdir() if each not in (path, target)]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactError, match="No space left"):
        save(tmp_path / "chat.json", MESSAGES)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["nowhere/chat.json", "a\0b", "x" * 300])
def test_names_that_cannot_be_are_errors(name: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot write"):
        save(tmp_path / name, MESSAGES)
    with pytest.raises(ArtifactError, match="cannot read"):
        load(tmp_path / name)


@pytest.mark.parametrize("name", [".", "./", "/", "..", ""])
def test_a_folder_is_no_file_to_save_in(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtifactError, match="that is a folder"):
        save(Path(name), MESSAGES, replace=True)
    assert not [*tmp_path.iterdir()]


def said(*pairs: tuple[Any, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in pairs]}


USER, REPLY = ("user", "a"), ("assistant", "b")


def test_a_conversation_of_another_program_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({**said(USER, REPLY), "model": "x"}))
    assert [message.role for message in load(path)] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"[]", "not a JSON object"),
        (b"\xff\xfe{}", "invalid start byte"),
        (b'{"messages": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"messages": [' + b"1," * 3_000_000 + b"1]}", "more than 2000000 values"),
        ({}, "`messages` is missing"),
        ({"messages": []}, "`messages` is missing, empty"),
        ({"messages": {"role": "user"}}, "`messages` is missing, empty or no list"),
        ({"messages": ["Hi"]}, "message 0 is no object"),
        ({**said(USER, REPLY), "version": 2}, "`version`: expected 1, found '2'"),
        ({**said(USER, REPLY), "version": True}, "`version`: expected 1, found 'True'"),
        ({**said(USER, REPLY), "format": "a table"}, "`format`: expected 'gemma4-chat"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
            "message 0 calls tools",
        ),
        (said(("tool", "x")), "unknown role 'tool'"),
        (said((["user"], "x")), "unknown role"),
        (said(("user", ["x"])), "`content` is no text"),
        (said(USER, ("assistant", None)), "message 1: `content` is no text"),
        (said(REPLY), "message 0: expected role user, found assistant"),
        (said(USER, USER), "message 1: expected role assistant, found user"),
        (said(("system", "s"), USER, REPLY, ("system", "t")), "message 3: expected role user"),
        (said(USER, REPLY, USER), "the last question has no reply"),
        (said(*[USER, REPLY] * 6000), "expected at most 10000 messages, found 12000"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "surrogates not allowed"),
    ],
)
def test_what_is_no_conversation_is_refused(content: Any, why: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(ArtifactError, match="is no conversation: ") as found:
        load(path)
    assert why in str(found.value)
    assert found.value.hint


def test_only_regular_files_of_bounded_size_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ArtifactError, match="no regular file, but a pipe"):
        load(pipe)
    with pytest.raises(ArtifactError, match="no regular file, but a directory"):
        load(tmp_path)
    monkeypatch.setattr(transcript, "MAX_BYTES", 10)
    (tmp_path / "large.json").write_text(json.dumps(said(USER, REPLY)))
    with pytest.raises(ArtifactError, match="too large"):
        load(tmp_path / "large.json")


def test_a_name_that_the_system_has_for_a_device_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript, "check_new_name", as_on_windows)
    with pytest.raises(ArtifactError, match=r"`nul\.json` for a device"):
        save(tmp_path / "nul.json", MESSAGES)
    assert list(tmp_path.iterdir()) == []
