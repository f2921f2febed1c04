"""Scales that weights may carry, and the words that recipes and checkpoints are read by."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gemma4_compile.model_spec.parameters import (
    Arrangement,
    Parameter,
    Role,
    Source,
    folded_scale,
    is_power_of_two,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (16.0, True),
        (0.5, True),
        (1.0, True),
        (2.0**-126, True),
        (39.25, False),
        (3.0, False),
        (0.0, False),
        (-2.0, False),
    ],
)
def test_only_powers_of_two_are_folded(value: float, expected: bool) -> None:
    assert is_power_of_two(value) == expected
    assert folded_scale(value) == (value if expected else 1.0)


@pytest.mark.parametrize("scale", [math.sqrt(256), math.sqrt(1536), 2.0**-0.5, 8.0])
def test_a_folded_scale_changes_no_weight(scale: float) -> None:
    weights = np.random.default_rng(0).normal(size=64).astype(np.float16)
    folded = np.float16(folded_scale(scale))
    np.testing.assert_array_equal((weights * folded) / folded, weights)


def test_a_parameter_is_one_tensor_as_it_is_unless_it_says_otherwise() -> None:
    parameter = Parameter("norm", Role.VECTOR, (4,), (Source("norm.weight", (4,)),))
    assert parameter.arrangement is Arrangement.COPY
    assert (parameter.scale, parameter.row_group) == (1.0, 1)
