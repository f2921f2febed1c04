"""The two halves of a few rows' router, against the router of many rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.moe import Router, RouterScores, TopKExperts
from gemma4_compile.operators.rows import CHUNK, Few
from gemma4_compile.targets import target_spec
from tests.marks import LIMITS
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import KernelCase, differences, make_case
from tests.web.dawn import SUBGROUP, VulkanDriver

MOST, WIDTH, EXPERTS, TOP_K = 9, 96, 16, 4
EPS, FACTOR = 1e-6, 0.125
OPERATORS: list[Operator] = [
    RouterScores(2816, 128, EPS, 0.02, "float16", None, Few(MOST)),
    RouterScores(288, 12, EPS, FACTOR, "float32", "float16", Few(MOST)),
    RouterScores(70, 5, EPS, FACTOR, "float32", "float32", Few(MOST)),
    TopKExperts(128, 8, 0, Few(MOST)),
    TopKExperts(12, 2, 0, Few(MOST)),
    TopKExperts(5, 1, 0, Few(MOST)),
]


def tied_case() -> KernelCase:
    """Rows of equal scores: the lower index wins."""
    case = make_case(TopKExperts(EXPERTS, TOP_K, WIDTH, Few(MOST)), 1, rows=3)
    args = tuple(arg.copy() for arg in case.arrays)
    args[0][0] = 1.0
    args[0][1] = np.repeat([0.5, 2.0], EXPERTS // 2)
    after = tuple(arg.copy() for arg in args)
    run(case.operator, *after)
    expected = tuple(after[position] for position in case.changed)
    assert expected[0][:2].tolist() == [[0, 1, 2, 3], [8, 9, 10, 11]]
    return replace(case, args=args, expected=expected)


def all_cases() -> list[KernelCase]:
    cases = [make_case(one, n, rows=(9, 4, 1)[n % 3]) for n, one in enumerate(OPERATORS)]
    return [*cases, tied_case()]


@pytest.mark.parametrize("dtype", ["float32", None])
def test_both_halves_are_the_router(dtype: str | None) -> None:
    whole = make_case(Router(CHUNK, WIDTH, EXPERTS, TOP_K, EPS, FACTOR, "float32", "float32"), 1)
    x, vectors, projection, expert_scale = whole.arrays[:4]
    rows = len(x)
    scores, hidden = np.zeros((rows, EXPERTS), "f4"), np.zeros((rows, WIDTH), "f4")
    ids, weights = np.zeros((rows, TOP_K), "i4"), np.zeros((rows, TOP_K), "f4")

    first = RouterScores(WIDTH, EXPERTS, EPS, FACTOR, "float32", dtype, Few(MOST))
    run(first, x, vectors, projection, scores, *([] if dtype is None else [hidden]))
    run(TopKExperts(EXPERTS, TOP_K, WIDTH, Few(MOST)), scores, expert_scale, ids, weights)

    np.testing.assert_array_equal(ids, whole.expected[0])
    np.testing.assert_allclose(weights, whole.expected[1], rtol=1e-5)
    if dtype is not None:
        np.testing.assert_allclose(hidden, whole.expected[2], rtol=1e-5, atol=1e-6)


@pytest.mark.dawn
@pytest.mark.parametrize("limits", [*LIMITS, pytest.param("subgroups", marks=pytest.mark.slow)])
def test_kernels(limits: str, lavapipe: VulkanDriver, tmp_path: Path) -> None:
    spec = target_spec("webgpu", limits)
    spec = replace(spec, simd_width=min(spec.simd_width, SUBGROUP))
    cases = all_cases()

    results = run_on_dawn(cases, spec, lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)
