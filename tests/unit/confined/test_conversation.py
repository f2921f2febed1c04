"""Tokenizers and chat templates that were written to do harm; none of them outlives its limits."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.confined import conversation
from gemma4_compile.confined.conversation import (
    ConversationError,
    load_tokenizer,
    try_conversation,
)
from gemma4_compile.tiny.checkpoint import shipped_file
from tests.marks import slow_unless
from tests.shared import PATIENCE_S

VOCABULARY = 1024
SPECIAL = {"bos_token": "<bos>"}
TEMPLATE = shipped_file("chat_template.jinja").decode()


def tokenizer(folder: Path, **changes: Any) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(shipped_file("tokenizer.json")), **changes}))
    return path


def test_the_shipped_ones_hold_a_conversation(tmp_path: Path) -> None:
    try_conversation(tokenizer(tmp_path), TEMPLATE, SPECIAL, VOCABULARY)
    try_conversation(tokenizer(tmp_path), None, {}, VOCABULARY)


def regex(pattern: str, content: str = "") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


DOUBLING = {"type": "Sequence", "normalizers": [regex("a", "aa")] * 40}
TOKENIZERS: dict[str, tuple[dict[str, Any], str]] = {
    "a decoder that panics": (
        {"decoder": {"type": "Sequence", "decoders": [regex("\\w?" * 150 + "(?<=[0-9])")]}},
        "PanicException",
    ),
    "a normalizer that doubles": ({"normalizer": DOUBLING}, "takes more than"),
    "a normalizer that deletes": ({"normalizer": regex("[\\s\\S]")}, "makes no tokens"),
    "nothing": ({"model": {}}, "cannot load the tokenizer"),
}


@pytest.mark.parametrize("name", slow_unless(lambda name: "doubles" not in name, TOKENIZERS))
def test_a_tokenizer_that_does_harm_is_refused(name: str, tmp_path: Path) -> None:
    changes, message = TOKENIZERS[name]
    begin = time.monotonic()
    with pytest.raises(ConversationError, match=message) as raised:
        try_conversation(tokenizer(tmp_path, **changes), TEMPLATE, SPECIAL, VOCABULARY)
    assert time.monotonic() - begin < PATIENCE_S
    assert raised.value.hint


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TEMPLATES: dict[str, tuple[str, str]] = {
    "a range": ("{% for i in range(10**9) %}x{% endfor %}", "OverflowError"),
    "a division": ("{{ 1 / 0 }}", "ZeroDivisionError"),
    "a huge string": ("{{ 'a' * 10**11 }}", "MemoryError|takes more than"),
    "a long prompt": ("{{ 'a' * 10**5 }}", "tokens for a conversation of a few words"),
    "an endless macro": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    "an endless loop": (LOOP, "takes more than"),
    "brackets": ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "damaged"),
    "nothing": ("", "makes no text"),
    "half a character": ("\ud800", "damaged|refuses"),
    "half a character that it makes": ("{{ '\\ud800' }}", "damaged|refuses"),
    "no template": ("{% if %}", "damaged"),
    "a refusal": ("{{ raise_exception('no') }}", "refuses"),
}


@pytest.mark.parametrize("name", slow_unless(lambda name: "endless loop" not in name, TEMPLATES))
def test_a_template_that_does_harm_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template, message = TEMPLATES[name]
    begin = time.monotonic()
    with pytest.raises(ConversationError, match=message):
        try_conversation(tokenizer(tmp_path), template, SPECIAL, VOCABULARY)
    assert time.monotonic() - begin < PATIENCE_S


def test_ids_that_the_model_does_not_have_are_found(tmp_path: Path) -> None:
    with pytest.raises(ConversationError, match="the model has 100 tokens"):
        try_conversation(tokenizer(tmp_path), TEMPLATE, SPECIAL, 100)


def test_a_process_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "command", lambda _: ["sleep", "60"])
    for name in ("LOAD_SECONDS", "CONVERSATION_SECONDS", "_GRACE_SECONDS"):
        monkeypatch.setattr(conversation, name, 0.1)
    with pytest.raises(ConversationError, match="takes more than"):
        try_conversation(tokenizer(tmp_path), None, {}, VOCABULARY)


def test_nothing_is_cut_or_filled(tmp_path: Path) -> None:
    cutting = {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 0}
    filling = {
        "strategy": {"Fixed": 10**12},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    path = tokenizer(tmp_path, truncation=cutting, padding=filling)
    assert 0 < len(load_tokenizer(path).encode("Hello", add_special_tokens=False)) < 6
    try_conversation(path, TEMPLATE, SPECIAL, VOCABULARY)
