"""Integers with a scale a row as the levels that meet vectors of int8 with one step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemma4_compile.operators import packings, step_packings
from gemma4_compile.operators.activation_quantization import byte_of
from gemma4_compile.operators.packing import word
from gemma4_compile.operators.step_packings import STEP_PACKINGS, StepPacking
from tests.unit.operators.test_packings import value_of


@pytest.mark.parametrize("packing", STEP_PACKINGS.values(), ids=lambda one: f"{one.bits}")
def test_levels_of_rows_meet_a_vector_in_three_orders(
    packing: StepPacking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of products are those of the channels, also of the largest code and of -128."""
    for one in (packings, step_packings):
        monkeypatch.setattr(one, "bind", lambda value: value)  # which names it in a kernel
    rng, cols = np.random.default_rng(packing.bits), 64
    codes = rng.integers(0, 2**packing.bits, (1, cols), dtype=np.uint8)
    codes[0, :2] = 0, 2**packing.bits - 1
    x = rng.integers(-128, 128, cols)
    given = words_in_order(x, packing.interleaved)
    expected = int(x @ (packing.zero_point - codes[0].astype(int)))
    stored = [word(int(one)) for one in packing.pack(codes)[0]]

    def product(weights: list[Any], vector: list[Any]) -> int:
        pairs = zip(signed(weights), signed(vector), strict=True)
        return sum(int(w @ v) for w, v in pairs)

    arranged = packing.arranged(given, word)
    levels = [part for one in stored for part in packing.levels(one, word)]
    assert product(levels, arranged) == expected
    halves = [part for one in stored for part in packing.halves([one])]
    centre = packing.byte_zero * int(x.sum())
    assert centre - product(halves, arranged) == expected
    ordered = [part for one in stored for part in packing.ordered_levels(one)]
    assert product(ordered, given) == expected


def words_in_order(x: Any, interleaved: bool) -> list[Any]:
    """A packed vector, four channels a word."""
    order = [byte_of(byte, interleaved) for byte in range(4)]
    octets = x.reshape(-1, 4)[:, order].astype(np.int8)
    return [word(int(one)) for one in np.ascontiguousarray(octets).view("<u4").ravel()]


def signed(words: list[Any]) -> Any:
    """The bytes of words: (words, 4)."""
    found = np.array([value_of(one) for one in words], np.uint32)
    return found.view(np.int8).reshape(-1, 4).astype(int)
