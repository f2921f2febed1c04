"""Texts on a package: a prompt and tokens that are decoded, and what has a bound."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.quantization.quality import Thresholds
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.verification.forms import FormTrial, compare_trials
from gemma4_compile.verification.measures import TextMeasures
from gemma4_compile.verification.runners import Outcome, Step
from gemma4_compile.verification.texts import FormText


def trial(tokens: int, steps: int) -> FormTrial:
    return FormTrial.of(FormText("chat", "", tuple(range(tokens)), 0), steps)


@pytest.mark.parametrize(("tokens", "decoded"), [(2, 1), (7, 1), (40, 8), (20, 5)])
def test_every_token_is_run_once(tokens: int, decoded: int) -> None:
    one = trial(tokens, 8)
    jobs = one.jobs()
    assert len(jobs) == len(one.rows) == 1 + decoded
    steps = [job for job in jobs if isinstance(job, Step)]
    assert len(steps) == len(jobs)
    assert [token for step in steps for token in Prompt.of(step.ids).ids] == [*range(tokens)]
    assert (one.rows[0], one.rows[-1]) == (tokens - decoded - 1, tokens - 1)


def test_the_arithmetic_has_a_bound_and_the_recipe_none() -> None:
    one = trial(8, 2)
    right = np.zeros((3, 9), np.float32)
    far = right + 5 * np.eye(3, 9, dtype=np.float32)
    stored = {"chat": TextMeasures(8, 0, 0, 0, 1, 1, 1, 1)}
    bounds = Thresholds(1e-3, 1, 1, 1, 1)
    outcomes = [[Outcome(row, None) for row in right]]
    (good,) = compare_trials([one], outcomes, [right], [far], stored, bounds, ())
    assert not list(good.failures)
    assert good.whole.kl_mean > 0.1
    (bad,) = compare_trials([one], outcomes, [far], [right], stored, bounds, ())
    assert [text.split(":")[:2] for text in bad.failures] == [["arithmetic", " chat"]]
    content = bad.to_json()
    assert (content["decoded"], content["kl_bound"]) == (2, 1e-3)
    assert content["arithmetic"]["positions"] == 3
    # The last position has no next token: the text ends there.
    assert np.isfinite(content["whole"]["perplexity"])
