"""Settings of an encoder's package."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.package.artifacts import ChatConfig
from gemma4_compile.runtime.embedding.settings import (
    EmbeddingSettings,
    embedding_settings,
    usual_length,
)

PROMPTS = {"query": "q: ", "Sentence similarity": "s: "}


def chat_config(**embedding: Any) -> ChatConfig:
    return ChatConfig("embedding_gemma2", "q4f16_1", 512, 8, 8, (), {"embedding": embedding})


def test_they_are_read() -> None:
    found = embedding_settings(chat_config(dimensions=8, prompts=PROMPTS, default_prompt=None))
    assert found == EmbeddingSettings(8, PROMPTS)
    assert embedding_settings(ChatConfig("gemma4", "q4f16_1", 512, 8, 8, (), {})) is None


@pytest.mark.parametrize(
    "damaged",
    [
        *({"dimensions": 0}, {"prompts": ["query"]}, {"prompts": {"a": 1}}),
        *({"default_prompt": "b"}, {"max_tokens": 0}, {"max_tokens": "8"}),
    ],
)
def test_damaged_fields_are_refused(damaged: dict[str, Any]) -> None:
    fields = {"dimensions": 8, "prompts": PROMPTS, "default_prompt": None, **damaged}
    with pytest.raises(ArtifactError, match=next(iter(damaged))):
        embedding_settings(chat_config(**fields))


@pytest.mark.parametrize(("longest", "expected"), [(None, 8), (5, 5), (9, 8)])
def test_a_text_is_as_long_as_the_checkpoint_says(longest: int | None, expected: int) -> None:
    found = chat_config(dimensions=8, prompts=PROMPTS, default_prompt=None, max_tokens=longest)
    assert usual_length(found) == expected


@pytest.mark.parametrize(
    "task", ["sentence similarity", "SENTENCE_SIMILARITY", "sentence-Similarity"]
)
def test_a_task_has_several_spellings(task: str) -> None:
    assert EmbeddingSettings(8, PROMPTS).prompt(task) == "s: "


def test_of_two_that_are_spelled_alike_it_is_the_very_one() -> None:
    settings = EmbeddingSettings(8, {"STS": "a: ", "sts": "b: "}, "STS")
    assert [settings.prompt(task) for task in ("STS", "sts", None)] == ["a: ", "b: ", "a: "]


def test_the_default_is_the_packages() -> None:
    assert EmbeddingSettings(8, PROMPTS).prompt(None) == ""
    assert EmbeddingSettings(8, PROMPTS, "query").prompt(None) == "q: "
    with pytest.raises(UsageError, match="query, Sentence similarity"):
        EmbeddingSettings(8, PROMPTS).prompt("other")


@pytest.mark.parametrize("wanted", [0, 9, True, 2.0])
def test_sizes_that_it_has_not_are_refused(wanted: Any) -> None:
    with pytest.raises(UsageError, match="expected 1 to 8"):
        EmbeddingSettings(8, PROMPTS).check_dimensions(wanted)
