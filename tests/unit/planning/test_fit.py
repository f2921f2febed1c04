"""Which combination is taken of those that fit, against a comparison in plain words."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from gemma4_compile.planning.fit import (
    QUANTS,
    TRAINED_QUANTS,
    USUAL_QUANT,
    Choice,
    Ladders,
    chunks_for,
    contexts_for,
    first_fit,
    quants_for,
)
from gemma4_compile.quantization.schemes import RECIPES

ALL, FEWER = ("default", "f16"), ("f16",)
CONTEXTS = (32_768, 16_384, 8192, 4096, 2048)
STEPS = (
    quants_for("q4kf16", is_trained=False),
    (ALL, FEWER),
    CONTEXTS,
    (512, 256, 64),
    (False, True),
    (1.0, 0.5, 0.0),
)
FULL = Ladders(*STEPS)


def gives_up_less(one: Choice, other: Choice) -> bool:
    """The order of docs/options.md, told by what is given up last."""
    for size in (4096,):
        if min(one.context, size) != min(other.context, size):
            return one.context > other.context
    if (one.experts == 1) != (other.experts == 1):
        return one.experts == 1
    lost = [max(QUANTS.index(each.quant), QUANTS.index(USUAL_QUANT)) for each in (one, other)]
    if lost[0] != lost[1]:
        return lost[0] < lost[1]
    if min(one.context, 8192) != min(other.context, 8192):
        return one.context > other.context
    if one.libraries != other.libraries:
        return one.libraries == ALL
    if one.chunk != other.chunk:
        return one.chunk > other.chunk
    if one.table_on_host != other.table_on_host:
        return not one.table_on_host
    if one.experts != other.experts:
        return one.experts > other.experts
    if one.quant != other.quant:
        return QUANTS.index(one.quant) < QUANTS.index(other.quant)
    return one.context > other.context


def cost(choice: Choice) -> int:
    """Any memory that falls with each step."""
    weights = {"q4f16m": 2400, "q4kf16": 2100, "q4f16s": 2000}[choice.quant]
    state = choice.context // 100 * (2 if choice.libraries == ALL else 1)
    off = int(1000 * (1 - choice.experts))
    return weights + state + choice.chunk // 2 - (700 if choice.table_on_host else 0) - off


def test_of_all_that_fit_none_gives_up_less() -> None:
    everything = [
        choice
        for choice in (Choice(*one) for one in product(*STEPS))
        if choice.experts == 1 or choice.quant != "q4f16m"  # none above the usual over the bus
    ]
    budgets = sorted({cost(choice) for choice in everything})

    def within(budget: int) -> Callable[[Choice], bool]:
        return lambda choice: cost(choice) <= budget

    for budget in (budgets[0] - 1, *budgets[::29], budgets[-1]):
        fitting = [choice for choice in everything if cost(choice) <= budget]
        found = first_fit(FULL, within(budget))
        assert (found is None) == (not fitting)
        assert not any(gives_up_less(one, found) for one in fitting if found is not None)


def test_nothing_is_given_up_where_there_is_room() -> None:
    found = first_fit(FULL, lambda _: True)
    assert found == Choice("q4f16m", ALL, 32_768, 512)
    assert [*FULL.better(found)] == []


def test_what_is_given_is_kept() -> None:
    given_all = Ladders(("f16",), (ALL,), (1000,), (200,))
    assert first_fit(given_all, lambda _: True) == Choice("f16", ALL, 1000, 200)
    assert first_fit(given_all, lambda choice: choice.context < 1000) is None


def test_what_was_given_up_is_named_with_what_would_be_taken() -> None:
    chosen = Choice("q4f16s", FEWER, 2048, 64, True, 0.5)
    assert dict(FULL.better(chosen)) == {
        "recipe": Choice("q4kf16", FEWER, 2048, 64, True, 0.5),
        "libraries": Choice("q4f16s", ALL, 2048, 64, True, 0.5),
        "context": Choice("q4f16s", FEWER, 8192, 64, True, 0.5),
        "prefill_chunk": Choice("q4f16s", FEWER, 2048, 512, True, 0.5),
        "per_layer_table": Choice("q4f16s", FEWER, 2048, 64, False, 0.5),
        "experts": Choice("q4f16s", FEWER, 2048, 64, True, 1.0),
    }
    usual = Choice("q4kf16", ALL, 8192, 512)
    assert {name: (other.quant, other.context) for name, other in FULL.better(usual)} == {
        "recipe": ("q4f16m", 8192),
        "context": ("q4kf16", 16_384),
    }


def test_what_a_checkpoint_is_gives_its_recipes() -> None:
    assert quants_for("q4kf16", is_trained=False) == ("q4f16m", "q4kf16", "q4f16s")
    assert quants_for("q4f16", is_trained=False) == ("q4f16m", "q4f16", "q4f16s")
    assert quants_for("q4f16", is_trained=True) == ("q4f16s",)


def test_all_recipes_of_the_ladder_are_recipes() -> None:
    assert {*QUANTS, *TRAINED_QUANTS} <= set(RECIPES)
    assert USUAL_QUANT in QUANTS


@given(st.integers(1, 1 << 20))
def test_contexts_begin_with_the_models_longest_and_halve(longest: int) -> None:
    found = contexts_for(longest)
    assert found[0] == longest == max(found)
    assert all(2048 <= one < longest and one & (one - 1) == 0 for one in found[1:])
    assert len(set(found)) == len(found)
    assert longest <= 2048 or found[-1] == 2048


def test_chunks_begin_with_a_picture_that_none_may_cut() -> None:
    assert chunks_for(0) == chunks_for(280) == (512, 256, 128, 64)
    assert chunks_for(1120) == (1120, 512, 256, 128, 64)
    short = Ladders(("q4f16",), ((),), (100,), chunks_for(0))
    assert [choice.chunk for choice in short.choices()] == [100, 64]
