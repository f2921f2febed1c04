"""The matmul of a chunk at shapes that no released model has, in every way to divide its work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.operators.activation_quantization import QuantizeRows
from gemma4_compile.operators.activations import INT8, PACKED, PackedOutput
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.tuning import GemmTuning, Int8GemmTuning
from tests.marks import slow_unless
from tests.matmuls import int8_linear
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.kernel_cases import differences, make_case
from tests.web.dawn import VulkanDriver

pytestmark = pytest.mark.dawn

GROUP = 32
# Two orders of a sum of at most 160 products; three times a random walk, relative to the largest.
ALLOWED = 3 * np.sqrt(160) * 2.0**-24

OPERATORS = [
    # Channels that end within a step, rows that end within a tile, a tile in two parts.
    Linear(CHUNK, WeightLayout(4, "float16", GROUP, 96, (64, 64, 40)), "float16"),
    Linear(
        CHUNK, WeightLayout(8, "float16", GROUP, 160, (200,)), "float32", Epilogue.GELU_PAIRS.value
    ),
    # Channels that no vector divides, and those that a vector divides but no step.
    Linear(CHUNK, WeightLayout(0, "float32", 0, 37, (101,)), "float32", suppressed=(3, 100)),
    Linear(
        CHUNK, WeightLayout(0, "float16", 0, 44, (70,)), "float16", Epilogue.SOFTCAP.value, cap=30.0
    ),
]
INT8_OPERATORS = [
    # Groups that end within a step, rows that end within a tile, a tile in two parts.
    int8_linear(CHUNK, WeightLayout(4, "float16", GROUP, 96, (64, 64, 40)), PACKED),
    int8_linear(
        CHUNK, WeightLayout(8, "float16", GROUP, 160, (200,)), PACKED, Epilogue.GELU_PAIRS.value
    ),
    # Experts in two parts, groups that end within a step.
    ExpertLinear(
        WeightLayout(4, "float16", GROUP, 96, (80 * 4, 80 * 2)),
        80,
        6,
        3,
        PACKED,
        activations=INT8,
        rows=CHUNK,
    ),
    QuantizeRows(CHUNK, 96, "float16", PackedOutput(True)),
    QuantizeRows(CHUNK, 1312, "float32", PackedOutput(False)),
]
TUNINGS: dict[str, GemmTuning] = {
    "default": GemmTuning(),
    "narrow-threads": GemmTuning(tile_k=16, small_to=0, medium_to=0),
    "wide-threads": GemmTuning(small_to=0),
}
INT8_TUNINGS: dict[str, Int8GemmTuning] = {
    "default": Int8GemmTuning(),
    "whole": Int8GemmTuning(small_to=0, unroll=4),
    "sliced": Int8GemmTuning(small_to=0, medium_to=0, thread_n=4, threads=256),
}


@pytest.mark.parametrize(
    ("limits", "tuning"),
    slow_unless(
        lambda *both: both == ("default", "default"),
        [*(("default", name) for name in TUNINGS), ("compat", "default")],
    ),
)
def test_odd_shapes(limits: str, tuning: str, lavapipe: VulkanDriver, tmp_path: Path) -> None:
    spec = target_spec("webgpu", limits)
    spec = replace(spec, tuning=replace(spec.tuning, gemm=TUNINGS[tuning]))
    # A driver in software takes seconds for each, so the other tunings divide two of them.
    tried = OPERATORS if tuning == "default" else OPERATORS[::2]
    cases = [make_case(operator, seed) for seed, operator in enumerate(tried)]
    results = run_on_dawn(cases, spec, lavapipe, tmp_path)
    for case, found in zip(cases, results, strict=True):
        for expected, array in zip(case.expected, found, strict=True):
            shown = expected > -1e30  # suppressed columns are exactly what they should be
            assert np.array_equal(array[~shown], expected[~shown]), case.operator
            error = np.abs(array[shown].astype(np.float64) - expected[shown])
            assert error.max() <= ALLOWED * np.abs(expected[shown]).max(), case.operator


@pytest.mark.parametrize(
    ("limits", "tuning"),
    slow_unless(
        lambda *both: both == ("default", "default"),
        [*(("default", name) for name in INT8_TUNINGS), ("compat", "default")],
    ),
)
def test_odd_shapes_int8(limits: str, tuning: str, lavapipe: VulkanDriver, tmp_path: Path) -> None:
    spec = target_spec("webgpu", limits)
    spec = replace(spec, tuning=replace(spec.tuning, int8_gemm=INT8_TUNINGS[tuning]))
    tried = INT8_OPERATORS[: 5 if tuning == "default" else 2]
    cases = [make_case(operator, seed) for seed, operator in enumerate(tried)]

    results = run_on_dawn(cases, spec, lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)
