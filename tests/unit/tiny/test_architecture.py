from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.tiny.architecture import tensor_shapes
from tests import models
from tests.random_values import bell_curve, random_tensor


@pytest.mark.parametrize("kind", models.KINDS)
def test_shapes_are_what_the_parameter_table_reads(kind: str) -> None:
    text = models.KINDS[kind]
    config = Gemma4Config.from_dict(models.config_file(text, "hub", "float32"))
    sources = {
        source.name: source.shape
        for parameter in parameter_table(config)
        for source in parameter.sources
    }
    assert tensor_shapes(text) == dict(sorted(sources.items()))


def test_values_have_mean_0_and_variance_1() -> None:
    values = bell_curve("x", 0, 100_000)
    assert abs(values.mean()) < 4 / np.sqrt(100_000)
    assert abs(values.var() - 1) < 0.02
    assert np.abs(values).max() <= 2 * np.sqrt(3)


def test_values_depend_on_name_and_seed() -> None:
    one, other, later = (
        random_tensor(name, (4, 8), seed) for name, seed in (("a", 0), ("b", 0), ("a", 1))
    )
    assert not (one == other).any()
    assert not (one == later).any()
    np.testing.assert_array_equal(one, random_tensor("a", (4, 8), 0))
