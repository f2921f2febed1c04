from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.runtime.engine.logprobs import AnswerTokens, LogprobRecorder
from gemma4_compile.runtime.reply.reply import MarkIds
from gemma4_compile.runtime.sampling.sampling import AdjustedSampler, SamplingOptions
from tests.scripted_engine import greedy

PROBABILITIES = np.array([0.1, 0.4, 0.05, 0.3, 0.15], np.float64)
LOGITS = (np.log(PROBABILITIES) + 7).astype(np.float32)


def test_what_is_written_down_are_log_probabilities() -> None:
    recorder = LogprobRecorder(greedy, 3)
    assert recorder(LOGITS) == 1
    (token,) = recorder.tokens
    assert token.token_id == 1
    assert token.logprob == pytest.approx(np.log(0.4), abs=1e-6)
    assert [i for i, _ in token.top] == [1, 3, 4]
    assert [p for _, p in token.top] == pytest.approx(np.log([0.4, 0.3, 0.15]), abs=1e-6)


def test_a_token_that_cannot_be_has_none() -> None:
    logits = LOGITS.copy()
    logits[1] = -np.inf
    recorder = LogprobRecorder(lambda _: 1, 0)
    recorder(logits)
    assert recorder.tokens[0].logprob == -np.inf
    assert recorder.tokens[0].top == ()


def test_a_new_reply_begins_anew_for_the_sampler_too() -> None:
    sampler = AdjustedSampler(SamplingOptions(temperature=0.0, presence_penalty=2.0))
    recorder = LogprobRecorder(sampler, 0)
    recorder.begin([])
    assert [recorder(LOGITS), recorder(LOGITS)] == [1, 3]
    recorder.begin([])
    assert recorder.tokens == []
    assert recorder(LOGITS) == 1


@pytest.mark.parametrize("in_reasoning", [True, False])
def test_reasoning_calls_and_marks_are_no_answer(in_reasoning: bool) -> None:
    marks = MarkIds(10, 11, 12, 13, 14)
    answer = AnswerTokens(marks, in_reasoning=in_reasoning)
    ids = [1, 10, 2, 11, 3, 12, 14, 4, 14, 13, 5]
    kept = [i for i in ids if answer.push(i)]
    assert kept == ([3, 5] if in_reasoning else [1, 3, 5])
