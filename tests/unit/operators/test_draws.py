"""Masses of probabilities: of rows without any, and how far those of right kernels may differ."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.device_check.comparison import allowed_error
from gemma4_compile.device_check.definitions import run
from gemma4_compile.operators.draws import BIN_SHIFT, BINS, MASS_BITS, DrawProbs
from gemma4_compile.operators.examples import Sizes

VOCAB, BLOCKS, ROWS = 4096, 4, 2
PROBS = DrawProbs(VOCAB, BLOCKS)
SIZES = Sizes(ROWS, 0, 8, 8)
Float32Array = npt.NDArray[np.float32]
Masses = npt.NDArray[np.int64]


def masses_of(probs: Float32Array, bins: Float32Array) -> Masses:
    """Masses of each row of probabilities, summed up by the bins of others."""
    masses = np.zeros((len(probs), BINS), np.int64)
    for row, own, place in zip(masses, probs, bins, strict=True):
        parts = (own.astype(np.float64) * 2.0**MASS_BITS).astype(np.int64)
        np.add.at(row, place.view(np.int32) >> BIN_SHIFT, parts)
    return masses


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


def computed() -> tuple[Float32Array, Masses, Masses]:
    """Probabilities and masses of the example, and what the masses began with."""
    args = PROBS.example_inputs(np.random.default_rng(0), SIZES)
    before = np.array(args[3])
    run(PROBS, *args)
    return np.asarray(args[4]), np.asarray(args[3]), before


def test_masses_may_differ_as_probabilities_do() -> None:
    """Whose last bits are others where exponentials are rounded in another way."""
    probs, masses, before = computed()
    moved = (probs.view(np.int32) + np.random.default_rng(1).integers(-64, 65, probs.shape)).astype(
        np.int32
    )
    error = np.abs(before + masses_of(moved.view(np.float32), moved.view(np.float32)) - masses)

    assert error.max() > 0
    assert (error <= allowed_error(PROBS, masses, "masses")).all()


def test_a_token_that_is_missing_is_found() -> None:
    probs, masses, before = computed()
    for row in range(ROWS):
        less = probs.copy()
        less[row, np.sort(np.argsort(probs[row])[-100:])[0]] = 0
        error = np.abs(before + masses_of(less, probs) - masses)
        assert (error > allowed_error(PROBS, masses, "masses")).any()
