"""Masses of probabilities, also of rows without any."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.device_check.definitions import run
from gemma4_compile.operators.draws import BINS, MASS_BITS, DrawProbs

VOCAB, BLOCKS, ROWS = 4096, 4, 2
PROBS = DrawProbs(VOCAB, BLOCKS)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_without_numbers_has_no_probability(value: float) -> None:
    """And no bin: that of a NaN would lie behind the last."""
    logits = np.zeros((1, ROWS, VOCAB), np.float32)
    logits[0, 0] = value
    partials = np.array([[0.0, VOCAB / BLOCKS]] * BLOCKS, np.float32)
    none = np.array([[np.fmax(value, -1e30), 0.0]] * BLOCKS, np.float32)
    masses, probs = np.zeros((ROWS, BINS), np.int64), np.ones((ROWS, VOCAB), np.float32)

    run(PROBS, logits, np.ones(1, np.float32), np.stack([none, partials]), masses, probs)

    assert (probs[0] == 0).all()
    assert (probs[1] == 1 / VOCAB).all()
    assert (masses[0] == 0).all()
    assert masses[1].sum() == 2**MASS_BITS
