"""The streamed transformers model gives what the whole one gives, and holds no weights after it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import hf, models
from tests.marks import slow_unless

pytestmark = pytest.mark.parity

from gemma4_compile.verification.transformer import (  # noqa: E402
    run_transformers,
    text_config,
)

LENGTH = 40


@pytest.mark.parametrize("form", slow_unless("hub".__eq__, ["hub", "transformers"]))
@pytest.mark.parametrize("kind", [*models.KINDS, *models.UNTIED])
def test_streamed_equals_whole(
    kind: str, form: models.Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = models.ALL[kind]
    weights = models.random_weights(text, dtype="bfloat16")
    rows_read: dict[str, int] = {}

    def read(name: str, begin: int, end: int) -> np.ndarray:
        rows_read[name] = rows_read.get(name, 0) + end - begin
        values = weights[name]
        return (values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values)[begin:end]

    monkeypatch.setattr("gemma4_compile.verification.heads.HEAD_BLOCK_BYTES", 1 << 14)
    ids = [int(i) for i in models.prompt(LENGTH)]
    rows = [0, 7, LENGTH - 1]
    config = text_config(models.config_file(text, form, "bfloat16"))
    shapes = {name: values.shape for name, values in weights.items()}
    run = run_transformers(config, "bfloat16", read, shapes, ids, rows)

    whole = hf.load(text, weights, "bfloat16")
    np.testing.assert_allclose(run.logits, hf.logits(whole, ids)[rows], rtol=0, atol=2e-5)
    for found, expected in zip(run.hidden, hf.hidden_states(whole, ids), strict=False):
        np.testing.assert_allclose(found, expected[rows], rtol=1e-4, atol=1e-4)
    assert len(run.hidden) == len(text["layer_types"])
    of_head, of_ids = text["vocab_size"], len(set(ids))
    if text["tie_word_embeddings"]:
        assert rows_read["embed_tokens.weight"] == of_ids + of_head
    else:
        assert (rows_read["embed_tokens.weight"], rows_read["lm_head.weight"]) == (of_ids, of_head)
    if "embed_tokens_per_layer.weight" in rows_read:
        assert rows_read["embed_tokens_per_layer.weight"] == len(set(ids))


def test_shared_keys_without_per_layer_embeddings() -> None:
    """transformers fails at them unless it is asked for the hidden states."""
    text = {**models.E2B_LIKE, "hidden_size_per_layer_input": 0}
    weights = models.random_weights(text, dtype="bfloat16")

    def read(name: str, begin: int, end: int) -> np.ndarray:
        values = weights[name]
        return (values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values)[begin:end]

    ids = [int(i) for i in models.prompt(LENGTH)]
    rows = [0, 7, LENGTH - 1]
    config = text_config(models.config_file(text, "hub", "bfloat16"))
    shapes = {name: values.shape for name, values in weights.items()}
    run = run_transformers(config, "bfloat16", read, shapes, ids, rows)
    whole = hf.load(text, weights, "bfloat16")
    for found, expected in zip(run.hidden, hf.hidden_states(whole, ids), strict=False):
        np.testing.assert_allclose(found, expected[rows], rtol=1e-4, atol=1e-4)
    assert run.logits.shape == (3, text["vocab_size"])


def test_the_type_of_a_text_config_follows_from_the_whole_ones() -> None:
    assert text_config({"model_type": "gemma4", "text_config": {}})["model_type"] == "gemma4_text"


def test_test_checkpoints_are_on_disk_in_the_hub_form(tmp_path: Path) -> None:
    written = models.write_checkpoint(tmp_path, models.E2B_LIKE)
    whole = {"model_type": "gemma4", "text_config": written.text_config}
    assert text_config(whole) == written.text_config
    assert text_config(written.text_config) == written.text_config
