"""Gemma 3n's text next to transformers: the NumPy reference, and compiled packages."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.gemma3n import reference
from tests import gemma3n, hf, models, tolerances
from tests.marks import slow_unless
from tests.parity.conftest import CaseFactory
from tests.parity.test_recipes import run_two_turns

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", gemma3n.KINDS)
def test_the_reference_equals_transformers(kind: str, dtype: str) -> None:
    text = gemma3n.KINDS[kind]
    config = Gemma4Config.from_dict(models.config_file(text, "hub", dtype))
    weights = models.random_weights(text, dtype=dtype)
    ids = models.prompt(4 * text["sliding_window"])
    found = reference.forward(config, weights, ids)
    truth = hf.load(text, weights, dtype)
    np.testing.assert_allclose(
        found.logits, hf.logits(truth, ids), rtol=0, atol=tolerances.LOGITS_F32
    )


# The odd one's widths are no multiples of a group.
RECIPES = slow_unless(
    lambda kind, recipe: (kind, recipe) in {("3n odd", "f32"), ("3n e2b", "q4f16")},
    [
        *((kind, "f32") for kind in gemma3n.KINDS),
        *(("3n e2b", "q4f16"), ("3n e4b", "q8f16"), ("3n e4b", "q4f16m"), ("3n e2b", "q4kf16m")),
    ],
)


@pytest.mark.parametrize(("kind", "recipe"), RECIPES)
def test_two_turns_in_chunks(case: CaseFactory, kind: str, recipe: str) -> None:
    run_two_turns(case(kind, recipe))
