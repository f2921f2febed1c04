"""Attention by blocks of rows is transformers' eager attention."""

from __future__ import annotations

import numpy as np
import pytest

from tests import hf, models

pytestmark = pytest.mark.parity

from gemma4_compile.verification.heads import Weights, head  # noqa: E402
from gemma4_compile.verification.transformer import Tokens, stream, text_config  # noqa: E402

LENGTH = 61


@pytest.mark.parametrize("kind", ["e2b", "moe"])
def test_blocks_of_rows_are_the_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemma4_compile.verification.attention_blocks.BLOCK_ROWS", 7)
    text = models.ALL[kind]
    assert 2 * text["sliding_window"] < LENGTH, "blocks begin after keys that are no longer seen"
    weights = models.random_weights(text)
    ids = [int(i) for i in models.prompt(LENGTH)]
    config = text_config(models.config_file(text, "hub", "float32"))
    own = Weights(
        lambda name, begin, end: (
            weights[name].reshape(-1, *weights[name].shape[-1:])[begin:end]
            if weights[name].ndim > 1
            else weights[name][begin:end]
        ),
        {name: values.shape for name, values in weights.items()},
    )
    ((run,),) = stream(config, "float32", [own], [Tokens(ids)])
    expected = hf.logits(hf.load(text, weights, "float32"), ids)
    # Sums have another order; random layers make ten times of what test_transformer allows.
    np.testing.assert_allclose(head(run.normed, config, own), expected, rtol=0, atol=2e-4)
