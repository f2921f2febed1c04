from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.sampling import Sampler, SamplingOptions, candidates

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


def test_temperature_zero_is_greedy_without_a_seed() -> None:
    assert Sampler(SamplingOptions(temperature=0.0))(LOGITS) == 1


def test_the_same_seed_draws_the_same_tokens() -> None:
    first, second, other = (Sampler(SamplingOptions(), seed) for seed in (7, 7, 8))
    draws = [[sampler(LOGITS) for _ in range(50)] for sampler in (first, second, other)]
    assert draws[0] == draws[1] != draws[2]


def test_draws_follow_the_nucleus() -> None:
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
        {"top_p": 0.0},
        {"top_p": 1.1},
    ],
)
def test_meaningless_options_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        SamplingOptions(**wrong)  # type: ignore[arg-type]
