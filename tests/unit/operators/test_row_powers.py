"""Powers of two of packed rows, by the operator that stores rows over them."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.operators.halved_rows import HalveRows
from gemma4_compile.operators.rows import CHUNK
from tests.numerics.definitions import run

LARGEST = [1e-20, 0.75, 1.0, 1.5, 2.0**100, 0.0]
WIDTH = 64


@pytest.mark.parametrize("interleaved", [True, False])
def test_rows_are_stored_over_the_power_of_two_below_their_largest_scale(interleaved: bool) -> None:
    scales = np.array([[1.0, 0.3]], np.float32) * np.array(LARGEST, np.float32)[:, None]
    rng = np.random.default_rng(0)
    channels = rng.integers(-127, 128, (len(LARGEST), WIDTH), np.int8)
    halves = np.zeros((len(LARGEST), WIDTH), np.float16)
    powers = np.zeros((len(LARGEST), 1), np.float32)

    run(HalveRows(CHUNK, WIDTH, interleaved), channels.view(np.uint32), scales, halves, powers)

    of_two = 2.0 ** np.floor(np.log2(np.array(LARGEST[:-1])))
    np.testing.assert_array_equal(powers[:, 0], [*of_two, 0.0])
    in_order = channels.reshape(-1, WIDTH // 4, 4)[:, :, [0, 2, 1, 3]].reshape(channels.shape)
    expected = in_order * np.repeat(scales.astype(np.float64), 32, axis=1)
    found = halves.astype(np.float64) * powers
    np.testing.assert_allclose(found, expected, rtol=2.0**-10)
