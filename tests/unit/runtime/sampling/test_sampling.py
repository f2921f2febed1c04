from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.sampling.sampling import (
    AdjustedSampler,
    Sampler,
    SamplingOptions,
    candidates,
    make_sampler,
)

LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15], np.float32))


def kept(options: SamplingOptions) -> dict[int, float]:
    ids, probabilities = candidates(LOGITS, options)
    return dict(zip(ids.tolist(), probabilities.round(6).tolist(), strict=True))


def test_all_tokens_stay_in_and_are_ordered_by_probability() -> None:
    assert list(kept(SamplingOptions()).items()) == [
        (1, 0.4),
        (3, 0.3),
        (4, 0.15),
        (0, 0.1),
        (2, 0.05),
    ]


def test_top_k_keeps_the_most_probable_and_renormalises() -> None:
    assert kept(SamplingOptions(top_k=2)) == {1: pytest.approx(4 / 7), 3: pytest.approx(3 / 7)}


@pytest.mark.parametrize(("top_p", "count"), [(0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (1.0, 5)])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, count: int) -> None:
    assert len(kept(SamplingOptions(top_p=top_p))) == count


def test_top_p_counts_what_top_k_left() -> None:
    # Of 4/7 and 3/7 the first alone reaches 0.55; of the whole distribution it would not.
    assert list(kept(SamplingOptions(top_k=2, top_p=0.55))) == [1]


def test_temperature_comes_first() -> None:
    squared = np.array([0.1, 0.4, 0.05, 0.3, 0.15]) ** 2
    expected = squared / squared.sum()
    assert kept(SamplingOptions(temperature=0.5))[1] == pytest.approx(expected[1], abs=1e-6)


def test_equal_logits_are_ordered_by_id_and_cut_at_top_k() -> None:
    ids, _ = candidates(np.zeros(6, np.float32), SamplingOptions(top_k=4))
    assert ids.tolist() == [0, 1, 2, 3]


def test_what_is_masked_is_never_drawn() -> None:
    masked = np.full(6, -np.inf, np.float32)
    masked[[2, 4]] = 1.0
    for options in (SamplingOptions(), SamplingOptions(top_k=5), SamplingOptions(top_p=0.99)):
        assert candidates(masked, options)[0].tolist() == [2, 4]


def sorted_candidates(logits: np.ndarray, options: SamplingOptions) -> tuple[list[int], np.ndarray]:
    """The definition: sort everything, then cut."""
    scaled = logits.astype(np.float64) / options.temperature
    ids = sorted(range(len(logits)), key=lambda i: (-scaled[i], i))
    ids = ids[: options.top_k or len(ids)]
    weights = np.exp(scaled[ids] - scaled[ids[0]])
    probabilities = weights / weights.sum()
    kept = probabilities > 0
    if options.top_p < 1:
        kept &= np.cumsum(probabilities) - probabilities < options.top_p
    return np.array(ids)[kept].tolist(), probabilities[kept] / probabilities[kept].sum()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    size=st.sampled_from([5, 200, 4096, 5003]),
    spread=st.sampled_from([0.01, 1.0, 4.0]),
    steps=st.sampled_from([0, 4]),  # logits in steps of 1/4 have many equals
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 7, 64, 600]),
    top_p=st.sampled_from([0.05, 0.9, 0.95, 1.0]),
)
def test_a_large_vocabulary_is_cut_as_a_sorted_one(
    seed: int, size: int, spread: float, steps: int, temperature: float, top_k: int, top_p: float
) -> None:
    logits = np.random.default_rng(seed).normal(0, spread, size).astype(np.float32)
    if steps:
        logits = np.round(logits * steps) / np.float32(steps)
    logits[1 :: size // 2] = -np.inf
    options = SamplingOptions(temperature, top_k, top_p)
    expected_ids, expected = sorted_candidates(logits, options)
    ids, probabilities = candidates(logits, options)
    edge = min(len(ids), len(expected_ids))
    assert abs(len(ids) - len(expected_ids)) <= 1  # the last one's sum may round to either side
    assert ids[:edge].tolist() == expected_ids[:edge]
    np.testing.assert_allclose(
        probabilities[:edge], expected[:edge], rtol=0.05 if edge < 20 else 1e-3
    )


def test_temperature_zero_is_greedy_without_a_seed() -> None:
    assert Sampler(SamplingOptions(temperature=0.0))(LOGITS) == 1


def test_the_same_seed_draws_the_same_tokens() -> None:
    first, second, other = (Sampler(SamplingOptions(), seed) for seed in (7, 7, 8))
    draws = [[sampler(LOGITS) for _ in range(50)] for sampler in (first, second, other)]
    assert draws[0] == draws[1] != draws[2]


def test_samples_are_from_the_top_p_set() -> None:
    sampler = Sampler(SamplingOptions(top_p=0.8), seed=1)
    count = 20_000
    drawn = np.bincount([sampler(LOGITS) for _ in range(count)], minlength=5)
    expected = np.array([0, 0.4, 0, 0.3, 0.15]) / 0.85 * count
    used = expected > 0
    assert drawn[~used].sum() == 0
    chi_square = ((drawn[used] - expected[used]) ** 2 / expected[used]).sum()
    assert chi_square < 13.8  # 2 degrees of freedom, one false alarm in 1000


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": -0.1},
        {"top_p": 1.1},
        {"top_p": float("nan")},
        {"top_k": float("nan")},
        {"top_k": 0.5},
        {"temperature": 10**400},
        {"temperature": 101},
        {"min_p": 2},
        {"repetition_penalty": 0},
        {"frequency_penalty": -3},
    ],
)
def test_meaningless_options_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        SamplingOptions(**wrong)  # type: ignore[arg-type]  # wrong types are among them


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-307, 1e-9])
@pytest.mark.parametrize(
    "options", [SamplingOptions(), SamplingOptions(top_k=3), SamplingOptions(top_p=0.9)]
)
def test_next_to_no_temperature_is_greedy(temperature: float, options: SamplingOptions) -> None:
    sampler = Sampler(replace(options, temperature=temperature))
    assert {sampler(LOGITS) for _ in range(20)} == {1}


def test_the_least_temperature_does_not_overflow() -> None:
    wide = np.array([-1e4, 1e4, 0], np.float32)
    assert kept(SamplingOptions(temperature=1e-5))[1] == 1
    assert Sampler(SamplingOptions(temperature=1e-5))(wide) == 1


def test_top_p_zero_is_the_most_probable_token() -> None:
    assert list(kept(SamplingOptions(top_p=0.0))) == [1]
    assert list(kept(SamplingOptions(top_p=0.0, top_k=3))) == [1]


def said(sampler: AdjustedSampler, count: int, prompt: list[int]) -> list[int]:
    sampler.begin(prompt)
    return [sampler(LOGITS) for _ in range(count)]


def test_what_was_said_loses_by_each_time_it_was_said() -> None:
    greedy = SamplingOptions(temperature=0.0, frequency_penalty=0.2)
    # log(0.4 / 0.3) = 0.288: after two times the second is more probable, and so on in turn.
    assert said(AdjustedSampler(greedy), 4, [1, 1, 1]) == [1, 1, 3, 1]
    once = SamplingOptions(temperature=0.0, presence_penalty=0.5)
    assert said(AdjustedSampler(once), 6, []) == [1, 3, 1, 1, 1, 1]


def test_the_repetition_penalty_counts_the_prompt() -> None:
    options = SamplingOptions(temperature=0.0, repetition_penalty=1.5)
    sampler = AdjustedSampler(options)
    # Logits are negative: -0.92 * 1.5 = -1.37 is below -1.20.
    assert said(sampler, 2, []) == [1, 3]
    assert said(sampler, 1, [1]) == [3]


def test_biases_are_added() -> None:
    options = SamplingOptions(temperature=0.0)
    assert AdjustedSampler(options, logit_bias={2: 100.0})(LOGITS) == 2
    assert AdjustedSampler(options, logit_bias={1: -100.0})(LOGITS) == 3
    masked = np.where(np.arange(5) == 0, LOGITS, -np.inf).astype(np.float32)
    assert AdjustedSampler(options, logit_bias={2: 100.0})(masked) == 0


@pytest.mark.parametrize(("min_p", "left"), [(0.3, {1, 3, 4}), (0.76, {1}), (1.0, {1})])
def test_min_p_is_a_share_of_the_most_probable(min_p: float, left: set[int]) -> None:
    sampler = AdjustedSampler(SamplingOptions(min_p=min_p), seed=1)
    assert {sampler(LOGITS) for _ in range(400)} == left


def test_only_what_needs_it_is_adjusted() -> None:
    assert isinstance(make_sampler(SamplingOptions(top_k=5)), Sampler)
    assert isinstance(make_sampler(SamplingOptions(min_p=0.1)), AdjustedSampler)
    assert isinstance(make_sampler(SamplingOptions(), None, {1: 1.0}), AdjustedSampler)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (SamplingOptions(0.7, 0, 0.9), (0.7, 0.9)),
        (SamplingOptions(1.0), (1.0, 1.0)),
        (SamplingOptions(1.0, 64, 0.9), None),
        (SamplingOptions(0.0), None),
        (SamplingOptions(1e-6), None),
    ],
)
def test_a_device_draws_by_temperature_and_top_p(
    options: SamplingOptions, found: tuple[float, float] | None
) -> None:
    assert Sampler(options).device_options == found


def test_a_device_gets_the_numbers_that_the_host_would_use() -> None:
    numbers = Sampler(SamplingOptions(1.0), seed=3)
    expected = np.random.default_rng(3)
    assert [numbers.random() for _ in range(3)] == [expected.random() for _ in range(3)]


def test_numbers_that_were_peeked_at_come_next() -> None:
    """Whatever is drawn from them meanwhile, on the host or elsewhere."""
    options = SamplingOptions(temperature=1.3)
    plain, peeked = Sampler(options, seed=5), Sampler(options, seed=5)
    expected = [plain.random() for _ in range(12)]
    assert peeked.peek(4) == expected[:4]
    assert [peeked.random() for _ in range(2)] == expected[:2]
    assert peeked.peek(5) == expected[2:7]
    assert peeked.peek(1) == expected[2:3]
    assert [peeked.random() for _ in range(10)] == expected[2:]
    logits = np.random.default_rng(0).normal(0, 3, 500).astype(np.float32)
    ahead = peeked.peek(3)
    assert [plain(logits) for _ in range(6)] == [peeked(logits) for _ in range(6)]
    assert ahead[0] != peeked.random()


def test_a_device_draws_in_rounds_greedily_too_but_never_by_top_k() -> None:
    assert Sampler(SamplingOptions(temperature=0)).device_options is None
    temperature, top_p = Sampler(SamplingOptions(temperature=0)).round_options or (1, 1)
    assert 0 < temperature <= 1e-3
    assert 0 < top_p < 1 / 262144, "one token reaches it, however many are equal"
    assert Sampler(SamplingOptions(temperature=0.7, top_p=0.9)).round_options == (0.7, 0.9)
    assert Sampler(SamplingOptions(temperature=0.7, top_k=5)).round_options is None
    assert Sampler(SamplingOptions(temperature=0.001)).round_options is None
