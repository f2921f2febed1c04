"""A head of its own beside the token embedding, next to transformers on the same weights."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests import models, packages
from tests.marks import slow_unless
from tests.parity.conftest import CaseFactory
from tests.parity.test_recipes import RECIPES, run_two_turns

pytestmark = pytest.mark.parity

KINDS = tuple(models.KINDS)
# What `make test` runs: each kind and each recipe once.
QUICK = {"e2b": "q4f16", "dense": "q4f32", "moe": "q8f16", "e4b": "f16", "unified": "f32"}


def untied(kind: str) -> str:
    return f"{kind}, untied"


PAIRS = slow_unless(lambda kind, recipe: QUICK[kind] == recipe, product(KINDS, ["f32", *RECIPES]))


@pytest.mark.parametrize(("kind", "recipe"), PAIRS)
def test_two_turns_in_chunks(case: CaseFactory, kind: str, recipe: str) -> None:
    run_two_turns(case(untied(kind), recipe))


# Not the experts, as in tests/parity/test_int8.py.
@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind == "e2b", ["e2b", "dense"]))
def test_int8_activations(case: CaseFactory, kind: str) -> None:
    run_two_turns(case(untied(kind), "q4f32", activations="int8"))


def test_the_two_matrices_are_stored_as_they_are(case: CaseFactory) -> None:
    compiled = case(untied("unified"), "f32")
    checkpoint = models.Checkpoint(
        compiled.package,
        models.UNTIED[untied("unified")],
        models.random_weights(models.UNTIED[untied("unified")]),
        "float32",
    )
    stored = packages.dequantised_weights(compiled.package, checkpoint, "f32")
    for name in ("embed_tokens.weight", "lm_head.weight"):
        np.testing.assert_array_equal(stored[name], checkpoint.weights[name])
    assert not np.array_equal(stored["embed_tokens.weight"], stored["lm_head.weight"])
