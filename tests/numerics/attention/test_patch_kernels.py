"""Attention of a picture's patches: WebGPU kernels against the definitions, on Dawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.operators.vision_attention import PatchAttention, PatchQkNormRope
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels import make_kernel
from gemma4_compile.targets.kernels.common.builtins import EXCHANGE
from tests.marks import slow_unless
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.kernel_cases import differences, make_case
from tests.web.dawn import VulkanDriver

F16, F32 = "float16", "float32"
OPERATORS = (
    PatchQkNormRope(12, 64, 1e-6, F16),
    PatchQkNormRope(16, 72, 1e-6, F32),
    PatchQkNormRope(5, 8, 1e-6, F16),
    PatchQkNormRope(40, 24, 1e-6, F32),
    PatchAttention(3, 64, 3, F16, F16),
    PatchAttention(2, 72, 3, F16, F16),
    PatchAttention(2, 72, 3, F32, F32),
    PatchAttention(1, 8, 2, F32, F16),
)


IN_SUBGROUPS = (
    PatchAttention(2, 40, 2, F16, F32),  # single channels after the vectors
    PatchAttention(1, 8, 2, F16, F32),  # nothing but single channels
    PatchAttention(3, 64, 3, F16, F16),
    PatchAttention(2, 72, 3, F16, F16),
)


@pytest.mark.dawn
@pytest.mark.parametrize("limits", ["default", "compat"])
def test_every_kernel_computes_its_definition(
    limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec = target_spec("webgpu", limits)
    cases = [make_case(operator, seed) for seed, operator in enumerate(OPERATORS)]
    results = run_on_dawn(cases, spec, lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)


@pytest.mark.dawn
@pytest.mark.parametrize(
    "operator",
    slow_unless(lambda operator: operator.head_dim <= 40, IN_SUBGROUPS),
    ids=lambda operator: f"heads of {operator.head_dim}",
)
def test_kernels_that_exchange_values_compute_their_definitions(
    operator: PatchAttention, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec, cases = target_spec("webgpu", "subgroups-8"), [make_case(operator, 1)]
    results = run_on_dawn(cases, spec, lavapipe, tmp_path, subgroup=8)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)


def test_kernels_exchange_values_where_threads_can() -> None:
    for limits, exchanges in (("default", False), ("subgroups-4", False), ("subgroups-8", True)):
        for operator in IN_SUBGROUPS:
            text = str(make_kernel(operator, target_spec("webgpu", limits)))
            assert (EXCHANGE in text) == exchanges, limits
