"""The search of steps next to its definition in NumPy, the plain rule, and an exhaustive one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.quantization.group_search import search_groups
from tests.marks import slow_unless
from tests.unit.quantization.searched_groups import Array, held, search, values

COUNT = 2003  # no whole number of blocks
RANDOM = np.random.default_rng(11)


def outliers() -> Array:
    found = 0.1 * RANDOM.standard_normal((COUNT, 32))
    found[:, 5] = RANDOM.choice([-1, 1], COUNT)
    return found.astype(np.float32)


def drawn(name: str) -> Array:
    shape = (COUNT, 32)
    kinds: dict[str, Callable[[], Any]] = {
        "normal": lambda: RANDOM.standard_normal(shape),
        "laplace": lambda: RANDOM.laplace(size=shape),
        "heavy tails": lambda: RANDOM.standard_t(3, shape),
        "sparse": lambda: RANDOM.standard_normal(shape) * (RANDOM.random(shape) < 0.2),
        "one outlier": outliers,
        "one sign": lambda: np.abs(RANDOM.standard_normal(shape)),
        "near few levels": lambda: (
            RANDOM.integers(-3, 4, shape) + 0.1 * RANDOM.standard_normal(shape)
        ),
        "subnormal steps": lambda: (
            np.exp(RANDOM.uniform(-17, -7, (COUNT, 1))) * RANDOM.standard_normal(shape)
        ),
        "all sizes": lambda: (
            np.exp(RANDOM.uniform(-80, 8, (COUNT, 1))) * RANDOM.standard_normal(shape)
        ),
    }
    made = kinds[name]()
    made[7] = 0
    made[8, 1:] = 0
    return (0.03 * made).astype(np.float32)


def square_error(given: Array, meant: Array) -> npt.NDArray[np.float64]:
    return ((given.astype(np.float64) - meant) ** 2).sum(axis=1)


def nearest(given: Array, scales: Array, low: int, high: int) -> Array:
    divisor = np.where(scales == 0, np.float32(1), scales)[:, None]
    found: Array = np.clip(np.rint(given / divisor), low, high) * scales[:, None]
    return found


DRAWN = (
    *("normal", "laplace", "heavy tails", "sparse", "one outlier", "one sign"),
    *("near few levels", "subnormal steps", "all sizes"),
)


@pytest.mark.parametrize("dtype", slow_unless("float16".__eq__, ["float16", "float32"]))
@pytest.mark.parametrize("name", DRAWN)
def test_it_is_what_its_definition_says_and_no_worse_than_the_plain_rule(
    name: str, dtype: str
) -> None:
    given = drawn(name)
    found = search_groups(given, dtype)
    meant, exact = search(given, dtype)
    assert np.array_equal(values(found.words, found.scales), meant)
    assert np.array_equal(found.exact, exact)
    assert np.array_equal(found.scales, held(found.scales, dtype))
    assert np.array_equal(found.scales == 0, ~given.any(axis=1))
    error = square_error(given, meant)
    steps = np.abs(given).max(axis=1) / np.float32(7)
    plain = held(steps, dtype)
    up = np.nextafter(plain.astype(dtype), np.dtype(dtype).type(np.inf)).astype(np.float32)
    clips = (steps < np.finfo(dtype).smallest_normal) & (7 * plain < np.abs(given).max(axis=1))
    rule = nearest(given, np.where(clips, up, plain), -7, 7)
    # What is compared in the search is not rounded to float32, as these products are.
    noise = 1e-8 * (given.astype(np.float64) ** 2).sum(axis=1)
    assert (error <= square_error(given, rule) * (1 + 1e-9) + noise).all()


@pytest.mark.parametrize("name", DRAWN)
def test_it_is_within_one_per_cent_of_all_of_400_scales(name: str) -> None:
    given = drawn(name)
    found = search_groups(given, "float16")
    error = square_error(given, values(found.words, found.scales))
    largest = np.abs(given).max(axis=1)
    least = np.full(COUNT, np.inf)
    for ratio in np.linspace(4, 12, 200):
        for sign in (1, -1):
            scales = held((sign * largest / ratio).astype(np.float32), "float16")
            least = np.minimum(least, square_error(given, nearest(given, scales, -7, 8)))
    assert (error <= 1.01 * least + 1e-12 * largest**2).all()


def test_the_error_of_weights() -> None:
    errors = {}
    for name in ("normal", "laplace"):
        given = drawn(name)
        found = search_groups(given, "float16")
        error = square_error(given, values(found.words, found.scales)).sum()
        errors[name] = np.sqrt(error / (given.astype(np.float64) ** 2).sum())
    assert errors["normal"] <= 0.0815
    assert errors["laplace"] <= 0.1025


LEVELS: dict[str, Callable[[tuple[int, int]], Any]] = {
    "all": lambda shape: RANDOM.integers(-8, 8, shape),
    "turned": lambda shape: -RANDOM.integers(-8, 8, shape),
    "the largest are not used": lambda shape: RANDOM.integers(-5, 6, shape),
    "few": lambda shape: RANDOM.integers(-1, 2, shape) * RANDOM.integers(0, 2, shape),
    "one sign": lambda shape: RANDOM.integers(-8, 1, shape),
    "one outlier": lambda shape: np.where(np.arange(32) == 9, 7, RANDOM.integers(-1, 2, shape)),
}


@pytest.mark.parametrize("storage", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", LEVELS)
def test_weights_on_levels_are_held_exactly(name: str, storage: str) -> None:
    levels = LEVELS[name]((COUNT, 32)).astype(np.float32)
    sizes = 2.0 ** RANDOM.uniform(-13 if storage == "float16" else -24, 3, (COUNT, 1))
    steps = held(sizes.astype(np.float32), "float16")
    given = held(levels * steps, storage)
    for dtype in ("float16", "float32"):
        found = search_groups(given, dtype)
        assert found.exact.all()
        assert np.array_equal(held(values(found.words, found.scales), storage), given)


@pytest.mark.parametrize("storage", ["bfloat16", "float32"])
def test_of_steps_that_float16_has_not_the_rounding_alone_remains(storage: str) -> None:
    levels = LEVELS["all"]((COUNT, 32)).astype(np.float32)
    steps = np.exp(RANDOM.normal(-4, 1, (COUNT, 1))).astype(np.float32)
    given = held(levels * steps, storage)
    found = search_groups(given, "float16")
    meant = values(found.words, found.scales)
    assert np.array_equal(np.rint(meant / steps), levels)
    rounding = 2.0**-8 if storage == "bfloat16" else 2.0**-11
    assert np.abs(meant / steps - levels).max() <= 8 * rounding


@pytest.mark.parametrize("name", ["normal", "all sizes"])
def test_groups_do_not_meet(name: str) -> None:
    given = drawn(name)
    found = search_groups(given, "float16")
    for part in (slice(0, 1), slice(3, 20), slice(1000, COUNT)):
        alone = search_groups(np.ascontiguousarray(given[part]), "float16")
        assert np.array_equal(alone.words, found.words[part])
        assert np.array_equal(alone.scales, found.scales[part])
