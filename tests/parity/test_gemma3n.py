"""Gemma 3n's text next to transformers: the NumPy reference, and compiled packages."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.gemma3n import reference
from gemma4_compile.runtime import Engine
from gemma4_compile.verification.transformer import run_transformers, text_config
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


@pytest.mark.parametrize("kind", ["3n e2b", "3n odd"])
def test_verification_s_streamed_model_equals_the_whole(kind: str) -> None:
    """Residual streams are those of the active stream, as a library with probes returns them."""
    text = gemma3n.KINDS[kind]
    weights = models.random_weights(text, dtype="bfloat16")

    def read(name: str, begin: int, end: int) -> np.ndarray:
        return weights[name][begin:end]

    ids, rows = models.prompt(30), [0, 7, 29]
    values = models.config_file(text, "hub", "bfloat16")
    shapes = {name: each.shape for name, each in weights.items()}
    run = run_transformers(text_config(values), "bfloat16", read, shapes, ids.tolist(), rows)
    truth = hf.logits(hf.load(text, weights, "bfloat16"), ids)
    np.testing.assert_allclose(run.logits, truth[rows], rtol=0, atol=tolerances.LOGITS_F32)
    states = reference.forward(Gemma4Config.from_dict(values), weights, ids).hidden_states
    for found, expected in zip(run.hidden, states, strict=True):
        bound = tolerances.HIDDEN_F32_RELATIVE * float(np.abs(expected).max())
        np.testing.assert_allclose(found, expected[rows], rtol=0, atol=bound)


# The odd one's widths are no multiples of a group.
RECIPES = slow_unless(
    lambda kind, recipe: (kind, recipe) in {("3n odd", "f32"), ("3n e2b", "q4f16")},
    [
        *((kind, "f32") for kind in gemma3n.KINDS),
        *(("3n e2b", "q4f16"), ("3n e4b", "q8f16"), ("3n e4b", "q4f16m"), ("3n e2b", "q4kf16m")),
    ],
)


def test_rows_from_the_host_are_the_same_also_of_tokens_that_the_table_lacks(
    case: CaseFactory,
) -> None:
    package = case("3n e2b", "q4f16").package
    ids = [2, 239, 240, 255, *models.prompt(9)[1:].tolist()]
    device, host = (Engine.open(package, ple=place) for place in ("gpu", "host"))
    np.testing.assert_array_equal(device.prefill(ids), host.prefill(ids))
    for token in (255, 60):
        np.testing.assert_array_equal(device.decode(token), host.decode(token))


@pytest.mark.parametrize(("kind", "recipe"), RECIPES)
def test_two_turns_in_chunks(case: CaseFactory, kind: str, recipe: str) -> None:
    run_two_turns(case(kind, recipe))
