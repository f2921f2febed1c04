"""Contexts with pictures and sounds against transformers: masks, chunks, turns, pops and rings."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.text import reference
from gemma4_compile.runtime.engine.chunks import whole_rows
from tests import hf_media, models, tolerances
from tests.hf_media import Context
from tests.marks import slow_unless
from tests.parity.media import (
    KINDS,
    PREFILL_CHUNK,
    UNTIED,
    WHOLE_IMAGES,
    Letters,
    MediaCase,
    config_with_pictures,
    context,
    make_case,
)

pytestmark = pytest.mark.parity

CaseOf = Callable[..., MediaCase]

# Windows are 8 to 16 rows: pictures below and above, one right after the last row of a chunk.
CONTEXTS: dict[str, Letters] = {
    "a small picture within text": (("t", 9), ("p", 6), ("t", 8)),
    "a picture longer than the window": (("t", 7), ("p", 31), ("t", 6)),
    "a picture first": (("p", 20), ("t", 5)),
    "a picture last": (("t", 4), ("p", 25)),
    "several pictures": (("t", 3), ("p", 5), ("t", 1), ("p", 17), ("t", 2), ("p", 3), ("t", 9)),
    "a picture of one row": (("t", 6), ("p", 1), ("t", 6)),
    "a sound": (("t", 5), ("s", 21), ("t", 6)),
    "a sound between pictures": (("p", 9), ("s", 4), ("p", 13), ("t", 3)),
    "pictures after the rings have wrapped": (
        *(("t", 70), ("p", 30), ("t", 20)),
        *(("p", 12), ("t", 9)),
    ),
}
NEW_TOKENS = 6
EVERYWHERE = ("e2b", "unified")  # causal pictures and whole ones
QUICK_KINDS = slow_unless(lambda kind: kind in EVERYWHERE, KINDS)  # the others in test-all
# Other kinds have another order of layers and other heads: of contexts those that are longer than
# a window, cut into several runs, or around the rings.
OF_OTHERS = (
    "a picture longer than the window",
    "several pictures",
    "a sound between pictures",
    "pictures after the rings have wrapped",
)


def kinds_and_contexts(*others: str) -> list[Any]:
    pairs = [
        (kind, name)
        for kind in (*KINDS, *others)
        for name in CONTEXTS
        if kind in EVERYWHERE or name in OF_OTHERS
    ]
    return slow_unless(lambda kind, _: kind in EVERYWHERE, pairs)


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> CaseOf:
    """Compile a kind, once a run."""

    @cache
    def make(kind: str, recipe: str = "f32") -> MediaCase:
        return make_case(kind, tmp_path_factory.mktemp(f"media-{kind}"), recipe=recipe)

    return make


def runs_of(letters: Letters) -> Letters:
    """The runs and some tokens to decode after them."""
    return (*letters, ("t", NEW_TOKENS))


@pytest.mark.parametrize(("kind", "name"), kinds_and_contexts(*UNTIED))
def test_a_context_and_the_tokens_after_it(case: CaseOf, kind: str, name: str) -> None:
    compiled = case(kind)
    given = compiled.context(runs_of(CONTEXTS[name]))
    count = len(given) - NEW_TOKENS
    compiled.engine.clear()
    found = compiled.prefill(given, 0, count)
    found |= compiled.decode(given, count, len(given))
    compiled.check(given, found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "recipe"),
    [("unified", "q4f16"), ("e2b", "f16"), ("moe", "f16")],
)
def test_recipes_with_f16_activations(case: CaseOf, kind: str, recipe: str) -> None:
    compiled = case(kind, recipe)
    given = compiled.context(runs_of(CONTEXTS["several pictures"]))
    count = len(given) - NEW_TOKENS
    compiled.engine.clear()
    found = compiled.prefill(given, 0, count, 19)
    found |= compiled.decode(given, count, len(given))
    compiled.check(given, found)


@pytest.mark.parametrize("chunk", slow_unless(lambda chunk: chunk == 17, [17, 23, 31]))
@pytest.mark.parametrize("kind", QUICK_KINDS)
def test_any_chunk_that_holds_the_pictures_gives_the_whole(
    case: CaseOf, kind: str, chunk: int
) -> None:
    compiled = case(kind)
    given = compiled.context(CONTEXTS["several pictures"])
    compiled.engine.clear()
    compiled.check(given, compiled.prefill(given, 0, len(given), chunk))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in WHOLE_IMAGES])
@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_causal_pictures_may_be_cut_anywhere(case: CaseOf, kind: str, chunk: int) -> None:
    compiled = case(kind)
    given = compiled.context(CONTEXTS["several pictures"])
    compiled.engine.clear()
    compiled.check(given, compiled.prefill(given, 0, len(given), chunk))


@pytest.mark.parametrize("kind", QUICK_KINDS)
def test_sounds_may_be_cut_anywhere(case: CaseOf, kind: str) -> None:
    compiled = case(kind)
    given = compiled.context(CONTEXTS["a sound"])
    compiled.engine.clear()
    compiled.check(given, compiled.prefill(given, 0, len(given), 4))


@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind == "unified", WHOLE_IMAGES))
def test_a_picture_longer_than_a_chunk_is_refused(case: CaseOf, kind: str) -> None:
    compiled = case(kind)
    given = compiled.context((("t", 3), ("p", PREFILL_CHUNK + 1), ("t", 2)))
    with pytest.raises(UsageError, match=f"a picture of {PREFILL_CHUNK + 1} rows does not fit"):
        compiled.prefill(given, 0, len(given))


@pytest.mark.parametrize("kind", QUICK_KINDS)
def test_later_turns_with_pictures(case: CaseOf, kind: str) -> None:
    compiled = case(kind)
    given = compiled.context(
        (
            *(("t", 5), ("p", 14), ("t", 3 + NEW_TOKENS), ("t", 4), ("p", 26)),
            *(("t", 2), ("s", 9), ("t", 1 + NEW_TOKENS), ("p", 7), ("t", 4 + NEW_TOKENS)),
        )
    )
    turns = (22, 22 + NEW_TOKENS, 70 + NEW_TOKENS - 6, 70 + 2 * NEW_TOKENS - 6)
    first, second, third, fourth = turns
    compiled.engine.clear()
    found = compiled.prefill(given, 0, first)
    found |= compiled.decode(given, first, second)
    found |= compiled.prefill(given, second, third, 27)
    found |= compiled.decode(given, third, fourth)
    found |= compiled.prefill(given, fourth, len(given) - NEW_TOKENS)
    found |= compiled.decode(given, len(given) - NEW_TOKENS, len(given))
    compiled.check(given, found)


@pytest.mark.parametrize("before", [3, 55])
@pytest.mark.parametrize("kind", QUICK_KINDS)
def test_popped_pictures_leave_no_trace(case: CaseOf, kind: str, before: int) -> None:
    compiled = case(kind)
    kept = (("t", before), ("p", 12), ("t", 4))
    given = compiled.context((*kept, ("p", 9), ("t", 5), ("p", 4), ("t", 3)))
    dropped = compiled.context((("p", 11), ("t", 2)), seed=7)
    count = before + 16
    compiled.engine.clear()
    compiled.prefill(given, 0, count)
    compiled.prefill(given[:count] + dropped, count, count + len(dropped))
    assert compiled.engine.pop(len(dropped))
    assert compiled.engine.length == count
    compiled.check(given, compiled.prefill(given, count, len(given)))


@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind == "unified", WHOLE_IMAGES))
def test_a_pop_into_a_picture_takes_it_whole(case: CaseOf, kind: str) -> None:
    """Rows of a picture that remained would have seen those that are gone."""
    compiled = case(kind)
    given = compiled.context((("t", 6), ("p", 15), ("t", 3)))
    cut = given[:13] + compiled.context((("t", 5),), seed=3)
    compiled.engine.clear()
    compiled.prefill(given, 0, len(given))
    kept = whole_rows(given.modality.tolist(), 13)
    assert kept == 6
    assert compiled.engine.pop(len(given) - kept)
    compiled.check(cut, compiled.prefill(cut, kept, len(cut)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUICK_KINDS)
def test_greedy_tokens_are_those_of_generate(case: CaseOf, kind: str) -> None:
    compiled = case(kind)
    for seed in range(3):
        given = compiled.context((("t", 5), ("p", 19), ("t", 2), ("s", 6), ("t", 4)), seed=seed)
        expected, truth = hf_media.generate(compiled.model, given, 2 * compiled.window)
        compiled.engine.clear()
        (logits,) = compiled.prefill(given, 0, len(given)).values()
        for token, theirs in zip(expected, truth, strict=True):
            np.testing.assert_allclose(logits, theirs, rtol=0, atol=tolerances.LOGITS_F32)
            assert int(logits.argmax()) == token
            logits = compiled.engine.decode(token)


@pytest.mark.parametrize("kind", QUICK_KINDS)
def test_a_chunk_without_media_is_that_of_a_package_for_text(case: CaseOf, kind: str) -> None:
    compiled = case(kind)
    given = compiled.context((("t", 50),))
    compiled.engine.clear()
    found = compiled.prefill(given, 0, len(given), 13)
    compiled.check(given, found)
    compiled.engine.clear()
    np.testing.assert_array_equal(
        compiled.engine.prefill(given.ids[:13].tolist()), found[12], strict=True
    )


@pytest.mark.parametrize(("kind", "name"), kinds_and_contexts())
def test_reference_equals_transformers(kind: str, name: str) -> None:
    text = KINDS[kind]
    weights, config = models.random_weights(text), config_with_pictures(text)
    given: Context = context(CONTEXTS[name], config.hidden_size)
    rows = given.rows[given.modality != abi.MODALITY_TEXT]

    result = reference.forward(
        config, weights, given.ids, reference.MediaRows(given.modality, rows)
    )

    truth = hf_media.logits(hf_media.load(text, weights), given)
    np.testing.assert_allclose(result.logits, truth, rtol=0, atol=tolerances.LOGITS_F32)
