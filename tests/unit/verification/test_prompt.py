"""The prompt is longer than two windows where there is room, and its rows are where steps end."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.verification.prompt import TEXT_FILE, other_chunk, read_prompt, read_text
from tests import models
from tests.packages import config_of


@pytest.fixture
def checkpoint(tmp_path: Path) -> models.Checkpoint:
    return models.write_checkpoint(tmp_path, models.E2B_LIKE)


@pytest.fixture
def config(checkpoint: models.Checkpoint) -> Gemma4Config:
    return config_of(checkpoint)


def test_text_that_ships_is_plain_and_long_enough() -> None:
    text = read_text(None)
    assert text.isascii()
    assert len(text.split()) > 1000


def test_rows_are_where_the_steps_end(checkpoint: models.Checkpoint, config: Gemma4Config) -> None:
    prompt = read_prompt(checkpoint.path, config, read_text(None), 512, 4)
    assert prompt.length > 2 * config.sliding_window
    steps = prompt.decoded()
    assert len(steps) == len(prompt.rows) == len(prompt.following)
    position = 0
    for step, row, following in zip(steps, prompt.rows, prompt.following, strict=True):
        position = len(step.ids) + (0 if step.clear else position)
        assert row == position - 1
        assert step.ids == prompt.ids[position - len(step.ids) : position]
        assert following == prompt.ids[position]
    chunked, late = prompt.again(3)
    assert (chunked.ids, chunked.chunk) == (prompt.ids[: prompt.length], 3)
    assert late.ids == prompt.ids[:position]


@pytest.mark.parametrize("context", [1, 2, 5, 20])
def test_a_short_context_gets_what_fits(
    context: int, checkpoint: models.Checkpoint, config: Gemma4Config
) -> None:
    if context < 2:
        with pytest.raises(UsageError, match="room for 1 token"):
            read_prompt(checkpoint.path, config, "some text", context, 64)
        return
    prompt = read_prompt(checkpoint.path, config, "some text", context, 64)
    assert prompt.length + prompt.steps <= context
    assert prompt.steps >= 1


def test_short_text_is_repeated(checkpoint: models.Checkpoint, config: Gemma4Config) -> None:
    prompt = read_prompt(checkpoint.path, config, "abc", 512, 4)
    assert prompt.ids[0] == config.bos_token_id
    assert prompt.ids[1:4] == prompt.ids[4:7]
    assert len(prompt.ids) == prompt.length + prompt.steps + 1


def test_what_cannot_be_read(
    checkpoint: models.Checkpoint, config: Gemma4Config, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="no tokens"):
        read_prompt(checkpoint.path, config, "", 512, 4)
    with pytest.raises(UsageError, match="--text: cannot read"):
        read_text(tmp_path / "nothing.txt")
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not UTF-8"):
        read_text(tmp_path / "latin.txt")
    with pytest.raises(UsageError, match="--text: cannot read `/dev/zero`: it is too large"):
        read_text(Path("/dev/zero"))
    (checkpoint.path / "tokenizer.json").write_text("{")
    with pytest.raises(ArtifactError, match="cannot load the tokenizer"):
        read_prompt(checkpoint.path, config, read_text(TEXT_FILE), 512, 4)


def test_the_other_chunk_divides_nothing() -> None:
    assert other_chunk(1032, 512) == 169
    assert other_chunk(5, 512) == 1
