from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.options.sampling_ranges import (
    GREEDY_BELOW,
    LEAST_TOP_P,
    SAMPLING_RANGES,
    SamplingValueError,
    read_sampling,
)


@pytest.mark.parametrize("name", SAMPLING_RANGES)
def test_ends_and_neutral_values_are_values(name: str) -> None:
    allowed = SAMPLING_RANGES[name]
    for value in (allowed.lowest, allowed.highest, allowed.neutral):
        found = read_sampling(name, value)
        assert type(found) is type(allowed.neutral)
        assert abs(found - value) <= LEAST_TOP_P


@pytest.mark.parametrize("name", SAMPLING_RANGES)
@pytest.mark.parametrize(
    "value", [10**400, -(10**400), float("nan"), float("inf"), 1e300, -1e3, True, "1", [1], None]
)
def test_what_is_no_number_of_the_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SamplingValueError, match=r"expected an? .* from .* to .*, found"):
        read_sampling(name, value)


def test_values_that_overflow_are_taken_as_what_they_mean() -> None:
    assert read_sampling("temperature", 5e-324) == 0
    assert read_sampling("temperature", GREEDY_BELOW) == GREEDY_BELOW
    assert read_sampling("top_p", 0) == LEAST_TOP_P
    assert read_sampling("top_k", 64.0) == 64
    with pytest.raises(SamplingValueError, match=r"found 64\.5"):
        read_sampling("top_k", 64.5)


def test_a_bound_of_the_caller_s_is_told() -> None:
    with pytest.raises(SamplingValueError, match="a number from 0 to 2, found 3"):
        read_sampling("temperature", 3, 2.0)
