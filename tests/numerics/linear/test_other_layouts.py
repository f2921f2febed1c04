"""Kernels that read a form of storage which they know by its `element` alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.linear import Embedding, Linear
from gemma4_compile.targets import target_spec
from tests.fixed_scheme import FixedLayout
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.kernel_cases import differences, make_case
from tests.web.dawn import VulkanDriver

pytestmark = pytest.mark.dawn

OPERATORS = [
    Linear(1, FixedLayout(0, "float32", 0, 96, (64, 40)), "float32"),
    # Channels that end within a step, rows that end within a tile.
    Linear(None, FixedLayout(0, "float32", 0, 44, (70,)), "float32"),
    BoundedLinear(None, FixedLayout(0, "float32", 0, 64, (96,)), "float32", clipped=True),
    Embedding(None, FixedLayout(0, "float32", 0, 64, (64, 32)), 0, 2.0, False),
]


def test_they_compute_what_the_definitions_do(lavapipe: VulkanDriver, tmp_path: Path) -> None:
    cases = [make_case(operator, seed) for seed, operator in enumerate(OPERATORS)]
    results = run_on_dawn(cases, target_spec("webgpu"), lavapipe, tmp_path)
    assert not (wrong := differences(cases, results)), "\n".join(wrong)
