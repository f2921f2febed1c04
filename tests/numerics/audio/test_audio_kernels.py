"""WebGPU kernels of the sound input at odd shapes, on Dawn in Node."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.operators.audio_features import (
    LogMel,
    Magnitude,
    SoundFrames,
    SubsampleConv,
    WindowedTransform,
)
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.conformer import (
    AddClipped,
    Clip,
    ClippedNorm,
    GatedConv,
    RelativeAttention,
)
from gemma4_compile.targets import target_spec
from tests.marks import LIMITS
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.kernel_cases import differences, make_case
from tests.web.dawn import VulkanDriver

EPS, LIMIT = 1e-6, 1e10
OPERATORS: tuple[Operator, ...] = (
    SoundFrames(320, 160, 160, "float32"),
    SoundFrames(162, 162, 0, "float16"),
    Magnitude(40),
    WindowedTransform(10, 33, 64),
    LogMel(131, 1e-3),
    # Widths of float16 are even: the client copies words. One channel in; channels that are no
    # power of two; more channels than a block has threads.
    SubsampleConv(12, 1, 128, EPS, "float32", "float16"),
    SubsampleConv(7, 6, 24, EPS, "float16", "float16"),
    SubsampleConv(3, 2, 300, EPS, "float32", "float32"),
    Clip(300, "float32", "float16", True, True, True),
    Clip(40, "float16", "float16", False, False, True),
    Clip(33, "float32", "float32", False, True, False),
    AddClipped(70, True),
    AddClipped(70, False),
    GatedConv(72, 5, True),
    GatedConv(30, 1, False),
    ClippedNorm(640, EPS, "float16", weighted=False),
    ClippedNorm(96, EPS, "float32", weighted=False, biased=True),
    ClippedNorm(1100, EPS, "float16", before=True, silu=True, limit=0.9),
    ClippedNorm(72, EPS, "float32", after=True, limit=LIMIT, factor=0.5),
    RelativeAttention(8, 128, 12, 50.0, True),
    RelativeAttention(2, 24, 5, 2.0, False),
    RelativeAttention(1, 600, 40, 50.0, True),
)


@pytest.mark.dawn
@pytest.mark.parametrize("limits", [*LIMITS, pytest.param("subgroups-4", marks=pytest.mark.slow)])
def test_every_kernel_computes_its_definition(
    limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec = target_spec("webgpu", limits)
    cases = [make_case(operator, seed) for seed, operator in enumerate(OPERATORS)]

    results = run_on_dawn(cases, spec, lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)
