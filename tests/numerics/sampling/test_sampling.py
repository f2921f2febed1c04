"""Sampling operators against plain NumPy: exact nuclei, exact masks, drawn frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.operators.sampling import (
    BIN_SHIFT,
    BINS,
    RUN,
    Bitmask,
    LogitBias,
    Penalty,
    SampleTopP,
    SoftmaxPartials,
    SoftmaxProbs,
    TopPHistogram,
)
from tests.marks import slow_unless
from tests.numerics.definitions import F32_RELATIVE, run, values

VOCAB = 320
Float32Array = npt.NDArray[np.float32]


def softmax(logits: Float32Array, temperature: float, blocks: int) -> Float32Array:
    count = logits.shape[1]
    partials = np.zeros((count, blocks, 2), np.float32)
    probs = np.zeros_like(logits)
    degrees, rows = np.array([temperature], np.float32), ONE if count == 1 else CHUNK
    run(SoftmaxPartials(VOCAB, blocks, rows), logits, degrees, partials)
    run(SoftmaxProbs(VOCAB, blocks, rows), logits, degrees, partials, probs)
    return probs


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("blocks", [1, 7, 64])
@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0])
def test_softmax(temperature: float, blocks: int, rows: int) -> None:
    logits = values(1, 1, rows, VOCAB, deviation=8.0)

    probs = softmax(logits, temperature, blocks)

    scaled = logits.astype(np.float64) / temperature
    expected = np.exp(scaled - scaled.max(axis=2, keepdims=True))
    expected /= expected.sum(axis=2, keepdims=True)
    # The exponent is rounded to float32: up to 80 / temperature at 2**-24 of itself. A weight below
    # exp(-80) counts as 0.
    relative = F32_RELATIVE + 80.0 / temperature * 2.0**-23
    np.testing.assert_allclose(probs, expected, rtol=relative, atol=np.exp(-80.0))


def test_temperature_zero_of_the_client_puts_all_mass_on_the_best() -> None:
    logits = values(1, 1, 1, VOCAB, deviation=8.0)

    probs = softmax(logits, 1e-6, 16)

    assert probs.argmax() == logits.argmax()
    assert probs.max() == 1.0


def empty(operator: TopPHistogram, rows: int) -> list[npt.NDArray[Any]]:
    """Arrays for what histograms hold."""
    specs = operator.results_of(rows)
    return [np.zeros([int(extent) for extent in shape], dtype) for shape, dtype in specs]


def histogram(probs: Float32Array) -> list[npt.NDArray[Any]]:
    """What the rows' histograms hold."""
    operator = TopPHistogram(probs.shape[1], CHUNK if len(probs) > 1 else ONE)
    found = empty(operator, len(probs))
    run(operator, probs, *found)
    return found


@pytest.mark.parametrize("vocab", [320, RUN, 2 * RUN + 32])
def test_histogram(vocab: int) -> None:
    weights = np.exp(values(7, 1, vocab, deviation=9.0))
    weights[0, ::9] = weights[0, 3]  # equal ones
    probs = (weights / weights.sum()).astype(np.float32)

    ordered, sums, counts, masses = (array[0] for array in histogram(probs))

    padded = np.zeros(ordered.size, np.float32)
    padded[:vocab] = probs[0]
    runs = padded.reshape(ordered.shape)
    np.testing.assert_array_equal(ordered, -np.sort(-runs, axis=1))
    np.testing.assert_allclose(sums, np.cumsum(ordered, axis=1, dtype=np.float64), rtol=1e-5)
    edges = (np.arange(BINS, dtype=np.int32) << BIN_SHIFT).view(np.float32)
    above = runs[:, None, :] >= edges[None, :, None]
    np.testing.assert_array_equal(counts, above.sum(axis=2))
    exact = (runs[:, None, :] * above).sum(axis=2, dtype=np.float64)
    np.testing.assert_allclose(masses, exact, rtol=1e-5)


def test_rows_have_histograms_of_their_own() -> None:
    weights = np.exp(values(8, 3, 2 * RUN + 32, deviation=9.0))
    probs = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)

    together = histogram(probs)

    for row in range(len(probs)):
        for whole, own in zip(together, histogram(probs[row : row + 1]), strict=True):
            np.testing.assert_array_equal(whole[row], own[0])


def sample_rows(probs: Float32Array, uniforms: list[float], top_p: float) -> list[int]:
    tokens = np.full(len(probs), -1, np.int32)
    numbers = (np.array(each, np.float32) for each in (uniforms, [top_p]))
    operator = SampleTopP(probs.shape[1], CHUNK if len(probs) > 1 else ONE)
    # The definition does not look at a histogram.
    unread = empty(operator.histogram, len(probs))
    run(operator, probs, *unread, *numbers, tokens)
    return tokens.tolist()


def sample(probs: Float32Array, uniform: float, top_p: float) -> int:
    (token,) = sample_rows(probs, [uniform], top_p)
    return token


def top_p_set(probs: Float32Array, top_p: float) -> dict[int, float]:
    """The smallest set of most probable tokens that reaches top_p, by sorting, renormalised."""
    order = np.argsort(-probs[0], kind="stable")
    mass = np.cumsum(probs[0][order].astype(np.float64))
    kept = order[: int(np.searchsorted(mass, min(top_p, mass[-1]))) + 1]
    total = probs[0][kept].astype(np.float64).sum()
    return {int(token): float(probs[0, token] / total) for token in kept}


@pytest.mark.parametrize("top_p", slow_unless((0.9).__eq__, [0.3, 0.9, 0.95]))
def test_each_token_of_the_top_p_set_is_sampled_as_often_as_it_is_probable(
    top_p: float,
) -> None:
    probs = softmax(values(5, 1, 1, VOCAB, deviation=3.0), 1.0, 1)[0]
    expected = top_p_set(probs, top_p)
    steps = 2000

    # An even grid of uniforms turns each probability into an interval's length: no statistics.
    drawn = [sample(probs, (step + 0.5) / steps, top_p) for step in range(steps)]

    assert set(drawn) <= set(expected)
    for token, probability in expected.items():
        assert abs(drawn.count(token) / steps - probability) <= 1.01 / steps


def test_each_row_is_drawn_from_its_own_probabilities_with_its_own_number() -> None:
    probs = softmax(values(4, 1, 5, VOCAB, deviation=2.0), 1.0, 7)[0]
    uniforms = [0.9, 0.05, 0.5, 0.05, 0.7]

    drawn = sample_rows(probs, uniforms, 0.9)

    rows = zip(probs, uniforms, strict=True)
    assert drawn == [sample(row[None], uniform, 0.9) for row, uniform in rows]
    assert len(set(drawn)) > 1


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0 - 2.0**-24])
def test_top_p_of_zero_takes_the_best_token(uniform: float) -> None:
    probs = softmax(values(6, 1, 1, VOCAB, deviation=2.0), 1.0, 1)[0]

    assert sample(probs, uniform, 0.0) == probs.argmax()


def test_of_equal_tokens_only_as_many_belong_as_are_needed() -> None:
    probs = np.full((1, 8), 0.125, np.float32)

    drawn = {sample(probs, (step + 0.5) / 64, 0.5) for step in range(64)}

    assert drawn == {0, 1, 2, 3}


def test_tokens_without_probability_are_never_drawn() -> None:
    probs = np.zeros((1, 64), np.float32)
    probs[0, [3, 40]] = 0.5

    for uniform in (0.0, 0.25, 0.75, 1.0 - 2.0**-24):
        assert sample(probs, uniform, 1.0) in (3, 40)


# --- In-place changes of logits ---


def test_logit_bias_is_added_to_its_tokens() -> None:
    logits = values(1, 1, VOCAB)
    tokens, bias = np.array([5, 319], np.int32), np.array([2.5, -100.0], np.float32)
    expected = logits.copy()
    expected[0, tokens] += bias

    run(LogitBias(VOCAB), logits, np.zeros(2, np.int32), tokens, bias)

    np.testing.assert_array_equal(logits, expected)


def test_penalties_push_generated_tokens_down() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, :3] = [4.0, -4.0, 1.0]
    tokens, counts = np.array([0, 1], np.int32), np.array([2, 3], np.int32)
    presence, frequency, repetition = 0.5, 0.25, 2.0

    run(
        Penalty(VOCAB),
        logits,
        np.zeros(1, np.int32),
        np.zeros(2, np.int32),
        tokens,
        counts,
        np.array([[presence, frequency, repetition]], np.float32),
    )

    np.testing.assert_array_equal(logits[0, :3], [(4 - 1.0) / 2, (-4 - 1.25) * 2, 1.0])


def test_bitmask_forbids_every_token_whose_bit_is_zero() -> None:
    logits = values(1, 1, VOCAB)
    words = np.random.default_rng(2).integers(0, 2**32, (1, VOCAB // 32), dtype=np.uint32)
    allowed = np.unpackbits(words.view(np.uint8), bitorder="little")[:VOCAB].astype(bool)
    kept = logits[0, allowed].copy()

    run(Bitmask(VOCAB), logits, np.zeros(1, np.int32), words.view(np.int32))

    np.testing.assert_array_equal(logits[0, allowed], kept)
    assert (logits[0, ~allowed] < -1e29).all()
    assert np.isfinite(logits / np.float32(1e-6)).all()
