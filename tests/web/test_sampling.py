"""The sampling functions that the client calls, on WebGPU, against the exact distributions."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from tests.web.compiled import TINY, Compiler
from tests.web.dawn import DawnRun, Float32Array, Step, VulkanDriver, run_on_dawn

pytestmark = pytest.mark.dawn

VOCABULARY = 1024
DRAWS = 300
# A probability is a quotient of float32 sums over the vocabulary.
PROBABILITY_RELATIVE = 1e-4
FALSE_ALARM = 1e-4  # of the chi-square test; the draws are seeded, so it holds or not for good

NUCLEI = {
    "narrow": (0.3, 1.0),
    "usual": (0.95, 1.0),
    "hot": (0.9, 2.5),
    "cold": (0.95, 0.3),
    "everything": (1.0, 1.0),
}


def _logits(seed: int = 0) -> Float32Array:
    return np.random.default_rng(seed).normal(0.0, 2.5, VOCABULARY).astype(np.float32)


def _softmax(logits: Float32Array, temperature: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return np.asarray(weights / weights.sum())


def _top_p(logits: Float32Array, temperature: float, top_p: float) -> dict[int, float]:
    """The fewest most probable tokens whose mass reaches top_p; probabilities that sum to 1."""
    probabilities = _softmax(logits, temperature)
    order = np.argsort(-probabilities, kind="stable")
    count = int(np.searchsorted(np.cumsum(probabilities[order]), top_p)) + 1
    chosen = order[:count]
    return dict(
        zip(chosen.tolist(), (probabilities[chosen] / probabilities[chosen].sum()), strict=True)
    )


def _bins(exact: dict[int, float]) -> list[list[int]]:
    """Tokens together until their bin expects five draws or more, as the chi-square test needs."""
    bins: list[list[int]] = [[]]
    for token in exact:
        if sum(exact[member] for member in bins[-1]) * DRAWS >= 5:
            bins.append([])
        bins[-1].append(token)
    if len(bins) > 1 and sum(exact[member] for member in bins[-1]) * DRAWS < 5:
        bins[-2] += bins.pop()
    return bins


def _chi_square_limit(degrees: int) -> float:
    """Value that a chi-square variable exceeds with FALSE_ALARM (Wilson and Hilferty, 1931)."""
    z = NormalDist().inv_cdf(1 - FALSE_ALARM)
    part = 2 / (9 * degrees)
    return degrees * float(1 - part + z * part**0.5) ** 3


def _sample(logits: str, temperature: float, top_p: float, uniforms: Any) -> Step:
    numbers = np.asarray(uniforms, np.float32).tolist()
    return {
        "op": "sample",
        "logits": logits,
        "temperature": temperature,
        "topP": top_p,
        "uniforms": numbers,
    }


BELOW_ONE = float(np.nextafter(np.float32(1), np.float32(0)))
ALLOWED = np.random.default_rng(6).random(VOCABULARY) < 0.1
NAMED = [3, 0, 1023, 500]
COUNTS = [1, 4, 2, 1]
BIASES = [1.5, -100.0, 0.25, 7.0]
PRESENCE, FREQUENCY, REPETITION = 0.7, 0.3, 1.3
_ZEROS = ["int32", [4], [0] * 4]
_TOKENS = ["int32", [4], NAMED]
_MASK = np.packbits(ALLOWED, bitorder="little").view(np.int32).tolist()

LOGITS = {
    "top-p": _logits(),
    "grid": _logits(seed=2),
    "cold": _logits(seed=3),
    "edges": _logits(seed=4),
    "equal": np.zeros(VOCABULARY, np.float32),
    "free": _logits(seed=5),
    "given": _logits(seed=8),
}
GRID = (np.arange(DRAWS) + 0.5) / DRAWS
RANDOM = np.random.default_rng(1).random(DRAWS)


def _adjust(function: str, logits: str, inputs: list[Any], save: str) -> Step:
    return {
        "op": "adjust",
        "function": function,
        "logits": logits,
        "inputs": inputs,
        "save": save,
    }


STEPS: dict[str, Step] = {
    **{
        name: {**_sample("top-p", temperature, top_p, RANDOM), "save": f"probabilities-{name}"}
        for name, (top_p, temperature) in NUCLEI.items()
    },
    "grid": _sample("grid", 1.0, 0.8, GRID),
    **{
        f"coldest-{top_p}": _sample("cold", 1e-6, top_p, [0.0, 0.5, BELOW_ONE])
        for top_p in (1e-5, 0.95, 1.0)
    },
    "edges": _sample("edges", 1.0, 0.9, [0.0, BELOW_ONE]),
    "equal": _sample("equal", 1.0, 0.5, [0.0, BELOW_ONE]),
    "mask": _adjust(
        "apply_bitmask_inplace",
        "free",
        [["int32", [1], [0]], ["int32", [1, len(_MASK)], _MASK]],
        "masked",
    ),
    "masked draws": _sample("masked", 1.0, 1.0, np.random.default_rng(7).random(60)),
    "masked best": _sample("masked", 1e-6, 1.0, [0.5]),
    "bias": _adjust(
        "apply_logit_bias_inplace",
        "given",
        [_ZEROS, _TOKENS, ["float32", [4], BIASES]],
        "biased",
    ),
    "penalty": _adjust(
        "apply_penalty_inplace",
        "given",
        [
            ["int32", [1], [0]],
            _ZEROS,
            _TOKENS,
            ["int32", [4], COUNTS],
            ["float32", [1, 3], [PRESENCE, FREQUENCY, REPETITION]],
        ],
        "penalised",
    ),
}


@dataclass(frozen=True)
class Sampled:
    """All steps at once: the software driver takes long to compile the kernels."""

    run: DawnRun

    def tokens(self, name: str) -> list[int]:
        return list(self.run.steps[list(STEPS).index(name)]["tokens"])


@pytest.fixture(scope="module")
def sampled(
    compiled: Compiler, lavapipe: VulkanDriver, tmp_path_factory: pytest.TempPathFactory
) -> Sampled:
    folder = tmp_path_factory.mktemp("sampling")
    for name, logits in LOGITS.items():
        logits.tofile(folder / f"{name}.f32")
    steps = list(STEPS.values())
    return Sampled(run_on_dawn(compiled(TINY, "webgpu", "q4f32"), steps, folder, lavapipe))


@pytest.mark.parametrize("name", NUCLEI)
def test_samples_are_from_the_exact_top_p_set(name: str, sampled: Sampled) -> None:
    top_p, temperature = NUCLEI[name]
    logits = LOGITS["top-p"]
    np.testing.assert_allclose(
        sampled.run.logits(f"probabilities-{name}"),
        _softmax(logits, temperature),
        rtol=PROBABILITY_RELATIVE,
        atol=1e-9,
    )
    exact = _top_p(logits, temperature, top_p)
    drawn = sampled.tokens(name)
    counts = {token: drawn.count(token) for token in exact}
    assert sum(counts.values()) == DRAWS, "a token outside of the top-p set was drawn"
    bins = _bins(exact)
    statistic = 0.0
    for tokens in bins:
        expected = DRAWS * sum(exact[token] for token in tokens)
        statistic += (sum(counts[token] for token in tokens) - expected) ** 2 / expected
    assert len(bins) > 1
    assert statistic < _chi_square_limit(len(bins) - 1)


def test_evenly_spread_numbers_hit_every_token_in_proportion(sampled: Sampled) -> None:
    """Sharper than statistics: a token owns one interval of the uniform number's range."""
    drawn = sampled.tokens("grid")
    for token, probability in _top_p(LOGITS["grid"], 1.0, 0.8).items():
        assert abs(drawn.count(token) - DRAWS * probability) < 1.5, token


@pytest.mark.parametrize("top_p", [1e-5, 0.95, 1.0])
def test_lowest_temperature_takes_the_best_token(top_p: float, sampled: Sampled) -> None:
    assert set(sampled.tokens(f"coldest-{top_p}")) == {int(LOGITS["cold"].argmax())}


def test_edges_of_the_range_stay_inside_the_top_p_set(sampled: Sampled) -> None:
    assert set(sampled.tokens("edges")) <= set(_top_p(LOGITS["edges"], 1.0, 0.9))
    assert all(0 <= token < VOCABULARY for token in sampled.tokens("equal"))


def test_forbidden_tokens_are_never_drawn(sampled: Sampled) -> None:
    logits, masked = LOGITS["free"], sampled.run.logits("masked")
    np.testing.assert_array_equal(masked[ALLOWED], logits[ALLOWED])
    assert (masked[~ALLOWED] < -1e20).all()
    assert np.isfinite(masked).all()
    assert all(ALLOWED[token] for token in sampled.tokens("masked draws"))
    best = int(np.where(ALLOWED, logits, -np.inf).argmax())
    assert sampled.tokens("masked best") == [best]


def test_bias_and_penalties_change_only_the_named_tokens(sampled: Sampled) -> None:
    logits = LOGITS["given"]
    biased, penalised = logits.copy(), logits.copy()
    for token, count, value in zip(NAMED, COUNTS, BIASES, strict=True):
        biased[token] += np.float32(value)
        lower = logits[token] - PRESENCE - count * FREQUENCY
        penalised[token] = lower / REPETITION if lower > 0 else lower * REPETITION
    np.testing.assert_allclose(sampled.run.logits("biased"), biased, rtol=1e-6)
    np.testing.assert_allclose(sampled.run.logits("penalised"), penalised, rtol=1e-6)
