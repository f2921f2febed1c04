"""Every recipe against transformers on the weights that the package's tensors mean."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.targets.spec import WORDS
from tests import hf, models
from tests.marks import slow_unless
from tests.parity.conftest import Case, CaseFactory, margin

pytestmark = pytest.mark.parity

# Each recipe, each kind, and experts and per-layer tables in 4, 8 and 16 bits: a matmul does not
# know its layer's kind, which tests/parity/test_float32.py shows of each. `make test` runs two
# kinds: those of the others are in them.
QUICK = {"e2b": "q4kf16", "moe": "q8f16"}
OTHERS = (
    *(("e2b", "q4f16"), ("dense", "q4f32"), ("e2b", "q8f16"), ("e4b", "f16"), ("e4b", "q4kf16m")),
    ("unified", "q4f16m"),
    *(("moe", "q4f16"), ("moe", "f16"), ("moe", "q4kf16")),
)
NEW_TOKENS = 6
GREEDY_TOKENS = 6
PROMPTS_TRIED = 100


# Each kind once and each dtype of activations twice or more: the stream that grows is the same for
# all weights of a dtype.
LARGE = slow_unless(
    lambda *pair: pair == ("moe", "q8f16"),
    [
        *(("moe", "q8f16"), ("e2b", "f32"), ("e2b", "q4f16")),
        *(("e4b", "f16"), ("dense", "q4f32"), ("unified", "f16")),
    ],
)
PAIRS = slow_unless(lambda *pair: pair in QUICK.items(), [*QUICK.items(), *OTHERS])


def run_two_turns(compiled: Case) -> None:
    """A prompt in chunks, decoding, a second prompt that passes the window again, decoding."""
    first = 2 * compiled.window + 1
    second = first + NEW_TOKENS
    end = second + compiled.window + 2
    ids = compiled.prompt(end + NEW_TOKENS)
    compiled.engine.clear()
    found = compiled.prefill(ids, 0, first, 7)
    found |= compiled.decode(ids, first, second)
    found |= compiled.prefill(ids, second, end)
    found |= compiled.decode(ids, end, len(ids))
    compiled.check(ids, found)


@pytest.mark.parametrize(("kind", "recipe"), PAIRS)
def test_two_turns_in_chunks(case: CaseFactory, kind: str, recipe: str) -> None:
    run_two_turns(case(kind, recipe))


@pytest.mark.parametrize(("kind", "recipe"), PAIRS)
def test_short_prompts(case: CaseFactory, kind: str, recipe: str) -> None:
    compiled = case(kind, recipe)
    for count in (1, 2, compiled.window):
        ids = compiled.prompt(count + 2)
        compiled.engine.clear()
        found = compiled.prefill(ids, 0, count)
        found |= compiled.decode(ids, count, len(ids))
        compiled.check(ids, found)


AS_WORDS = (("e2b", "q4f16"), ("e4b", "q8f16"), ("moe", "f16"), ("unified", "q4f16"))


@pytest.mark.parametrize(("kind", "recipe"), slow_unless(lambda kind, _: kind == "e2b", AS_WORDS))
def test_float16_weights_lose_nothing_where_float32_computes(
    case: CaseFactory, kind: str, recipe: str
) -> None:
    """Libraries that need no 16-bit floats, next to float32 on the weights that float16 holds."""
    run_two_turns(case(kind, recipe, float16=WORDS))


def decided_prompts(compiled: Case, count: int) -> list[tuple[list[int], list[int]]]:
    """Prompts whose greedy continuation in transformers is decided at every step, with it."""
    length = compiled.window + 3
    ids = np.stack([models.prompt(length, seed=seed) for seed in range(PROMPTS_TRIED)])
    for _ in range(GREEDY_TOKENS):
        logits = hf.last_logits(compiled.model, ids)
        decided = [margin(row) > 2 * compiled.tolerance for row in logits]
        ids = np.concatenate([ids, logits.argmax(-1)[:, None]], axis=1)[decided]
    ids = ids[hf.routing_gaps(compiled.model, ids) > compiled.routing_gap]
    assert len(ids) >= count, f"{len(ids)} of {PROMPTS_TRIED} prompts are decided"
    return [(row[:length].tolist(), row[length:].tolist()) for row in ids[:count]]


@pytest.mark.parametrize(("kind", "recipe"), PAIRS)
def test_greedy_tokens_are_identical_where_the_margin_decides(
    case: CaseFactory, kind: str, recipe: str
) -> None:
    compiled = case(kind, recipe)
    for prompt, expected in decided_prompts(compiled, 3):
        compiled.engine.clear()
        token = int(compiled.engine.prefill(prompt).argmax())
        generated = [token]
        while len(generated) < GREEDY_TOKENS:
            generated.append(int(compiled.engine.decode(generated[-1]).argmax()))
        assert generated == expected


@pytest.mark.parametrize(("kind", "recipe"), LARGE)
def test_residuals_of_1e5_stay_finite_and_right(case: CaseFactory, kind: str, recipe: str) -> None:
    compiled = case(kind, recipe, residual_scale=1e5)
    assert np.abs(hidden_maximum(compiled)) > 1e5
    run_two_turns(compiled)


def hidden_maximum(compiled: Case) -> float:
    states = hf.hidden_states(compiled.model, compiled.prompt(compiled.window).tolist())
    return max(float(np.abs(state).max()) for state in states)
