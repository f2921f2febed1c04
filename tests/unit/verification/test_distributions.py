"""Distributions that are compared block by block are those of whole logits."""

from __future__ import annotations

import numpy as np
import pytest

from tests import models

pytestmark = pytest.mark.parity

import torch  # noqa: E402

from gemma4_compile.verification import distributions  # noqa: E402
from gemma4_compile.verification.distributions import compare_heads  # noqa: E402
from gemma4_compile.verification.heads import Weights  # noqa: E402
from gemma4_compile.verification.measures import (  # noqa: E402
    TextMeasures,
    compare_logits,
    divergence,
)
from gemma4_compile.verification.transformer import text_config  # noqa: E402

POSITIONS, HIDDEN = 23, 32
CONFIG = {**models.E2B_LIKE, "hidden_size": HIDDEN}
VOCABULARY = CONFIG["vocab_size"]
HEAD = "embed_tokens.weight"


def weights_of(table: np.ndarray) -> Weights:
    return Weights(lambda name, begin, end: table[begin:end], {HEAD: table.shape})


@pytest.mark.parametrize("cap", [30.0, None])
@pytest.mark.parametrize("excluded", [(), (0, 7, 8, VOCABULARY - 1)])
def test_blocks_are_the_whole(
    excluded: tuple[int, ...], cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributions, "BLOCK_BYTES", 4 * HIDDEN * 5)  # 5 tokens at a time
    monkeypatch.setattr(distributions, "CHUNK", 4)
    random = np.random.default_rng(1)
    tables, states = (
        [normal.astype(np.float32), (normal + other / 8).astype(np.float32)]
        for normal, other in (
            random.standard_normal((2, n, HIDDEN)) for n in (VOCABULARY, POSITIONS)
        )
    )
    following = [*random.integers(9, VOCABULARY - 1, POSITIONS - 1).tolist(), None]
    text = text_config({**CONFIG, "final_logit_softcapping": cap})
    (found,) = compare_heads(
        text,
        [weights_of(table) for table in tables],
        [torch.from_numpy(state) for state in states],
        following,
        excluded,
    )
    expected, own = (
        logits if cap is None else np.tanh(logits / cap) * cap
        for logits in (state @ table.T for state, table in zip(states, tables, strict=True))
    )
    right = compare_logits(own, expected, following, excluded)
    measures = TextMeasures.of(found)
    for name in ("kl_mean", "kl_max", "top1", "top5", "perplexity", "reference_perplexity"):
        np.testing.assert_allclose(getattr(measures, name), getattr(right, name), rtol=1e-4)
    assert measures.positions == POSITIONS
    kept = np.delete(np.arange(VOCABULARY), excluded)
    each = divergence(own[:, kept], expected[:, kept])
    np.testing.assert_allclose(found.divergence, each, rtol=1e-4, atol=1e-6)
    assert measures.kl_p99 == pytest.approx(np.quantile(each, 0.99), rel=1e-4)


def test_the_same_weights_are_no_distance_apart() -> None:
    random = np.random.default_rng(2)
    table = random.standard_normal((VOCABULARY, HIDDEN)).astype(np.float32)
    state = torch.from_numpy(random.standard_normal((POSITIONS, HIDDEN)).astype(np.float32))
    one = weights_of(table)
    (found,) = compare_heads(text_config(CONFIG), [one, one], [state, state], [3] * POSITIONS)
    measures = TextMeasures.of(found)
    assert (measures.kl_max, measures.top1, measures.top5) == (0, 1, 1)
    assert measures.perplexity == measures.reference_perplexity
