"""A tokenizer and a chat template are tried once for each pair; an error is not remembered."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.confined.conversation import ConversationError
from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.package import conversation_check
from gemma4_compile.runtime.package.conversation_check import check_conversation

SPECIAL = {"bos_token": "<bos>"}
Tried = list[tuple[Any, ...]]


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tried:
    """Arguments of every try, in a machine and a process that remember nothing."""
    calls: Tried = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(conversation_check, "_tried_here", set())
    monkeypatch.setattr(conversation_check, "try_conversation", lambda *args: calls.append(args))
    return calls


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "package" / "tokenizer.json"
    path.parent.mkdir()
    path.write_text("{}")
    return path


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation_check, "_tried_here", set())


def test_a_pair_is_tried_once_on_a_machine(
    tokenizer: Path, tried: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        check_conversation(tokenizer, "t", SPECIAL, 8)
    new_process(monkeypatch)
    check_conversation(tokenizer, "t", dict(SPECIAL), 8)
    assert tried == [(tokenizer, "t", SPECIAL, 8, None)]


@pytest.mark.parametrize(
    "change",
    [
        {"template": "t "},
        {"template": None},
        {"special_tokens": {}},
        {"special_tokens": {"bos_token": "<s>"}},
        {"vocab_size": 9},
        {"tool_use": "t"},
        {},
    ],
)
def test_whatever_is_another_is_tried_anew(
    change: dict[str, Any], tokenizer: Path, tried: Tried
) -> None:
    check_conversation(tokenizer, "t", SPECIAL, 8)
    if not change:
        tokenizer.write_text("{ }")
    check_conversation(
        tokenizer, **{"template": "t", "special_tokens": SPECIAL, "vocab_size": 8, **change}
    )
    assert len(tried) == 2


def test_the_same_content_elsewhere_is_not_tried_again(
    tokenizer: Path, tried: Tried, tmp_path: Path
) -> None:
    check_conversation(tokenizer, "t", SPECIAL, 8)
    copy = tmp_path / "copy.json"
    copy.write_bytes(tokenizer.read_bytes())
    check_conversation(copy, "t", SPECIAL, 8)
    assert len(tried) == 1


def test_a_newer_version_tries_again(
    tokenizer: Path, tried: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_conversation(tokenizer, "t", SPECIAL, 8)
    new_process(monkeypatch)
    monkeypatch.setattr(conversation_check, "__version__", "999")
    check_conversation(tokenizer, "t", SPECIAL, 8)
    assert len(tried) == 2


def test_what_fails_is_named_and_fails_again(
    tokenizer: Path, tried: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        tried.append(())
        raise ConversationError("the template loops", hint="mend it")

    monkeypatch.setattr(conversation_check, "try_conversation", fail)
    for _ in range(2):
        with pytest.raises(ArtifactError, match="the template loops") as caught:
            check_conversation(tokenizer, "t", SPECIAL, 8)
        assert str(tokenizer.parent) in str(caught.value)
        assert caught.value.hint == "mend it"
    assert len(tried) == 2


def test_without_a_place_to_remember_it_is_tried_by_every_process(
    tokenizer: Path, tried: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("no directory")
    for _ in range(2):
        check_conversation(tokenizer, "t", SPECIAL, 8)
    assert len(tried) == 1
    new_process(monkeypatch)
    check_conversation(tokenizer, "t", SPECIAL, 8)
    assert len(tried) == 2


def test_a_user_without_a_home_is_no_error(
    tokenizer: Path, tried: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home directory")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    check_conversation(tokenizer, "t", SPECIAL, 8)
    assert len(tried) == 1


def test_what_is_put_in_the_place_of_a_note_is_an_error(
    tokenizer: Path, tried: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_conversation(tokenizer, "t", SPECIAL, 8)
    folder = tmp_path / "cache" / "gemma4_compile" / "tried-conversations"
    (note,) = folder.iterdir()
    note.unlink()
    outside = tmp_path / "outside"
    new_process(monkeypatch)
    note.symlink_to(outside)
    with pytest.raises(ArtifactError, match="is a link") as caught:
        check_conversation(tokenizer, "t", SPECIAL, 8)
    assert "XDG_CACHE_HOME" in str(caught.value.hint)
    assert not outside.exists()
    note.unlink()
    folder.rmdir()
    outside.mkdir()
    folder.symlink_to(outside)
    with pytest.raises(ArtifactError, match="tried-conversations` is a link"):
        check_conversation(tokenizer, "t", SPECIAL, 8)
    assert list(outside.iterdir()) == []
    assert len(tried) == 1


def test_what_others_may_write_remembers_nothing(
    tokenizer: Path, tried: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_conversation(tokenizer, "t", SPECIAL, 8)
    (tmp_path / "cache").chmod(0o777)
    new_process(monkeypatch)
    check_conversation(tokenizer, "t", SPECIAL, 8)
    assert len(tried) == 2


@pytest.mark.parametrize("kind", ["missing", "pipe", "directory"])
def test_a_tokenizer_that_cannot_be_read_is_named(kind: str, tokenizer: Path, tried: Tried) -> None:
    tokenizer.unlink()
    if kind == "pipe":
        os.mkfifo(tokenizer)
    elif kind == "directory":
        tokenizer.mkdir()
    with pytest.raises(ArtifactError, match=r"cannot read .*tokenizer\.json") as caught:
        check_conversation(tokenizer, "t", SPECIAL, 8)
    assert caught.value.hint == "compile the package again"
    assert not tried
