"""Packages with int8 activations against transformers, which rounds none."""

from __future__ import annotations

import numpy as np
import pytest

from tests.marks import slow_unless
from tests.parity.conftest import CaseFactory
from tests.parity.test_recipes import run_two_turns

pytestmark = pytest.mark.parity

# Not the experts: an error of this size makes the router choose others.
KINDS = ("e2b", "dense")


@pytest.mark.parametrize(
    ("kind", "recipe"),
    slow_unless(
        lambda *pair: pair == ("e2b", "q4f16"),
        [("e2b", "q4f16"), ("e2b", "q8f16"), ("dense", "q4kf16"), ("dense", "q4f16")],
    ),
)
def test_two_turns_in_chunks(case: CaseFactory, kind: str, recipe: str) -> None:
    run_two_turns(case(kind, recipe, activations="int8"))


@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind == "e2b", KINDS))
def test_residuals_of_1e5_stay_finite_and_right(case: CaseFactory, kind: str) -> None:
    run_two_turns(case(kind, "q4f16", residual_scale=1e5, activations="int8"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_decoded_token_is_rounded(case: CaseFactory, kind: str) -> None:
    floats, rounded = (case(kind, "q4f32", activations=form) for form in ("float", "int8"))
    ids = [int(i) for i in floats.prompt(floats.window + 1)]
    for compiled in (floats, rounded):
        compiled.engine.clear()
        compiled.engine.prefill(ids[:-1])
    first, second = (compiled.engine.decode(ids[-1]) for compiled in (floats, rounded))
    assert not np.array_equal(first, second)
