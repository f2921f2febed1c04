"""Kernels of an encoder over texts: WebGPU kernels against the definitions, on Dawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.packed_texts import (
    MeanRows,
    QkvNormRope,
    SpanAttention,
    SpanRotary,
    UnitRows,
)
from gemma4_compile.targets import target_spec
from tests.marks import shares, under_limits
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.kernel_cases import differences, make_case
from tests.web.dawn import VulkanDriver

F16, F32 = "float16", "float32"
OPERATORS: tuple[Operator, ...] = (
    SpanRotary(((16, 7, 1e4), (6, 3, 1e6))),
    QkvNormRope(3, 1, 16, 5, 7, 12, 1e-6, F32),
    SpanAttention(6, 2, 24, 0, F32, F16),
    SpanAttention(2, 1, 16, 3, F16, F32),
    MeanRows(70),
    UnitRows(6),
)
RELEASED: tuple[Operator, ...] = (
    SpanRotary(((256, 128, 1e4), (512, 256, 1e6))),
    QkvNormRope(4, 2, 256, 128, 0, 384, 1e-6, F16),
    SpanAttention(4, 2, 256, 512, F16, F16),
    SpanAttention(4, 1, 512, None, F32, F32),
    MeanRows(512),
    UnitRows(768),
)


@pytest.mark.dawn
def test_kernels_of_small_sizes_compute_their_definitions(
    lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    check(OPERATORS, "default", (19,), lavapipe, tmp_path)


@pytest.mark.dawn
@pytest.mark.slow
@pytest.mark.parametrize(("share", "limits"), under_limits(shares(RELEASED, 2)))
def test_kernels_of_released_sizes_compute_their_definitions(
    share: list[tuple[int, Operator]], limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    check([operator for _, operator in share], limits, (1, 19, 75), lavapipe, tmp_path)


def check(
    operators: Sequence[Operator],
    limits: str,
    rows: Sequence[int],
    driver: VulkanDriver,
    folder: Path,
) -> None:
    """Run operators with so many rows on Dawn, and hold them against their definitions."""
    cases = [
        make_case(operator, seed, rows=count)
        for count in rows
        for seed, operator in enumerate(operators)
    ]
    results = run_on_dawn(cases, target_spec("webgpu", limits), driver, folder)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)


@pytest.mark.parametrize("kinds", [((256, 128, 1e4), (512, 256, 1e6)), ((34, 17, 1e4),)])
def test_angles_are_those_of_float64(kinds: tuple[tuple[int, int, float], ...]) -> None:
    """Each is a place times a frequency; two roundings of that and one of the product."""
    case = make_case(SpanRotary(kinds), 1)
    spans, (rotary,) = case.arrays[0], case.expected
    places = np.arange(len(spans)) - spans[:, 0].astype(float)
    frequencies = np.concatenate(
        [theta ** (-2 * np.arange(pairs) / dim) for dim, pairs, theta in kinds]
    )
    angles = places[:, None] * frequencies
    allowed = 3 * 2.0**-24 * np.abs(angles) + 2.0**-22
    assert (np.abs(rotary[..., 0] - np.cos(angles)) <= allowed).all()
    assert (np.abs(rotary[..., 1] - np.sin(angles)) <= allowed).all()
