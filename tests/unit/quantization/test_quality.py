"""Bounds of comparisons."""

from __future__ import annotations

from gemma4_compile.quantization.quality import EXACT, Thresholds, loosest


def test_the_loosest_bounds_are_taken_measure_by_measure() -> None:
    one, other = Thresholds(1e-3, 0.9, 0.8, 0.99, 1.01), Thresholds(1e-2, 0.95, 0.7, 0.9, 1.0)
    assert loosest([one, other]) == Thresholds(1e-2, 0.9, 0.7, 0.9, 1.01)
    assert loosest([EXACT, one]) == one
