"""Which parameters of a test `make test`, `make test-all` and `make test-exhaustive` run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest

# Device limits of kernels' tests: those of most devices, and the least that a device may have.
LIMITS = ["default", pytest.param("compat", marks=pytest.mark.slow)]


def slow_unless(is_quick: Callable[..., bool], values: Iterable[Any]) -> list[Any]:
    """Mark the parameters that are left to `make test-all`; `is_quick` takes one, or its fields."""
    return [_marked(is_quick, value if isinstance(value, tuple) else (value,)) for value in values]


def exhaustive_if(is_more: Callable[..., bool], params: Iterable[Any]) -> list[Any]:
    """Leave parameters to `make test-exhaustive`; `is_more` takes one, or its fields."""
    return [_also(is_more, one if hasattr(one, "marks") else _plain(one)) for one in params]


def under_limits(values: Iterable[Any], *others: str) -> list[Any]:
    """Pair parameters with device limits: each with "default", the quick ones with `others` too.

    Limits change how many threads and buffers a kernel has, whatever else its shape has that is
    odd: all shapes under one of them and some of every kind under the others show both. `values`
    are those of `shares` or `slow_unless`; `others` is `compat` if none is given.
    """
    params = list(values)
    return [
        pytest.param(*one.values, limits, id=one.id and f"{one.id}-{limits}", marks=marks)
        for limits in ("default", *(others or ("compat",)))
        for one in params
        if limits == "default" or not one.marks
        for marks in [one.marks if limits == "default" else pytest.mark.slow]
    ]


def shares(
    values: Iterable[Any], step: int, left: int = 1, also: Collection[int] = ()
) -> list[Any]:
    """Return lists of numbers and values: every `step`-th, and the others for `make test-all`.

    Of a list in which neighbours are alike, the first list has some of every kind. With `left`,
    `make test-all` has every `left`-th of the others, or none for 0, and those with a number in
    `also`: what no other one is. `make test-exhaustive` has the rest.
    """
    numbered = list(enumerate(values))
    others = [(number, value) for number, value in numbered if number % step]
    stay = {number for number, _ in (others[::left] if left else [])} | {*also}
    kept = [one for one in others if one[0] in stay]
    rest = [one for one in others if one[0] not in stay]
    lists = (
        pytest.param(numbered[::step], id="some"),
        pytest.param(kept, id="others", marks=pytest.mark.slow),
        pytest.param(rest, id="rest", marks=pytest.mark.exhaustive),
    )
    return [one for one in lists if one.values[0]]


def of_test_all(lists: Iterable[Any]) -> list[Any]:
    """Return the values of lists of `shares` that `make test-all` runs."""
    run = [one for one in lists if not any(mark.name == "exhaustive" for mark in one.marks)]
    return [value for one in run for _, value in one.values[0]]


def _plain(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)))


def _also(is_more: Callable[..., bool], param: Any) -> Any:
    marks = [*param.marks, pytest.mark.exhaustive] if is_more(*param.values) else param.marks
    return pytest.param(*param.values, id=param.id, marks=marks)


def _marked(is_quick: Callable[..., bool], fields: tuple[Any, ...]) -> Any:
    return pytest.param(*fields, marks=() if is_quick(*fields) else pytest.mark.slow)
