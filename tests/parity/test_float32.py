"""f32 packages against transformers: prompt lengths around the window, chunks, turns, rewinding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gemma4_compile.runtime import ContextFullError
from tests import models, packages
from tests.marks import slow_unless
from tests.parity.conftest import Case, CaseFactory

pytestmark = pytest.mark.parity

KINDS = tuple(models.KINDS)
# The others are compared in a recipe each, in tests/parity/test_recipes.py.
QUICK_KINDS = slow_unless(lambda kind: kind in ("e2b", "moe"), KINDS)
LENGTHS: dict[str, Callable[[int], int]] = {
    "one": lambda window: 1,
    "two": lambda window: 2,
    "window-1": lambda window: window - 1,
    "window": lambda window: window,
    "window+1": lambda window: window + 1,
    "three windows and more": lambda window: 3 * window + 5,
}
NEW_TOKENS = 6


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", QUICK_KINDS)
def test_a_prompt_and_the_tokens_after_it(case: CaseFactory, kind: str, length: str) -> None:
    compiled = case(kind)
    count = LENGTHS[length](compiled.window)
    ids = compiled.prompt(count + NEW_TOKENS)
    compiled.engine.clear()
    found = compiled.prefill(ids, 0, count)
    found |= compiled.decode(ids, count, len(ids))
    compiled.check(ids, found)


@pytest.mark.parametrize(
    "chunk", slow_unless(lambda chunk: chunk in (1, 5), [1, 2, 5, 7, packages.PREFILL_CHUNK])
)
@pytest.mark.parametrize("kind", QUICK_KINDS)
def test_any_chunk_length_gives_the_whole_prefill(case: CaseFactory, kind: str, chunk: int) -> None:
    compiled = case(kind)
    ids = compiled.prompt(3 * compiled.window + 5)
    compiled.engine.clear()
    compiled.check(ids, compiled.prefill(ids, 0, len(ids), chunk))


@pytest.mark.parametrize("kind", QUICK_KINDS)
def test_token_by_token_gives_the_whole_prefill(case: CaseFactory, kind: str) -> None:
    compiled = case(kind)
    ids = compiled.prompt(3 * compiled.window + 5)
    compiled.engine.clear()
    compiled.check(ids, compiled.decode(ids, 0, len(ids)))


@pytest.mark.parametrize("kind", QUICK_KINDS)
def test_a_second_turn_after_decoding(case: CaseFactory, kind: str) -> None:
    compiled = case(kind)
    first, second = compiled.window + 1, compiled.window + NEW_TOKENS + 1
    end = second + compiled.window + 3
    ids = compiled.prompt(end + NEW_TOKENS)
    compiled.engine.clear()
    found = compiled.prefill(ids, 0, first)
    found |= compiled.decode(ids, first, second)
    found |= compiled.prefill(ids, second, end, 5)
    found |= compiled.decode(ids, end, len(ids))
    compiled.check(ids, found)


@pytest.mark.parametrize("token_id", [2, 77])
@pytest.mark.parametrize("kind", QUICK_KINDS)
def test_a_one_token_prompt_after_a_conversation_starts_clean(
    case: CaseFactory, kind: str, token_id: int
) -> None:
    compiled = case(kind)
    ids = [token_id, *compiled.prompt(NEW_TOKENS)[1:]]
    compiled.engine.clear()
    compiled.engine.prefill(compiled.prompt(3 * compiled.window).tolist())
    compiled.engine.decode(9)

    compiled.engine.clear()
    found = compiled.prefill(ids, 0, 1)
    found |= compiled.decode(ids, 1, len(ids))

    compiled.check(ids, found)


@pytest.mark.parametrize("kind", QUICK_KINDS)
def test_greedy_generation_is_the_same(case: CaseFactory, kind: str) -> None:
    compiled = case(kind)
    for seed in range(4):
        prompt = compiled.prompt(compiled.window + 2, seed=seed).tolist()
        compiled.engine.clear()
        logits = compiled.engine.prefill(prompt)
        ids = list(prompt)
        found = {len(prompt) - 1: logits}
        for _ in range(2 * compiled.window):
            ids.append(int(logits.argmax()))
            logits = compiled.engine.decode(ids[-1])
            found[len(ids) - 1] = logits
        truth = compiled.truth(ids)
        assert ids[len(prompt) :] == truth[len(prompt) - 1 : -1].argmax(-1).tolist()
        compiled.check(ids, found)


@pytest.mark.parametrize("kind", QUICK_KINDS)
def test_popped_tokens_leave_no_trace(case: CaseFactory, kind: str) -> None:
    compiled = case(kind)
    kept, popped = 2 * compiled.window, 3
    ids = compiled.prompt(kept + 8)
    compiled.engine.clear()
    compiled.engine.prefill(ids[:kept].tolist())
    compiled.engine.prefill([5] * popped)
    assert compiled.engine.pop(popped)
    assert compiled.engine.length == kept
    compiled.check(ids, compiled.prefill(ids, kept, len(ids)))


@pytest.mark.parametrize("kind", QUICK_KINDS)
def test_a_pop_beyond_the_rings_is_refused_and_changes_nothing(
    case: CaseFactory, kind: str
) -> None:
    compiled = case(kind)
    ids = compiled.prompt(80)
    compiled.engine.clear()
    compiled.engine.prefill(ids[:-1].tolist())
    assert not compiled.engine.pop(60)
    assert compiled.engine.length == len(ids) - 1
    compiled.check(ids, compiled.decode(ids, len(ids) - 1, len(ids)))


def test_the_whole_context_can_be_used_and_not_more(case: CaseFactory) -> None:
    compiled: Case = case("e2b")
    ids = compiled.prompt(packages.CONTEXT_LENGTH)
    compiled.engine.clear()
    found = compiled.prefill(ids, 0, len(ids) - 1)
    found |= compiled.decode(ids, len(ids) - 1, len(ids))
    compiled.check(ids, found)
    with pytest.raises(ContextFullError, match=r"holds 96 of 96 tokens, and 1 more do not fit"):
        compiled.engine.decode(1)
    assert compiled.engine.length == len(ids)


@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind == "e2b", KINDS))
def test_scales_are_those_of_a_bfloat16_checkpoint(case: CaseFactory, kind: str) -> None:
    compiled = case(kind, dtype="bfloat16")
    ids = compiled.prompt(compiled.window + NEW_TOKENS)
    compiled.engine.clear()
    found = compiled.prefill(ids, 0, compiled.window)
    found |= compiled.decode(ids, compiled.window, len(ids))
    compiled.check(ids, found)


def test_engine_repeats_itself_to_the_bit(case: CaseFactory) -> None:
    compiled = case("e2b")
    ids = compiled.prompt(20).tolist()
    runs = []
    for _ in range(2):
        compiled.engine.clear()
        runs.append(compiled.engine.prefill(ids))
    np.testing.assert_array_equal(runs[0], runs[1])
