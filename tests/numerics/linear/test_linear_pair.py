"""Two matmuls in one launch: the definition against NumPy, the kernels against the definition."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.operators.activations import PACKED
from gemma4_compile.operators.base import operator_of
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.linear_pair import LinearPair
from gemma4_compile.operators.prologues import Combine
from gemma4_compile.operators.rows import ONE
from gemma4_compile.targets import target_spec
from tests.marks import slow_unless
from tests.matmuls import int8_linear
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run, values
from tests.numerics.kernel_cases import differences, make_case
from tests.numerics.linear.test_linear import COLS, close, stored
from tests.web.dawn import SUBGROUP, VulkanDriver

WIDE, LEFT = WeightLayout(4, "float16", 32, 256, (384,)), WeightLayout(8, "float16", 32, 256, (48,))
RIGHT = WeightLayout(4, "float32", 32, 64, (300,))
OUT = Linear(ONE, WIDE, "float16", prologue=Combine(heads=2, head_dim=128, splits=3))
OPERATORS = [
    LinearPair(Linear(ONE, WIDE, "float16"), Linear(ONE, LEFT, "float16"), shared=True),
    LinearPair(OUT, Linear(ONE, RIGHT, "float32"), shared=False),
    LinearPair(
        Linear(ONE, WIDE, "float32", "gelu_pairs"), Linear(ONE, RIGHT, "float32"), shared=False
    ),
    LinearPair(
        Linear(ONE, WIDE, "float32"),
        Linear(ONE, WeightLayout(0, "float16", 0, 60, (7,)), "float32"),
        shared=False,
    ),
]
INT8 = [
    LinearPair(
        int8_linear(ONE, WIDE, PACKED),
        int8_linear(ONE, replace(WIDE, split_rows=(64,)), PACKED),
        shared=True,
    ),
    LinearPair(
        int8_linear(ONE, WIDE, "float32"),
        int8_linear(ONE, replace(RIGHT, dtype="float16"), PACKED),
        shared=False,
    ),
    LinearPair(  # of blocks with more threads than the second's own
        int8_linear(ONE, WIDE, "float16", prologue=OUT.prologue),
        int8_linear(ONE, replace(RIGHT, dtype="float16"), "float32"),
        shared=False,
    ),
]


@pytest.mark.parametrize("shared", [True, False])
def test_each_is_as_it_is_alone(shared: bool) -> None:
    (first, of_first), (second, of_second) = (
        stored(4, "float16", (32,)),
        stored(8, "float16", (16,)),
    )
    operator = LinearPair(
        Linear(ONE, WeightLayout(4, "float16", 32, COLS, (32,)), "float32"),
        Linear(ONE, WeightLayout(8, "float16", 32, COLS, (16,)), "float32"),
        shared,
    )
    x, other = values(1, 1, COLS), values(2, 1, COLS)
    y, z = np.zeros((1, 32), np.float32), np.zeros((1, 16), np.float32)

    run(operator, x, *first, *([] if shared else [other]), *second, y, z)

    close(y, x @ of_first.T)
    close(z, (x if shared else other) @ of_second.T)


@pytest.mark.parametrize("operator", [*OPERATORS, *INT8])
def test_descriptions_travel_and_names_are_unique(operator: LinearPair) -> None:
    func = operator.prim_func()
    assert operator_of(func) == operator
    names = [param.name for param in func.params]
    assert len(set(names)) == len(names)


@pytest.mark.dawn
@pytest.mark.parametrize("limits", slow_unless("default".__eq__, ["default", "h200"]))
def test_kernels_compute_what_their_definitions_say(
    limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    cases = [make_case(op, seed) for seed, op in enumerate([*OPERATORS, *INT8])]
    spec = target_spec("webgpu", limits)
    results = run_on_dawn(cases, spec, lavapipe, tmp_path, max(spec.simd_width, SUBGROUP))
    assert not (wrong := differences(cases, results)), "\n".join(wrong)
