"""Kernels that read a form of storage which they know by its `element` alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.lookup import Embedding
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.linear.tensor_core_gemm import fits_tensor_cores
from tests.fixed_scheme import FixedLayout
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.kernel_cases import differences, make_case
from tests.web.dawn import VulkanDriver

OPERATORS = [
    Linear(ONE, FixedLayout(0, "float32", 0, 96, (64, 40)), "float32"),
    # Channels that end within a step, rows that end within a tile.
    Linear(CHUNK, FixedLayout(0, "float32", 0, 44, (70,)), "float32"),
    BoundedLinear(CHUNK, FixedLayout(0, "float32", 0, 64, (96,)), "float32", clipped=True),
    Embedding(CHUNK, FixedLayout(0, "float32", 0, 64, (64, 32)), 0, 2.0, False),
]


@pytest.mark.dawn
def test_they_compute_what_the_definitions_do(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    cases = [make_case(operator, seed) for seed, operator in enumerate(OPERATORS)]
    results = run_on_dawn(cases, target_spec("webgpu"), lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)


@pytest.mark.parametrize(
    ("layout", "fits"),
    [
        (WeightLayout(0, "float16", 0, 64, (96,)), True),
        (WeightLayout(8, "float16", 32, 64, (96,)), True),
        (WeightLayout(4, "float16", 32, 64, (96,)), False),
        (FixedLayout(0, "float16", 0, 64, (96,)), False),
        (FixedLayout(8, "float16", 32, 64, (96,)), False),
    ],
)
def test_tensor_cores_take_no_form_that_they_do_not_read(layout: WeightLayout, fits: bool) -> None:
    operator = BoundedLinear(CHUNK, layout, "float16", clipped=True)
    assert fits_tensor_cores(operator, target_spec("cuda")) == fits
