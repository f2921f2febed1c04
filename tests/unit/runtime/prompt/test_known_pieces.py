from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from tokenizers import Tokenizer

from gemma4_compile.runtime.prompt import known_pieces
from gemma4_compile.runtime.prompt.known_pieces import KnownPieces, can_be_cut
from gemma4_compile.runtime.prompt.prompt import PromptBuilder
from gemma4_compile.tiny.checkpoint import shipped_file

SHIPPED: dict[str, Any] = json.loads(shipped_file("tokenizer.json"))
TOKENIZER = Tokenizer.from_str(json.dumps(SHIPPED))
WORDS = [
    "\n",
    "\n\n",
    "\n\n\n",
    " ",
    "the",
    "The",
    "é",
    "\ue000",
    "<|turn>",
    "<turn|>",
    "1",
    "\r\n",
]


class Encoder:
    """Encodes texts, and knows which."""

    def __init__(self, tokenizer: Tokenizer = TOKENIZER) -> None:
        self.tokenizer = tokenizer
        self.texts: list[str] = []

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        self.texts += texts
        return [self.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def words(seed: int, count: int) -> str:
    return "".join(random.Random(seed).choices(WORDS, k=count))


def changed(**fields: Any) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(SHIPPED | fields))


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_pieces, "PIECE_CHARACTERS", 32)


def test_ids_are_those_of_the_whole_text() -> None:
    pieces, encode = KnownPieces(TOKENIZER), Encoder()
    for seed in range(40):
        text = words(0, 300) + words(seed, 300)
        whole = TOKENIZER.encode(text, add_special_tokens=False).ids
        assert pieces.ids(text, encode) == whole
        assert pieces.ids(text, encode) == whole
    assert len(encode.texts) > 40


def test_what_a_text_shares_with_another_is_not_encoded_again() -> None:
    pieces, encode = KnownPieces(TOKENIZER), Encoder()
    shared = "".join(f"{number} plus {number} is {2 * number}.\n" for number in range(100))
    pieces.ids(shared + "and 3?", encode)
    assert "".join(encode.texts) == shared + "and 3?"
    encode.texts.clear()
    ids = pieces.ids(shared + "or 4?", encode)
    assert ids == TOKENIZER.encode(shared + "or 4?", add_special_tokens=False).ids
    (encoded,) = encode.texts
    assert encoded.endswith("or 4?")
    assert len(encoded) < 100
    encode.texts.clear()
    pieces.ids(shared + "or 4?", encode, "another tenant")
    assert "".join(encode.texts) == shared + "or 4?"


def test_the_pieces_that_are_known_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_pieces, "MOST_CHARACTERS", 450)
    pieces, encode = KnownPieces(TOKENIZER), Encoder()
    first, second = (
        "".join(f"{begin + i} is a number.\n" for i in range(26)) for begin in (100, 500)
    )
    for text in (first, second, second):
        pieces.ids(text, encode)
    assert len("".join(encode.texts)) == len(first) + len(second)  # the second was there
    encode.texts.clear()
    pieces.ids(first, encode)
    assert "".join(encode.texts) == first  # and had driven the first one out


def test_characters_of_several_ids_count_as_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    rare, plain = "\U0001f469" * 40 + "\n", "the " * 10 + "\n"
    assert len(TOKENIZER.encode(rare, add_special_tokens=False).ids) > 4 * 40
    for line, is_known in ((rare, False), (plain, True)):
        monkeypatch.setattr(known_pieces, "MOST_CHARACTERS", 100)
        pieces, encode = KnownPieces(TOKENIZER), Encoder()
        for _ in range(2):
            pieces.ids(line, encode)
        assert len(encode.texts) == (1 if is_known else 2)


def _added(**flags: bool) -> Tokenizer:
    added: list[dict[str, Any]] = SHIPPED["added_tokens"]
    return changed(added_tokens=[added[0] | flags, *added[1:]])


def _with_vocabulary(token: str) -> Tokenizer:
    model = SHIPPED["model"]
    vocabulary = dict(model["vocab"])
    left, right = token[:1], token[1:]
    vocabulary[token] = len(vocabulary)
    return changed(
        model=model | {"vocab": vocabulary, "merges": [[left, right], *model["merges"]]},
        pre_tokenizer=None,
    )


UNABLE = {
    "a token over the end of a line": _with_vocabulary("\nt"),
    "an added token takes the space beside it": _added(lstrip=True),
    "a word is marked at its beginning": changed(
        pre_tokenizer={
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": "always",
            "split": True,
        }
    ),
    "a text is changed as a whole": changed(normalizer={"type": "Prepend", "prepend": "▁"}),
    "newlines come together": changed(
        normalizer={"type": "Replace", "pattern": {"String": " "}, "content": ""}
    ),
    "by chance": changed(model=SHIPPED["model"] | {"dropout": 0.1}),
}


@pytest.mark.parametrize("name", UNABLE)
def test_a_tokenizer_that_sees_more_than_a_line_has_its_text_whole(name: str) -> None:
    encode, text = Encoder(UNABLE[name]), words(3, 300)
    assert not can_be_cut(UNABLE[name])
    KnownPieces(UNABLE[name]).ids(text, encode)
    assert encode.texts == [text]


def test_a_token_over_the_end_of_a_line_would_be_lost_by_a_cut() -> None:
    """So that the check above is of something."""
    tokenizer = _with_vocabulary("\nt")
    whole, line, rest = Encoder(tokenizer)(["a\nthe", "a\n", "the"])
    assert whole != line + rest


def test_what_comes_together_would_be_lost_by_a_cut() -> None:
    """So that the check above is of something."""
    whole, line, rest = Encoder(UNABLE["newlines come together"])(["a\n \n", "a\n", " \n"])
    assert whole != line + rest


def test_a_prompt_of_known_pieces_is_that_of_the_whole_text() -> None:
    builder = PromptBuilder(TOKENIZER, None, 1 << 16)
    for seed in range(4):
        text = words(0, 3000) + words(seed, 3000)
        whole = TOKENIZER.encode(text, add_special_tokens=False).ids
        assert builder.encode(text) == builder.encode_prompt(text) == whole
