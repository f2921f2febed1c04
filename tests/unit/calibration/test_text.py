"""Which texts are taken, and the sequences that they become."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemma4_compile.calibration.text import MAX_SEGMENTS, SEGMENT, TextReader, read_file
from gemma4_compile.errors import CheckpointError, UsageError
from tests import models


@pytest.fixture
def reader(tmp_path: Path) -> TextReader:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(models.character_tokenizer()))
    return TextReader.open(path, 2)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"text\0text", "zero byte"),
    ],
)
def test_what_is_no_text_is_refused(content: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(UsageError, match=f"--calibrate: `.*` .*{what}"):
        read_file(tmp_path / "text")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--calibrate: cannot read"):
        read_file(tmp_path / "none")


def test_a_file_that_is_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemma4_compile.options.given_text.MAX_TEXT_BYTES", 10)
    (tmp_path / "text").write_text("a" * 11)
    with pytest.raises(UsageError, match="--calibrate: cannot read"):
        read_file(tmp_path / "text")


def test_a_short_text_is_refused(reader: TextReader, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("short")
    with pytest.raises(UsageError, match="has 5 tokens, expected 128"):
        reader.given(tmp_path / "text", 256)


def test_tokens_that_the_model_has_not_are_refused(reader: TextReader, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a" * 200)
    with pytest.raises(UsageError, match="spells token"):
        reader.given(tmp_path / "text", 50)


def test_a_long_text_gives_sequences_from_all_of_it(reader: TextReader, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a" * 20_000 + "b" * 20_000)
    rows = reader.given(tmp_path / "text", 256)
    assert len(rows) == MAX_SEGMENTS
    assert {len(row) for row in rows} == {SEGMENT}
    assert all(row[0] == 2 for row in rows)
    assert len({row[1] for row in (rows[0], rows[-1])}) == 2


def test_prompts_are_turns_where_the_model_knows_them(reader: TextReader) -> None:
    open_turn = reader.tokenizer.token_to_id("<|turn>")
    rows = reader.prompts(256)
    assert len(rows) > 20
    assert all(row[:2] == [2, open_turn] for row in rows)
    assert reader.ends([1]) == {1, reader.tokenizer.token_to_id("<turn|>")}


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError):
        TextReader.open(tmp_path / "tokenizer.json", 2)
