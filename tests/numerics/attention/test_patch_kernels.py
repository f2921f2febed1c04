"""Attention of a picture's patches: WebGPU kernels against the definitions, on Dawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.operators.vision_attention import PatchAttention, PatchQkNormRope
from gemma4_compile.targets import target_spec
from tests.marks import LIMITS
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


@pytest.mark.dawn
@pytest.mark.parametrize("limits", LIMITS)
def test_every_kernel_computes_its_definition(
    limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec = target_spec("webgpu", limits)
    cases = [make_case(operator, seed) for seed, operator in enumerate(OPERATORS)]
    results = run_on_dawn(cases, spec, lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)
