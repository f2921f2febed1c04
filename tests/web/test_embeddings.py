"""`tiny-embedding` in the stock client's pipeline of embeddings, next to the native runtime."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.model_spec.embedding.memory import CLIENT_TEXTS
from gemma4_compile.runtime.embedding.embedder import Embedder
from tests import tolerances
from tests.web.compiled import EMBEDDING, Compiler
from tests.web.webllm import drive_webllm

pytestmark = [pytest.mark.browser, pytest.mark.slow]

QUANT = "q4f32"
BLOCKS = 3 * 4  # attention, feed-forward and per-layer input of each layer
# Of vectors of length 1, from the same weights: the errors of two ways to sum are independent.
BOUND = sqrt(2) * tolerances.relative_error(BLOCKS, QUANT)
TEXTS = (
    "Alice has a red ball.",
    "On Monday we meet Kate in the garden. In the kitchen there is a green lamp.",
    "7",
    "A red ball belongs to Alice.",
)


def vectors(answer: Any) -> npt.NDArray[np.float32]:
    assert [one["index"] for one in answer["data"]] == list(range(len(answer["data"])))
    return np.array([one["embedding"] for one in answer["data"]], np.float32)


def test_its_vectors_are_the_native_runtimes(
    browser: str, compiled: Compiler, tmp_path: Path
) -> None:
    """Texts in one call and two, and ids with and without what a tokenizer puts around a text."""
    native = Embedder.open(compiled(EMBEDDING, "cpu", QUANT))
    whole = native.tokens_of(TEXTS)
    assert all(len(ids) > 2 for ids in whole)
    package = compiled(EMBEDDING, "webgpu", QUANT)
    many = 3 * TEXTS
    assert len(many) > CLIENT_TEXTS > len(TEXTS)
    inputs: list[Any] = [list(TEXTS), TEXTS[1], whole, whole[0][1:-1], list(many)]
    steps = [{"op": "embed", "input": one} for one in inputs]
    result = drive_webllm(package, steps, tmp_path, embeds=True)

    expected = native.embed(TEXTS)
    meant = (expected, expected[1:2], expected, expected[:1], np.tile(expected, (3, 1)))
    texts, *others = map(vectors, result["results"])
    for found, own in zip((texts, *others), meant, strict=True):
        assert found.shape == own.shape
        assert np.linalg.norm(found - own, axis=1).max() <= BOUND
    assert (texts[0] @ texts.T)[[1, 2]].max() < texts[0] @ texts[3]
    counted = result["results"][0]["usage"]["prompt_tokens"]
    assert counted == sum(len(text) - 2 for text in whole)  # what it has tokenised itself
