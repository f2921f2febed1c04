"""Matmuls between clips: WebGPU kernels against the definitions, on Dawn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.tuning import GemmTuning
from tests.marks import of_test_all, shares, under_limits
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.kernel_cases import differences, make_case
from tests.numerics.vision.test_vision_kernels import F16, F32, dense, eight_bits
from tests.web.dawn import VulkanDriver

GATE, PAIRS, NONE = Epilogue.GELU_GATE.value, Epilogue.GELU_PAIRS.value, Epilogue.NONE.value


def bounded(
    layout: WeightLayout, dtype: str, epilogue: str = NONE, **fields: object
) -> BoundedLinear:
    values = {"clipped": True, "out_dtype": F32, **fields}
    return BoundedLinear(CHUNK, layout, dtype, epilogue, **values)  # type: ignore[arg-type]


OPERATORS = (
    bounded(eight_bits(768, 256), F16),
    bounded(dense(200, 208), F16, out_dtype=F16),
    bounded(dense(130, 96, F32), F32, GATE),
    bounded(eight_bits(320, 288), F16, GATE, out_dtype=F16),
    bounded(eight_bits(384, 256, F32), F32, PAIRS, clipped=False),
    bounded(dense(416, 144), F16, PAIRS, clipped=False, out_dtype=F16),
    bounded(eight_bits(2112, 256), F16, clipped=False),
)


@pytest.mark.dawn
@pytest.mark.parametrize(("share", "limits"), under_limits(shares(OPERATORS, 2)))
def test_every_kernel_computes_its_definition(
    share: list[tuple[int, Operator]], limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec = target_spec("webgpu", limits)
    cases = [make_case(operator, seed) for seed, operator in share]
    results = run_on_dawn(cases, spec, lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)


NO_OTHER_TILES = {"small_to": 0, "medium_to": 0, "large_from": 1 << 30}
TILES = {
    "12x12": GemmTuning(96, 96, 32, 12, 12, threads=64, **NO_OTHER_TILES),
    "8x16": target_spec("webgpu", "h200").tuning.bounded_gemm,
    "8x8": GemmTuning(128, 64, 16, 8, 8, **NO_OTHER_TILES),
}
# Those that stay have each kind of weights, activations, results and epilogue.
OF_TILES = shares(OPERATORS, len(OPERATORS), left=0, also=(2, 5))


def test_tiles_have_every_form_of_operands_and_results_in_test_all() -> None:
    def forms(operators: Iterable[BoundedLinear]) -> set[tuple[str, object]]:
        return {
            form
            for one in operators
            for form in (
                ("bits", one.layout.bits),
                ("weights", one.layout.dtype),
                ("x", one.in_dtype),
                ("y", one.out_dtype),
                ("epilogue", one.epilogue),
                ("bounds", one.clipped),
            )
        }

    assert forms(of_test_all(OF_TILES)) == forms(OPERATORS)


@pytest.mark.dawn
@pytest.mark.parametrize(
    "name",
    ["8x8", *(pytest.param(name, marks=pytest.mark.slow) for name in ("8x16", "12x12"))],
)
@pytest.mark.parametrize("share", OF_TILES)
def test_tiles_compute_the_definition(
    share: list[tuple[int, Operator]], name: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec = target_spec("webgpu", "default")
    spec = replace(spec, tuning=replace(spec.tuning, bounded_gemm=TILES[name]))
    cases = [make_case(operator, seed) for seed, operator in share]
    results = run_on_dawn(cases, spec, lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)
