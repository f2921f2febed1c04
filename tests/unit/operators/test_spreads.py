"""Values of the self-test's inputs: within their bounds, and by the operators' own words."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.device_check.known_inputs import KnownInput
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.padded_rows import PADDING, KeptRows, ShiftedRotary
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.operators.sampling import SampleTopP
from gemma4_compile.operators.split_attention import NormedQuery, SplitAttention
from gemma4_compile.operators.spreads import (
    BYTES_BELOW_255,
    LSE,
    WEIGHT_SCALES,
    WORDS,
    Spread,
    around_zero,
    from_to_twice,
    near,
    spreads_of,
)

SIZES = Sizes(rows=5, before=7, capacity=32, chunk=8)
BYTES = Linear(ONE, WeightLayout(8, "float16", 32, 64, (32,)), "float16")
DECODE = SplitAttention(ONE, 4, 2, 32, None, "float32", None, splits=2, query=NormedQuery())
SAMPLE = SampleTopP(3000)
KEPT = KeptRows(CHUNK, 64, "float16")
SHIFTED = ShiftedRotary(CHUNK, 8)


def values_of(*spreads: Spread, dtype: str = "float32") -> np.ndarray:
    return KnownInput(dtype, (4000,), spreads, seed=3).array()


@pytest.mark.parametrize("size", [2.0**-8, 1.0, 16.0])
def test_floats_fill_their_range(size: float) -> None:
    symmetric, positive = values_of(around_zero(size)), values_of(from_to_twice(size))
    assert -size <= symmetric.min() < -0.99 * size
    assert 0.99 * size < symmetric.max() < size
    assert size <= positive.min() < 1.01 * size
    assert 1.99 * size < positive.max() < 2 * size


def test_scales_of_groups_have_both_signs() -> None:
    values = values_of(*WEIGHT_SCALES, dtype="float16")
    assert 2.0**-8 <= values[::2].min() < values[::2].max() < 2.0**-7
    assert (np.abs(values[1::2]) >= 2.0**-8).all()
    assert (values[1::2] < 0).all()


@pytest.mark.parametrize("value", [3e38, 1.0, 0.1])
def test_a_number_and_its_neighbour(value: float) -> None:
    values = np.unique(values_of(near(value)))
    own = np.float32(value)
    assert values.tolist() == [own, np.nextafter(own, np.float32(np.inf))]


def test_maxima_and_sums_of_splits_take_turns() -> None:
    values = values_of(*LSE)
    assert values[::2].min() < -7
    assert values[1::2].min() >= 1


@pytest.mark.parametrize(
    ("operator", "name", "dtype", "expected"),
    [
        (BYTES, "q_weight", "uint32", (BYTES_BELOW_255,)),
        (BYTES, "x", "float16", spreads_of("x", "float16")),
        (BYTES, "q_scale", "float16", WEIGHT_SCALES),
        (BYTES, "scales", "float32", (from_to_twice(2.0**-8),)),
        (DECODE, "split_lse", "float32", LSE),
        (DECODE, "k_norm", "float32", (around_zero(2.0),)),
        (SAMPLE, "logits", "float32", (around_zero(16.0),)),
        (SAMPLE, "packed", "uint32", (WORDS,)),
        (KEPT, "embeddings", "float32", (near(PADDING),)),
        (SHIFTED, "rotary", "float32", spreads_of("rotary", "float32")),
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


def test_kept_positions_are_behind_the_client_s() -> None:
    found = {
        name: SHIFTED.known_data(name, (4,), SIZES) for name in ("positions", "kept_positions")
    }
    positions, kept = found["positions"], found["kept_positions"]
    assert positions is not None
    assert kept is not None
    assert kept.tolist() == [7, 5, 12, 0]
    assert positions[0] - kept[0] == positions[2] - kept[2] > 2**16
    assert SHIFTED.known_data("shifts", (17, 8, 2), SIZES) is None


def test_counts_of_padding_carry_and_turns_keep_lengths() -> None:
    digits = values_of(*KEPT.known_spreads("padding", "float16"), dtype="float16")
    assert set(digits[1::2]) == {1020, 1021, 1022, 1023}
    assert set(digits[::2]) == set(range(128))
    turns = values_of(*SHIFTED.known_spreads("shifts", "float32")).reshape(-1, 2)
    lengths = np.hypot(*turns.T)
    assert 0.7 < lengths.min() < lengths.max() < 1.2
