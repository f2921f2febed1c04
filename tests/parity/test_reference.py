"""The NumPy reference against transformers: every later comparison stands on this one."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text import reference
from tests import hf, models, tolerances
from tests.marks import slow_unless
from tests.models import Form

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(
    ("form", "dtype"),
    slow_unless(
        lambda form, dtype: (form == "hub") == (dtype == "bfloat16"),
        product(("hub", "transformers"), ("float32", "bfloat16")),
    ),
)
@pytest.mark.parametrize("kind", [*models.KINDS, *models.UNTIED])
def test_logits_and_every_layer_equal_transformers(kind: str, form: Form, dtype: str) -> None:
    text = models.ALL[kind]
    config = Gemma4Config.from_dict(models.config_file(text, form, dtype))
    weights = models.random_weights(text, dtype=dtype)
    ids = models.prompt(4 * text["sliding_window"])

    result = reference.forward(config, weights, ids)

    truth = hf.load(text, weights, dtype)
    for ours, theirs in zip(result.hidden_states[:-1], hf.hidden_states(truth, ids), strict=True):
        largest = float(np.abs(theirs).max())
        bound = tolerances.HIDDEN_F32_RELATIVE * largest
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound)
    np.testing.assert_allclose(
        result.logits, hf.logits(truth, ids), rtol=0, atol=tolerances.LOGITS_F32
    )


@pytest.mark.parametrize("kind", models.KINDS)
def test_residuals_of_1e5_stay_finite_and_equal(kind: str) -> None:
    text = models.KINDS[kind]
    config = Gemma4Config.from_dict(models.config_file(text, "hub", "float32"))
    weights = models.random_weights(text, residual_scale=1e5)
    ids = models.prompt(3 * text["sliding_window"])

    result = reference.forward(config, weights, ids)

    assert max(float(np.abs(state).max()) for state in result.hidden_states) > 1e5
    np.testing.assert_allclose(
        result.logits,
        hf.logits(hf.load(text, weights, "float32"), ids),
        rtol=0,
        atol=tolerances.LOGITS_F32,
    )


def test_written_checkpoints_load_into_transformers_strictly(tmp_path: Path) -> None:
    from transformers import (
        Gemma4ForCausalLM,
        Gemma4ForConditionalGeneration,
        PreTrainedModel,
    )

    loaders: dict[models.Form, type[PreTrainedModel]] = {
        "hub": Gemma4ForConditionalGeneration,
        "transformers": Gemma4ForCausalLM,
    }
    for kind, text in models.KINDS.items():
        for form, loader in loaders.items():
            folder = models.write_checkpoint(tmp_path / kind / form, text, form=form).path
            # With its report the model comes as a pair, which the annotation leaves out.
            loaded: Any = loader.from_pretrained(folder, output_loading_info=True)
            _, report = loaded
            assert not report["unexpected_keys"]
            assert not report["mismatched_keys"]
            assert set(report["missing_keys"]) <= {"lm_head.weight"}
