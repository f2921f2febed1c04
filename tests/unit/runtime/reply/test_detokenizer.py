from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from gemma4_compile.runtime.reply.detokenizer import StreamingDetokenizer
from gemma4_compile.tiny.checkpoint import shipped_file


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_buffer(shipped_file("tokenizer.json"))


TEXTS = ["Hello, how are you?", "Zürich  ≈ 日本\n\nx", "a😀b👩‍👩‍👧", "\n\n\n\n\n\ty"]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_whole_characters_and_join_to_the_text(tokenizer: Tokenizer, text: str) -> None:
    stream = StreamingDetokenizer(tokenizer)
    pieces = [stream.push(i) for i in tokenizer.encode(text, add_special_tokens=False).ids]
    assert all("\ufffd" not in piece for piece in pieces)
    assert "".join(pieces) + stream.flush() == text


def id_of(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    assert found is not None
    return found


def test_a_character_is_held_back_until_its_last_byte(tokenizer: Tokenizer) -> None:
    stream = StreamingDetokenizer(tokenizer)
    ids = [id_of(tokenizer, f"<0x{byte:02X}>") for byte in "😀".encode()]
    assert [stream.push(i) for i in ids] == ["", "", "", "😀"]


def test_an_unfinished_character_becomes_replacement_characters_at_the_end(
    tokenizer: Tokenizer,
) -> None:
    stream = StreamingDetokenizer(tokenizer)
    assert stream.push(id_of(tokenizer, "<0xE6>")) == ""
    assert set(stream.flush()) == {"\ufffd"}
    assert stream.flush() == ""


def test_bytes_that_never_become_a_character_do_not_block_the_stream(tokenizer: Tokenizer) -> None:
    stream = StreamingDetokenizer(tokenizer)
    broken = id_of(tokenizer, "<0xFF>")
    text = "".join(stream.push(i) for i in [broken] * 9 + [id_of(tokenizer, "x")])
    assert text.endswith("x")


def test_control_tokens_are_not_shown(tokenizer: Tokenizer) -> None:
    stream = StreamingDetokenizer(tokenizer)
    assert stream.push(id_of(tokenizer, "<turn|>")) == ""
