"""The search of scales and minima next to its definition in NumPy, and what it reaches."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.operators.packings import NIBBLES
from gemma4_compile.quantization.minima_search import search_minima
from tests.unit.quantization.searched_groups import Array
from tests.unit.quantization.searched_minima import search
from tests.unit.quantization.test_group_search import drawn

COUNT = 200  # groups: no whole number of those that are searched side by side


def values(weights: Array) -> Array:
    found = search_minima(weights)
    sizes = found.sizes.reshape(-1, 2) * np.repeat(found.units, 8, axis=0)
    codes = NIBBLES.unpack(found.words).astype(np.float32)
    meant: Array = codes * sizes[:, :1] - sizes[:, 1:]
    return meant


@pytest.mark.parametrize(
    "kind",
    ["normal", "heavy tails", "sparse", "one sign", "one outlier", "near few levels", "all sizes"],
)
def test_it_is_what_its_definition_says(kind: str) -> None:
    weights = drawn(kind)[:COUNT]
    weights[9] = -abs(weights[9])  # below 0 altogether: a minimum alone, where codes are equal
    weights[10] = weights[9, 0]
    found = search_minima(weights)
    units, scales, minima, codes = search(weights)
    assert np.array_equal(found.units, units)
    assert np.array_equal(found.sizes.reshape(-1, 2), np.stack([scales, minima], axis=1))
    assert np.array_equal(NIBBLES.unpack(found.words), codes)


@pytest.mark.parametrize(("kind", "reached"), [("normal", 0.0712), ("laplace", 0.0840)])
def test_its_error_is_below_that_of_a_scale_alone(kind: str, reached: float) -> None:
    """What it reached (7.08 and 8.33 %) and half a percent more; a scale alone has 8.1 and 10.2."""
    weights = drawn(kind)[16:2000].astype(np.float32)
    error = np.linalg.norm(values(weights) - weights) / np.linalg.norm(weights)
    assert error < reached


def test_a_group_within_the_units_of_its_block_is_nearly_exact() -> None:
    """Codes of all 16 values on a scale and a minimum that a block's units hold."""
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 16, (64, 32))
    codes[:, :2] = 0, 15
    weights = (codes * 0.5 - 3.5).astype(np.float32)
    # Half of a unit of the scale, 15 times, and half of one of the minimum; d and e in bfloat16.
    most = (15 * 0.5 + 3.5) * (0.5 / 63 + 2.0**-8)
    assert np.abs(values(weights) - weights).max() <= most


def test_zeros_stay_zeros() -> None:
    weights = np.zeros((24, 32), np.float32)
    assert not values(weights).any()
    weights[0] = 1
    weights[8] = 2.0**-101
    found = values(weights)
    assert not found[1:].any()
    assert np.abs(found[0] - 1).max() <= 2.0**-6
