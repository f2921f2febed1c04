"""What stands around a text's tokens."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer

from gemma4_compile.runtime.embedding.text_tokens import TextTokens
from gemma4_compile.tiny import materialize, materialize_embedding


def text_tokens(folder: Path) -> TextTokens:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    package: Any = SimpleNamespace(
        directory=folder,
        chat_config=SimpleNamespace(vocab_size=1024),
        load_tokenizer=lambda: Tokenizer.from_file(str(folder / "tokenizer.json")),
        special_tokens=lambda: {
            name: config[name] for name in ("bos_token", "eos_token") if name in config
        },
    )
    return TextTokens(package)


@pytest.fixture
def embedding(tmp_path: Path) -> Path:
    materialize_embedding(tmp_path)
    return tmp_path


def test_the_tokenizers_own_are_not_added_twice(embedding: Path) -> None:
    ids = text_tokens(embedding).of("two")
    assert (ids.count(2), ids.count(1)) == (1, 1)
    assert text_tokens(embedding).of("") == [2, 1]


def test_those_that_the_config_asks_for_are_added(embedding: Path, tmp_path_factory: Any) -> None:
    plain = tmp_path_factory.mktemp("plain")
    materialize(plain)  # a chat's tokenizer, which adds none
    asked = text_tokens(embedding).of("two")
    config = (embedding / "tokenizer_config.json").read_text()
    (plain / "tokenizer_config.json").write_text(config)
    assert text_tokens(plain).of("two") == asked


@pytest.mark.parametrize("most", [None, 4])
@pytest.mark.parametrize("chats", [False, True], ids=["adds both", "adds none"])
def test_ids_are_completed_to_what_the_text_has(
    chats: bool, most: int | None, embedding: Path, tmp_path_factory: Any
) -> None:
    if chats:
        embedding = tmp_path_factory.mktemp("plain")
        materialize(embedding)
    tokens = text_tokens(embedding)
    whole = tokens.of("two and two and two")
    inner = whole if chats else whole[1:-1]
    for ids in (whole, inner, whole[:-1], whole[1:]) if not chats else (inner,):
        assert tokens.between(ids, most) == tokens.of("two and two and two", most)


def test_a_cut_text_keeps_its_end(embedding: Path) -> None:
    tokens = text_tokens(embedding)
    whole = tokens.of("two and two and two")
    assert tokens.of("two and two and two", 4) == [*whole[:3], 1]
    assert tokens.of("two and two and two", len(whole)) == whole
