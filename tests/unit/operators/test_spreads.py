"""Values of the self-test's inputs: within their bounds, and by the operators' own words."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.device_check.known_inputs import KnownInput
from gemma4_compile.operators.attention import DecodeAttention
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.sampling import SampleTopP
from gemma4_compile.operators.spreads import (
    BYTES_BELOW_255,
    LSE,
    WORDS,
    Spread,
    around_zero,
    from_to_twice,
    spreads_of,
)

SIZES = Sizes(rows=5, before=7, capacity=32, chunk=8)
BYTES = Linear(1, WeightLayout(8, "float16", 32, 64, (32,)), "float16")
DECODE = DecodeAttention(1, 4, 2, 32, None, "float32", None, splits=2)
SAMPLE = SampleTopP(3000)


def values_of(*spreads: Spread, dtype: str = "float32") -> np.ndarray:
    return KnownInput(dtype, (4000,), spreads, seed=3).array()


@pytest.mark.parametrize("size", [2.0**-8, 1.0, 16.0])
def test_floats_fill_their_range(size: float) -> None:
    symmetric, positive = values_of(around_zero(size)), values_of(from_to_twice(size))
    assert -size <= symmetric.min() < -0.99 * size
    assert 0.99 * size < symmetric.max() < size
    assert size <= positive.min() < 1.01 * size
    assert 1.99 * size < positive.max() < 2 * size


def test_maxima_and_sums_of_splits_take_turns() -> None:
    values = values_of(*LSE)
    assert values[::2].min() < -7
    assert values[1::2].min() >= 1


@pytest.mark.parametrize(
    ("operator", "name", "dtype", "expected"),
    [
        (BYTES, "q_weight", "uint32", (BYTES_BELOW_255,)),
        (BYTES, "x", "float16", spreads_of("x", "float16")),
        (BYTES, "q_scale", "float16", (from_to_twice(2.0**-8),)),
        (DECODE, "split_lse", "float32", LSE),
        (DECODE, "k_norm", "float32", (around_zero(2.0),)),
        (SAMPLE, "logits", "float32", (around_zero(16.0),)),
        (SAMPLE, "packed", "uint32", (WORDS,)),
    ],
)
def test_an_operator_says_what_it_needs(
    operator: Operator, name: str, dtype: str, expected: tuple[Spread, ...]
) -> None:
    assert operator.known_spreads(name, dtype) == expected


def test_probabilities_sum_to_about_one() -> None:
    values = values_of(*SAMPLE.known_spreads("probs", "float32"))
    assert 0.25 < values.mean() * 3000 < 1.0


def test_what_no_spread_gives_is_given_whole() -> None:
    positions = DECODE.known_data("positions", (4,), SIZES)
    assert positions is not None
    assert positions.tolist() == [7, 1, 8, 0]
    temperature = SAMPLE.known_data("temperature", (1,), SIZES)
    assert temperature is not None
    assert temperature.tolist() == [0.75]
    assert DECODE.known_data("q", (1, 128), SIZES) is None
