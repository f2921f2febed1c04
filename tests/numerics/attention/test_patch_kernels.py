"""Attention of a picture's patches: WebGPU kernels against the definitions, on Dawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.vision_attention import PatchAttention, PatchQkNormRope
from gemma4_compile.targets import TargetSpec, target_spec
from gemma4_compile.targets.kernels.attention.patch_shape import head_shape
from gemma4_compile.targets.tuning import PatchAttentionTuning
from tests.marks import shares, under_limits
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.kernel_cases import differences, make_case
from tests.web.dawn import SUBGROUP, VulkanDriver

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
@pytest.mark.parametrize(("share", "limits"), under_limits(shares(OPERATORS, 4, left=2)))
def test_every_kernel_computes_its_definition(
    share: list[tuple[int, Operator]], limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec = target_spec("webgpu", limits)
    cases = [make_case(operator, seed) for seed, operator in share]
    results = run_on_dawn(cases, spec, lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)


# One item in the text: software drivers take minutes for four.
TILED = (
    PatchAttentionTuning(keys=64, unroll=1),
    PatchAttentionTuning(keys=32, unroll=1),
)


def tuned(limits: str, tuning: PatchAttentionTuning) -> TargetSpec:
    spec = target_spec("webgpu", limits)
    return replace(spec, tuning=replace(spec.tuning, patch_attention=tuning))


@pytest.mark.dawn
@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "tuning", "head_dim"),
    [
        # Each number of keys, size of heads and limits once.
        ("default", TILED[0], 72),
        ("subgroups-16", target_spec("webgpu", "h200").tuning.patch_attention, 64),
    ],
)
def test_tiles_in_registers_compute_the_definition(
    limits: str,
    tuning: PatchAttentionTuning,
    head_dim: int,
    lavapipe: VulkanDriver,
    tmp_path: Path,
) -> None:
    spec, operator = tuned(limits, tuning), PatchAttention(2, head_dim, 3, F16, F16)
    assert head_shape(operator, spec) is not None
    case = make_case(operator, 1)
    subgroup = spec.simd_width or SUBGROUP
    results = run_on_dawn([case], spec, lavapipe, tmp_path, subgroup=subgroup)
    assert not (wrong := differences([case], results)), "\n".join(wrong)


def test_tiles_that_shared_memory_does_not_hold_are_left_to_the_other_kernel() -> None:
    attention = PatchAttention(2, 72, 3, F16, F16)
    narrow = head_shape(attention, tuned("default", TILED[0]))
    assert narrow is not None
    assert narrow.keys == 32
    assert head_shape(attention, tuned("compat", TILED[0])) is None
    assert head_shape(attention, tuned("default", PatchAttentionTuning(keys=0))) is None
