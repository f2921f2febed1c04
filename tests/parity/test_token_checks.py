"""What is said of tokens, beside whether transformers makes others than `tokenizer.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from gemma4_compile import tiny
from gemma4_compile.checkpoint.chat_files import ChatFiles
from gemma4_compile.package.token_checks import token_findings

pytestmark = pytest.mark.parity

_TEXT = "<bos><|turn>user\n the thing <turn|>\n there <x> <unused5> <mask>"
_FLAGS = {
    **{"lstrip": False, "rstrip": False, "single_word": False},
    **{"normalized": False, "special": True},
}


def decoder(content: str, token_id: int, **flags: bool) -> Callable[[Path], None]:
    return config(
        added_tokens_decoder={str(token_id): {**_FLAGS, "content": content, **flags}},
    )


def config(**fields: object) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        path = model / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def file(name: str, **fields: object) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        (model / name).write_text(json.dumps(fields))

    return change


def unread(model: Path) -> None:
    """Since 4.33 the decoder lists all tokens, and no other file is read."""
    decoder("<turn|>", -1)(model)
    file("added_tokens.json", **{"<x>": 1024})(model)
    file("special_tokens_map.json", additional_special_tokens=["<x>"])(model)


def class_of_model(model: Path) -> None:
    """In the model's config, which transformers reads where the tokenizer's names none."""
    config(tokenizer_class=None)(model)
    values = json.loads((model / "config.json").read_text())
    file("config.json", **{**values, "tokenizer_class": "Qwen2Tokenizer"})(model)


SAID: dict[str, tuple[Callable[[Path], None], str]] = {
    "in the decoder": (decoder("<x>", 1024), "adds tokens.*'<x>'"),
    "in its own file": (file("added_tokens.json", **{"<x>": 1024}), "adds tokens.*'<x>'"),
    "in a list": (config(additional_special_tokens=["<x>"]), "adds tokens.*'<x>'"),
    "in a list of extra ones": (config(extra_special_tokens=["<x>"]), "adds tokens.*'<x>'"),
    "with a name": (config(extra_special_tokens={"a_token": "<x>"}), "adds tokens.*'<x>'"),
    "as the end": (config(eos_token="<x>"), "adds tokens.*'<x>'"),
    "a word of the vocabulary": (config(additional_special_tokens=["the"]), "adds tokens.*'the'"),
    "in the map": (
        file("special_tokens_map.json", additional_special_tokens=["<x>"]),
        "adds tokens.*'<x>'",
    ),
    "another id's name": (decoder("<x>", 10), "adds tokens.*'<x>'"),
    "space to its right": (decoder("<turn|>", -1, rstrip=True), r"other flags.*'<turn\|>'"),
    "space to its left": (decoder("<turn|>", -1, lstrip=True), r"other flags.*'<turn\|>'"),
    "another model's class": (config(tokenizer_class="Qwen2Tokenizer"), "Qwen2Tokenizer"),
    "another model's class, by the model's config": (class_of_model, "Qwen2Tokenizer.*or config"),
    "control tokens as text": (config(split_special_tokens=True), "split_special_tokens"),
}
UNSAID: dict[str, Callable[[Path], None]] = {
    "as shipped": config(),
    "Gemma's class": config(tokenizer_class="GemmaTokenizer"),
    "the class of version 5": config(tokenizer_class="TokenizersBackend"),
    "known ones": config(additional_special_tokens=["<unused5>"]),
    "known ones with names": config(extra_special_tokens={"a_token": "<unused5>"}),
    "the same flags": decoder("<turn|>", -1),
    "files that are not read": unread,
}


def both(model: Path, change: Callable[[Path], None]) -> tuple[list[str], bool]:
    """What is said, and whether transformers makes other tokens."""
    tiny.materialize(model)
    plain = Tokenizer.from_file(str(model / "tokenizer.json"))
    change(model)
    path = model / "tokenizer_config.json"
    values: dict[str, Any] = json.loads(path.read_text())
    known = values.get("added_tokens_decoder", {})
    if "-1" in known:  # the id that the file has
        values["added_tokens_decoder"] = {
            str(plain.token_to_id(known["-1"]["content"])): known["-1"]
        }
        path.write_text(json.dumps(values))
    chat = ChatFiles.read(model)
    parsed = json.loads((model / "tokenizer.json").read_text())
    said = [one.message for one in token_findings(parsed, chat.tokenizer_config, chat.more_tokens)]
    theirs = AutoTokenizer.from_pretrained(model)(_TEXT, add_special_tokens=False).input_ids
    return said, theirs != plain.encode(_TEXT, add_special_tokens=False).ids


@pytest.mark.parametrize("name", SAID)
def test_other_tokens_are_said(name: str, tmp_path: Path) -> None:
    change, words = SAID[name]
    said, differ = both(tmp_path / "model", change)
    assert differ
    assert len(said) == 1
    assert re.search(words, said[0])


@pytest.mark.parametrize("name", UNSAID)
def test_nothing_is_said_of_the_same_tokens(name: str, tmp_path: Path) -> None:
    assert both(tmp_path / "model", UNSAID[name]) == ([], False)


def test_the_name_of_an_extra_token_is_the_last_one(tmp_path: Path) -> None:
    tiny.materialize(tmp_path / "model")
    config(
        model_specific_special_tokens={"image_token": "<unused5>"},
        extra_special_tokens={"image_token": "<unused6>"},
    )(tmp_path / "model")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "model").special_tokens_map["image_token"]
    assert theirs == "<unused6>"
    assert ChatFiles.read(tmp_path / "model").special_tokens["image_token"] == theirs
