"""Kernels that exchange values within subgroups of 4, 8 and 16 threads, on Dawn in Node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tvm
import tvm_ffi

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.operators.activation_quantization import (
    QuantizeRows,
)
from gemma4_compile.operators.activations import INT8, PACKED, PackedOutput
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.moe import Router, RouterScores
from gemma4_compile.operators.norms import PerLayerInputs, ResidualNorm, RmsNorm
from gemma4_compile.operators.prologues import Combine, Norm, Routed
from gemma4_compile.operators.qk_norm_rope_cache import QkNormRopeCache
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.operators.sampling import SampleTopP, SoftmaxPartials, SoftmaxProbs
from gemma4_compile.targets import TargetSpec, target_spec
from gemma4_compile.targets.kernels import make_kernel
from gemma4_compile.targets.kernels.common.builtins import EXCHANGE
from gemma4_compile.targets.kernels.select import select
from gemma4_compile.targets.spec import ACTIVATIONS
from tests import models
from tests.marks import exhaustive_if, slow_unless
from tests.matmuls import int8_linear
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.kernel_cases import differences, make_case, operators
from tests.numerics.test_kernels import PART_BYTES
from tests.web.dawn import VulkanDriver

pytestmark = pytest.mark.dawn


def matrix(kind: Callable[..., Linear], cols: int, rows: int, **fields: Any) -> Linear:
    """Four bits in groups of 32."""
    layout = WeightLayout(4, fields.pop("weight_dtype", "float32"), 32, cols, (rows,))
    return kind(rows=ONE, layout=layout, **{"in_dtype": "float32", **fields})


def exact(dtype: str) -> list[Operator]:
    """Blocks of one subgroup, of some and of many; groups of lanes that have one or several."""
    pairs: dict[str, Any] = {"epilogue": Epilogue.GELU_PAIRS.value}
    return [
        RmsNorm(ONE, 1030, 1e-6, dtype),
        ResidualNorm(CHUNK, 14, 1e-6, True, dtype),
        PerLayerInputs(ONE, 3, 68, 1e-6, 0.2, 3.0, 0.7),
        QkNormRopeCache(CHUNK, 2, 1, 48, 12, 3, 27, 1e-6, True, False, dtype, 83),
        matrix(Linear, 2080, 38, weight_dtype=dtype, in_dtype=dtype),
        matrix(Linear, 288, 70, **pairs, prologue=Norm(1e-6, scaled=True)),
        matrix(Linear, 288, 70, prologue=Norm(scaled=True, count=2, eps=1e-6)),
        matrix(Linear, 288, 70, **pairs, prologue=Routed(1e-6, experts=7, factor=0.06)),
        matrix(Linear, 192, 40, prologue=Combine(heads=3, head_dim=64, splits=5)),
        ExpertLinear(WeightLayout(4, dtype, 32, 96, (64 * 12,)), 64, 12, 3, dtype),
        ExpertLinear(WeightLayout(4, dtype, 32, 64, (40 * 12,)), 40, 12, 3, dtype, epilogue="none"),
        Router(ONE, 1030, 7, 3, 1e-6, 0.25, "float32", dtype),
        RouterScores(1030, 7, 1e-6, 0.25, "float32"),
        ResidualNorm(ONE, 260, 1e-6, True, dtype, branches=2),
        CombineSplits(2, 64, 37, dtype),
        SoftmaxPartials(4096, 5),
        SoftmaxProbs(4096, 5),
        SampleTopP(4096),
    ]


def int8() -> list[Operator]:
    """Groups of eight threads that find their largest magnitude."""
    packed = {"epilogue": Epilogue.GELU_PAIRS.value, "packed_out": True}
    return [
        QuantizeRows(CHUNK, 1312, "float32", PackedOutput(False)),
        ResidualNorm(ONE, 288, 1e-6, False, "float32", output=PackedOutput(True)),
        CombineSplits(3, 96, 7, "float32", output=PackedOutput(False)),
        matrix(int8_linear, 96, 192, in_dtype=PACKED, **packed),
        matrix(
            int8_linear,
            288,
            128,
            interleaved_out=True,
            **packed,
            prologue=Norm(scaled=True, eps=1e-6),
        ),
        ExpertLinear(
            WeightLayout(4, "float16", 32, 96, (64 * 12,)),
            64,
            12,
            3,
            "float32",
            activations=INT8,
            output=PackedOutput(False),
        ),
        matrix(int8_linear, 288, 128, **packed, prologue=Routed(experts=7, factor=0.06, eps=1e-6)),
        matrix(int8_linear, 416, 78, prologue=Norm(scaled=True, count=2, eps=1e-6)),
    ]


def with_subgroups_of(size: int) -> TargetSpec:
    """The target under the limits for these subgroups."""
    spec = target_spec("webgpu", f"subgroups-{size}")
    assert (spec.features, spec.simd_width) == (("subgroups",), size)
    return spec


def run(found: list[Operator], size: int, device: int, driver: VulkanDriver, folder: Path) -> None:
    cases = [make_case(operator, seed) for seed, operator in enumerate(found)]
    results = run_on_dawn(cases, with_subgroups_of(size), driver, folder, device)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)


@pytest.mark.parametrize(
    "begin",
    # Of every sixth kernel. Those from 0 and 3 on are below, too: the exact ones on a driver with
    # subgroups of four, the others in subgroups of sixteen.
    exhaustive_if(lambda begin: begin in (0, 3), slow_unless(lambda begin: begin == 1, range(6))),
)
def test_subgroups_of_four_within_larger_ones(
    begin: int, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    run([*exact("float16"), *int8()][begin::6], 4, 8, lavapipe, tmp_path)


@pytest.mark.slow
def test_subgroups_of_sixteen(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    run([*exact("float16")[::5], *int8()[::3]], 16, 16, lavapipe, tmp_path)


def test_subgroups_of_eight(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    run(exact("float16")[2::6], 8, 8, lavapipe, tmp_path)


def test_a_driver_with_subgroups_of_four(swiftshader: VulkanDriver, tmp_path: Path) -> None:
    run(exact("float32")[::3], 4, 4, swiftshader, tmp_path)


def exchanges(operator: Operator, spec: TargetSpec) -> bool:
    """Return whether the operator's kernel exchanges values within a subgroup."""
    found = []

    def visit(call: Any) -> None:
        name = str(getattr(call.args[0], "value", "")) if len(call.args) else ""
        found.append("warp_shuffle" in str(call.op) or name == EXCHANGE)

    tvm_ffi.structural_walk(make_kernel(operator, spec).body, [(tvm.ir.Call, visit)], order="post")
    return any(found)


@pytest.mark.parametrize("activations", ACTIVATIONS)
def test_every_kernel_that_exchanges_values_is_run(activations: str) -> None:
    spec = replace(with_subgroups_of(8), activations=activations)
    exchanging = set()
    for kind in ("e2b", "moe"):
        values = models.config_file(models.KINDS[kind], "hub", "float32")
        config = Gemma4Config.from_dict(values)
        for operator in operators(config, "q4f16", spec, PART_BYTES):
            if exchanges(operator, spec):
                exchanging.add(select(operator, spec))
    assert len(exchanging) > 8
    executed = {select(operator, spec) for operator in [*exact("float16"), *int8()]}
    assert exchanging <= executed, {factory.__name__ for factory in exchanging - executed}
