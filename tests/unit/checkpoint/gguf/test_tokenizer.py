"""Tokenizers rebuilt from GGUF: the same ids for any text; what a file does not say is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gemma4_compile.checkpoint.gguf.header import read_header
from gemma4_compile.checkpoint.gguf.metadata import Metadata
from gemma4_compile.checkpoint.gguf.tokenizer import generation_config, rebuilt
from gemma4_compile.errors import CheckpointError
from tests.gguf_files import Change, add_tokenizer


def values_of(path: Path, folder: Path, change: Change = lambda writer: None) -> Metadata:
    """Metadata of a file with a tokenizer, as a reader of the file has it."""
    writer = gguf.GGUFWriter(path / "vocabulary.gguf", "gemma4")
    add_tokenizer(writer, folder)
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Metadata(read_header(path / "vocabulary.gguf").metadata, "vocabulary.gguf")


@pytest.fixture(scope="module")
def pair(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizer, and the one that is rebuilt from a file."""
    found = rebuilt(values_of(tmp_path_factory.mktemp("gguf"), folder), "vocabulary.gguf")
    text = json.dumps(found.tokenizer, ensure_ascii=False)
    return Tokenizer.from_file(str(folder / "tokenizer.json")), Tokenizer.from_str(text)


TEXTS = (
    *("", " ", "  a  b   c ", "\n", "\n\n\n\n\n\n", " \n \n\n", "a\nb\n\nc\r\n\td", "▁ ▁▁", "Ġ"),
    *(
        "Hello, how are you?",
        "naïve café — “quotes”",
        "日本語の文、中文句子。한국어",
        "مرحبا بالعالم",
    ),
    *("👩‍👩‍👧‍👦 🏳️‍🌈 \U0010ffff \x00\x01\x7f", "e\u0301 \u00e9 \ufb01 \u2126", "\u200b\u2028\u00a0"),
    *("<bos><|turn>user\nHi<turn|>\n<|turn>model\n", "<|turn", "<unused3><unused3>", "< bos >"),
    *(
        '<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>',
        "<0x41><0xFF>",
        "<|channel>thought\n<channel|>",
    ),
    *("for i in range(10):\n    print(i ** 2)  # 0.5e-3\n", "x" * 500, "ab" * 300 + "\n" * 40),
)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_the_same(text: str, pair: tuple[Tokenizer, Tokenizer]) -> None:
    expected, found = (one.encode(text, add_special_tokens=False).ids for one in pair)
    assert found == expected
    for skips in (True, False):
        first, second = (one.decode(expected, skip_special_tokens=skips) for one in pair)
        assert first == second


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60) | st.text("<|>turnbos \n▁0xAF", max_size=80))
def test_ids_of_any_text_are_the_same(text: str, pair: tuple[Tokenizer, Tokenizer]) -> None:
    text = text.encode("utf-8", "ignore").decode()
    expected, found = (one.encode(text, add_special_tokens=False).ids for one in pair)
    assert found == expected


def test_templates_tokens_and_defaults(folder: Path, tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_array("tokenizer.chat_templates", ["tool_use", "../x"])
        writer.add_string("tokenizer.chat_template.tool_use", "{{ tools }}")
        writer.add_float32("general.sampling.temp", 0.3)
        writer.add_int32("general.sampling.top_k", 20)
        writer.add_array("tokenizer.ggml.suppress_tokens", [7, 8])
        writer.add_eot_token_id(106)

    values = values_of(tmp_path, folder, change)
    files = rebuilt(values, "vocabulary.gguf")
    assert files.templates == {
        "default": (folder / "chat_template.jinja").read_text("utf-8"),
        "tool_use": "{{ tools }}",
    }
    own = json.loads((folder / "tokenizer_config.json").read_bytes())
    for name in ("bos_token", "eos_token", "unk_token", "pad_token", "mask_token"):
        assert files.tokenizer_config[name] == own[name]
    assert generation_config(values) == {
        "do_sample": True,
        "eos_token_id": [1, 50, 106],
        "temperature": 0.3,
        "top_k": 20,
        "top_p": 0.95,
        "suppress_tokens": [7, 8],
    }


def test_tokens_that_no_merge_makes_are_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The original may take them whole out of a text, as `<|turn>`: a file does not say it."""
    rebuilt(values_of(tmp_path, folder), "vocabulary.gguf")
    assert capsys.readouterr().err == ""

    def plain(writer: gguf.GGUFWriter) -> None:
        types = writer.kv_data[0]["tokenizer.ggml.token_type"].value
        for token in (5, 105):  # an empty slot, and `<|turn>`
            types[token] = gguf.TokenType.NORMAL

    rebuilt(values_of(tmp_path, folder, plain), "vocabulary.gguf")
    error = capsys.readouterr().err
    assert "does not say whether `<|turn>` are taken whole" in error
    assert "--tokenizer" in error


def without(key: str) -> Change:
    def apply(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0][f"tokenizer.ggml.{key}"]

    return apply


def setting(key: str, change: Callable[[Any], Any]) -> Change:
    def apply(writer: gguf.GGUFWriter) -> None:
        entry = writer.kv_data[0][f"tokenizer.ggml.{key}"]
        entry.value = change(entry.value)

    return apply


WRONG: dict[str, tuple[Change, str]] = {
    "another kind": (setting("model", lambda _: "llama"), "of the kind 'llama'"),
    "none": (setting("model", lambda _: "none"), "no whole tokenizer"),
    "no tokens": (without("tokens"), "no whole tokenizer"),
    "no merges": (without("merges"), "no whole tokenizer"),
    "no types": (without("token_type"), "0 types for 1024 tokens"),
    "fewer types": (setting("token_type", lambda types: types[:-1]), "1023 types"),
    "a token twice": (setting("tokens", lambda all_: [*all_[:-1], all_[0]]), "1023 of them"),
    "a merge of one": (setting("merges", lambda all_: [*all_, "abc"]), "'abc' is no merge"),
    "a merge to nothing": (setting("merges", lambda all_: [*all_, "\n ▁"]), "is no merge"),
    "no bytes": (setting("token_type", lambda types: [1] * len(types)), "0 tokens for bytes"),
    "an unknown token beyond": (setting("unknown_token_id", lambda _: 5000), "no unknown token"),
    "a token with a space": (setting("tokens", lambda all_: ["a b", *all_[1:]]), "with a space"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_whole_asks_for_a_tokenizer(name: str, folder: Path, tmp_path: Path) -> None:
    change, message = WRONG[name]
    with pytest.raises(CheckpointError, match=message) as caught:
        rebuilt(values_of(tmp_path, folder, change), "vocabulary.gguf")
    assert "--tokenizer" in str(caught.value.hint)
