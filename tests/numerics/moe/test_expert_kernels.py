"""WebGPU kernels of the experts of 26B-A4B against their definitions, on Dawn in Node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.activations import INT8, PackedOutput
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.moe import (
    PermuteByExpert,
    Router,
    RouterScores,
    TopKExperts,
)
from gemma4_compile.operators.norms import ResidualNorm
from gemma4_compile.operators.prologues import Norm, Routed
from gemma4_compile.operators.rows import ONE
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.moe.int8_experts import gate_up_shape
from tests.marks import shares, slow_unless
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import KernelCase, differences, make_case, operators
from tests.numerics.linear.test_int8_kernels import with_few_blocks
from tests.numerics.test_kernels import PART_BYTES, config_of
from tests.web.dawn import SUBGROUP, VulkanDriver

pytestmark = pytest.mark.dawn

# Experts of a model with fewer of them, in more parts than one kernel binds.
EXPERTS = 12
EXPERT_KINDS = {
    "combine_experts",
    "expert_down",
    "expert_gate_up",
    "expert_gemm",
    "expert_residual_norm",
    "permute_by_expert",
    "router",
}


def expert_operators(quant: str, limits: str) -> list[Operator]:
    """Those of a layer with experts, fewer of them than in the released model."""
    config = replace(config_of("gemma-4-26B-A4B-it"), num_experts=EXPERTS)
    found = operators(config, quant, target_spec("webgpu", limits), PART_BYTES)
    mine = [operator for operator in found if operator.variant in EXPERT_KINDS]
    assert {operator.variant for operator in mine} == EXPERT_KINDS
    assert any(getattr(operator, "accumulate", False) for operator in mine)
    return mine


@pytest.mark.parametrize(
    ("quant", "limits", "which"),
    slow_unless(
        lambda *fields: fields == ("q4f16", "default", "one of a kind"),
        [
            ("q4f16", "default", "one of a kind"),
            ("q4f16", "default", "others"),
            ("q8f16", "compat", "one of a kind"),
        ],
    ),
)
def test_experts_kernels_compute_what_their_definitions_say(
    quant: str, limits: str, which: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    found = expert_operators(quant, limits)
    ones = list({operator.variant: operator for operator in found}.values())
    chosen = ones if which == "one of a kind" else [op for op in found if op not in ones]
    cases = [make_case(op, seed) for seed, op in enumerate(chosen)]

    results = run_on_dawn(cases, target_spec("webgpu", limits), lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)


def test_lanes_of_one_position_s_experts_have_two_rows_under_way(
    lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    """As on CUDA; channels that leave a lane's last group empty."""
    spec = target_spec("webgpu", "default")
    int8_gemv = replace(spec.tuning.int8_gemv, expert_rows_ahead=2)
    spec = replace(spec, tuning=replace(spec.tuning, int8_gemv=int8_gemv))
    cases = [
        make_case(
            ExpertLinear(
                WeightLayout(bits, "float16", GROUP, 352, (128 * 6,)),
                128,
                6,
                3,
                "float32",
                activations=INT8,
                output=PackedOutput(interleaved=bits == 4),
            ),
            bits,
        )
        for bits in (4, 8)
    ]
    for case in cases:
        assert isinstance(case.operator, ExpertLinear)
        assert gate_up_shape(case.operator, spec).rows > 1

    results = run_on_dawn(cases, spec, lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("limits", ["default", "compat"])
def test_all_experts_of_the_released_model_are_routed(
    limits: str, swiftshader: VulkanDriver, tmp_path: Path
) -> None:
    number = Gemma4Config.from_preset("gemma-4-26B-A4B-it").num_experts
    whole = [
        replace(operator, experts=number)
        for operator in expert_operators("q4f32", limits)
        if isinstance(operator, (Router, PermuteByExpert))
    ]
    cases = [make_case(operator, seed) for seed, operator in enumerate(whole)]

    results = run_on_dawn(cases, target_spec("webgpu", limits), swiftshader, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)


def matmuls_around_experts() -> list[Operator]:
    """Widths that neither four nor the threads divide, several parts, all kinds of weights."""
    norm = Norm(1e-6, scaled=True, count=2)
    pairs: dict[str, Any] = {"epilogue": Epilogue.GELU_PAIRS.value}
    half, odd = Routed(1e-6, EXPERTS, 0.06, "float16"), Routed(1e-6, 5, 0.06, "float32")
    return [
        Linear(ONE, WeightLayout(4, "float16", 32, 2816, (72,)), "float16", **pairs, prologue=half),
        Linear(
            ONE, WeightLayout(0, "float16", 0, 1030, (64, 14)), "float32", **pairs, prologue=odd
        ),
        RouterScores(2816, EXPERTS, 1e-6, 0.06, "float16"),
        RouterScores(1030, 7, 1e-6, 0.06, "float32"),
        TopKExperts(7, 3, 1030),
        ResidualNorm(ONE, 1030, 1e-6, False, "float16", 4),
        Linear(ONE, WeightLayout(4, "float16", 32, 2816, (73,)), "float16", prologue=norm),
        Linear(ONE, WeightLayout(8, "float32", 32, 288, (70,)), "float32", prologue=norm),
        Linear(ONE, WeightLayout(0, "float16", 0, 1030, (64, 13)), "float16", prologue=norm),
    ]


@pytest.mark.parametrize("share", shares(matmuls_around_experts(), 3))
@pytest.mark.parametrize(
    ("limits", "simd_width"),
    slow_unless(
        lambda limits, _: limits == "default",
        [("default", 0), ("compat", 0), ("subgroups", SUBGROUP)],
    ),
)
def test_matmuls_norm_and_route_what_is_around_experts(
    limits: str,
    simd_width: int,
    share: list[tuple[int, Operator]],
    lavapipe: VulkanDriver,
    tmp_path: Path,
) -> None:
    spec = replace(target_spec("webgpu", limits), simd_width=simd_width)
    if limits != "default":
        spec = with_few_blocks(spec)  # of several tiles each
    cases = [make_case(op, seed) for seed, op in share]

    results = run_on_dawn(cases, spec, lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)


def test_branches_that_nearly_cancel_cost_as_many_digits_as_the_kernel_says(
    lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec, width, left = target_spec("webgpu"), 288, 0.1
    norm = Norm(1e-6, scaled=True, count=2)
    operator = Linear(ONE, WeightLayout(8, "float32", 32, width, (70,)), "float32", prologue=norm)
    args = tuple(np.array(arg) for arg in make_case(operator, 0).args)
    dense, experts, w_branches = args[0], args[1], args[3]
    experts[...] = left * experts - dense
    w_branches[:2] = 1.0
    after = tuple(arg.copy() for arg in args)
    run(operator, *after)
    names = [param.name for param in operator.prim_func().params]
    out = names.index("out")
    case = KernelCase(operator, args, (out,), (after[out],))

    ((found,),) = run_on_dawn([case], spec, lavapipe, tmp_path)

    growth = (2 / left) ** 2  # of expert_norms.py
    allowed = 3 * np.sqrt(width) * 2.0**-24 * growth * np.abs(after[out]).max()
    assert np.abs(found - after[out]).max() <= allowed
