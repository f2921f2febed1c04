"""The generator's values; tests/web/test_known_answers.py compares them with the browser's."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.device_check.known_inputs import (
    PERIOD,
    SAMPLES,
    KnownInput,
    hashes,
    sample_positions,
)
from gemma4_compile.operators.spreads import (
    BYTES_BELOW_255,
    WORDS,
    Spread,
    around_zero,
    from_to_twice,
)


def test_hashes_are_those_of_the_first_version() -> None:
    """Libraries that were compiled before are tested by later browser modules."""
    assert [hex(value) for value in hashes(0, 3)] == ["0x0", "0x6d523710", "0xac34cded"]
    assert [hex(value) for value in hashes(7, 2)] == ["0x20c6bb84", "0xcf5e494b"]


def test_hashes_are_spread() -> None:
    values = hashes(3, 1 << 14)
    assert len(np.unique(values)) > 0.99 * values.size
    bits = np.unpackbits(values.view(np.uint8)).reshape(-1, 32)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.02


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("size", [2.0**-4, 1.0, 16.0])
def test_floats_are_exact_and_cover_their_range(dtype: str, size: float) -> None:
    values = KnownInput(dtype, (4000,), (around_zero(size),), seed=5).array()
    assert values.dtype == dtype
    exact = values.astype(np.float64) / (size * 2.0**-10)
    assert np.array_equal(exact, np.rint(exact))
    assert -size <= values.min() < -0.9 * size
    assert 0.9 * size < values.max() < size


def test_scales_are_positive() -> None:
    values = KnownInput("float16", (1000,), (from_to_twice(2.0**-8),), seed=1).array()
    assert 2.0**-8 <= values.min() < values.max() < 2.0**-7


def test_bytes_of_8_bit_weights_are_below_255() -> None:
    words = KnownInput("uint32", (4000,), (BYTES_BELOW_255,), seed=1).array()
    assert words.view(np.uint8).max() == 254
    assert KnownInput("uint32", (4000,), (WORDS,), seed=1).array().view(np.uint8).max() == 255


def test_spreads_take_turns() -> None:
    spreads = (around_zero(8.0), from_to_twice(1.0))
    pairs = KnownInput("float32", (PERIOD, 2), spreads, seed=2).array()
    assert pairs[:, 0].min() < 0
    assert pairs[:, 1].min() >= 1


def test_long_buffers_repeat_but_their_rows_differ() -> None:
    matrix = KnownInput("uint32", (600, 256), (WORDS,), seed=4).array()
    flat = matrix.reshape(-1)
    assert np.array_equal(flat[PERIOD : 2 * PERIOD], flat[:PERIOD])
    assert len(np.unique(matrix, axis=0)) == 600


def test_samples_lie_in_runs_of_their_own() -> None:
    for first, count in ((0, 64), (100, 65), (7, 4096), (3, 100_003)):
        positions = sample_positions(first, count)
        assert len(positions) == SAMPLES
        assert list(positions) == sorted(set(positions))
        assert first <= positions[0]
        assert positions[-1] < first + count
    assert list(sample_positions(5, 3)) == [5, 6, 7]
    columns = {position % 128 for position in sample_positions(0, 128 * 640)}
    assert len(columns) > 20, "samples of one column would miss what other threads write"


def test_json_describes_what_the_array_is_made_of() -> None:
    spread = Spread(20, 0, 1)
    assert KnownInput("int32", (2, 3), (spread,), seed=9).to_json() == {
        "dtype": "int32",
        "count": 6,
        "seed": 9,
        "spreads": [{"bits": 20, "offset": 0, "step": 1}],
    }
    assert KnownInput("int32", (4,), data=(1, 2, 3, 0)).to_json() == {
        "dtype": "int32",
        "count": 4,
        "data": "AQAAAAIAAAADAAAAAAAAAA==",
    }
