"""Embeddings of a compiled `tiny-embedding`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.runtime import Chat, Embedder, Engine, Package
from gemma4_compile.runtime.check.tune import tune
from gemma4_compile.runtime.embedding.errors import TextTooLongError
from gemma4_compile.runtime.engine.sequence import Overflow
from gemma4_compile.runtime.package.integrity import Check
from gemma4_compile.runtime.terminal.console import Console

TEXTS = ["Ann has two apples.", "a", "What is two and two?", "Ann has two apples. " * 30]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny_embedder import embedder_package

    return embedder_package(tmp_path_factory)


@pytest.fixture(scope="module")
def embedder(package: Path) -> Embedder:
    return Embedder.open(package)


def test_texts_of_a_list_are_what_they_are_alone(embedder: Embedder) -> None:
    found = embedder.embed(TEXTS)
    assert found.shape == (len(TEXTS), embedder.dimensions)
    assert found.dtype == np.float32
    for index, text in enumerate(TEXTS):
        np.testing.assert_array_equal(embedder.embed(text)[0], found[index])
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)


@pytest.mark.slow
def test_more_texts_than_a_call_takes_are_several_calls(embedder: Embedder) -> None:
    texts = [f"{TEXTS[3]} {number}" for number in range(12)]
    total = sum(map(len, embedder.tokens_of(texts)))
    assert total > 2 * embedder.max_tokens, "three calls at least"
    found = embedder.embed(texts)
    np.testing.assert_array_equal(found[7], embedder.embed(texts[7])[0])


@pytest.mark.parametrize("dimensions", [1, 32, 127])
def test_fewer_dimensions_are_the_first_of_length_one(embedder: Embedder, dimensions: int) -> None:
    found, whole = embedder.embed(TEXTS, dimensions=dimensions), embedder.embed(TEXTS)
    assert found.shape == (len(TEXTS), dimensions)
    first = whole[:, :dimensions].astype(float)
    expected = first / np.linalg.norm(first, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_a_task_puts_its_prompt_in_front(embedder: Embedder) -> None:
    assert "query" in embedder.tasks
    prompt = embedder.settings.prompts["query"]
    found = embedder.embed(TEXTS, task="query")
    np.testing.assert_array_equal(found, embedder.embed([prompt + text for text in TEXTS]))
    assert np.abs(found - embedder.embed(TEXTS)).max() > 1e-2


def test_tokens_stand_between_bos_and_eos(embedder: Embedder) -> None:
    (ids,) = embedder.tokens_of(["two"])
    assert (ids[0], ids[-1]) == (2, 1)
    assert len(ids) >= 3
    (cut,) = embedder.tokens_of(["two " * embedder.max_tokens], truncate=True)
    assert len(cut) == embedder.max_tokens
    assert (cut[0], cut[-1]) == (2, 1)


def test_tokens_of_one_length_may_be_an_array(embedder: Embedder) -> None:
    ids = np.array([[2, 5, 1], [2, 6, 1]])
    found = embedder.embed_tokens(ids)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, embedder.embed_tokens(ids.tolist()))


def test_what_is_no_text_is_refused(embedder: Embedder) -> None:
    with pytest.raises(UsageError, match="no texts"):
        embedder.embed([])
    with pytest.raises(TextTooLongError, match=f"takes up to {embedder.max_tokens}") as caught:
        embedder.embed_tokens([[1], [1] * (embedder.max_tokens + 3)])
    most = embedder.max_tokens
    assert caught.value.overflow == Overflow(most + 3, most)
    assert caught.value.hint
    with pytest.raises(UsageError, match=f"takes up to {embedder.max_tokens}"):
        embedder.embed(["short", "two " * embedder.max_tokens])
    with pytest.raises(UsageError, match="text 1 has no token"):
        embedder.embed_tokens([[1], []])
    with pytest.raises(UsageError, match="token ids from 0 to 1023, found 1024"):
        embedder.embed_tokens([[1, 1024]])
    with pytest.raises(UsageError, match="dimensions: expected 1 to 128, found 129"):
        embedder.embed(TEXTS, dimensions=129)
    with pytest.raises(UsageError, match=r"task: expected one of query, .*'nonsense'"):
        embedder.embed(TEXTS, task="nonsense")
    other: Any = ["a", None]
    with pytest.raises(UsageError, match="text 1: expected a string, found NoneType"):
        embedder.embed(other)


def test_no_more_of_a_text_is_read_than_can_be_too_long(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, lengths = embedder.texts.of, list[int]()

    def of(text: str, most: int | None = None) -> list[int]:
        lengths.append(len(text))
        return read(text, most)

    text = "two " * 100_000
    (expected,) = embedder.tokens_of([text[:20_000]], truncate=True)
    monkeypatch.setattr(embedder.texts, "of", of)
    assert embedder.tokens_of([text], truncate=True) == [expected]
    with pytest.raises(UsageError, match=f"takes up to {embedder.max_tokens}"):
        embedder.embed(text)
    assert max(lengths) < 100_000


def test_a_package_of_replies_and_one_of_embeddings_are_told_apart(package: Path) -> None:
    with pytest.raises(ArtifactError, match="makes embeddings of texts, and no replies"):
        Engine(Package.open(package))
    with pytest.raises(ArtifactError, match="makes embeddings of texts, and no replies"):
        Chat.open(package)
    with pytest.raises(ArtifactError, match=r"^`.*` makes embeddings of texts, and no replies"):
        tune(package, Check.ONCE, Console())


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_half_of_a_character_is_no_text(embedder: Embedder, text: str) -> None:
    with pytest.raises(UsageError, match="text 1: half of a character") as caught:
        embedder.embed(["a", text])
    assert caught.value.hint
