"""Norms around the experts of a few rows, against the launches that they replace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.operators.activation_quantization import QuantizeRows
from gemma4_compile.operators.activations import FLOAT32, Output, PackedOutput
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.few_row_expert_norms import (
    QuantizedBranchNorms,
)
from gemma4_compile.operators.moe import (
    DENSE_NORM,
    EXPERT_NORM,
    VECTORS,
    CombineExperts,
    RouterScores,
)
from gemma4_compile.operators.norms import ResidualNorm, RmsNorm
from gemma4_compile.operators.rows import CHUNK, Few
from gemma4_compile.targets import target_spec
from gemma4_compile.types import Array
from tests.marks import of_test_all, shares, under_limits
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import KernelCase, differences, make_case
from tests.web.dawn import SUBGROUP, VulkanDriver

MOST, WIDTH, EPS = 9, 288, 1e-6
FLOATS: list[Operator] = [
    ResidualNorm(Few(MOST), 1030, EPS, True, "float16", branches=2, top_k=3),
    ResidualNorm(Few(MOST), 2816, EPS, True, "float32", branches=2, top_k=8),
]
OPERATORS: list[Operator] = [
    *FLOATS,
    ResidualNorm(
        Few(MOST), 2816, EPS, True, "float32", branches=2, top_k=8, output=PackedOutput(True)
    ),
    ResidualNorm(
        Few(MOST), 288, EPS, True, "float32", branches=2, top_k=2, output=PackedOutput(False)
    ),
    ResidualNorm(
        Few(MOST),
        288,
        EPS,
        True,
        "float32",
        branches=2,
        top_k=2,
        output=PackedOutput(True, tiled=True),
    ),
    QuantizedBranchNorms(2816, EPS, True, True, Few(MOST)),
    QuantizedBranchNorms(288, EPS, False, True, Few(MOST)),
    QuantizedBranchNorms(2816, EPS, True, True, Few(MOST), 128, 2816**-0.5, "float16"),
    QuantizedBranchNorms(288, EPS, False, True, Few(MOST), 5, 0.1, "float32"),
]


def cases_of(operators: Sequence[Operator]) -> list[KernelCase]:
    return numbered_cases(list(enumerate(operators)))


def numbered_cases(operators: Sequence[tuple[int, Operator]]) -> list[KernelCase]:
    return [make_case(one, seed, rows=(9, 4, 1)[seed % 3]) for seed, one in operators]


def rounded(x: Array, interleaved: bool) -> tuple[Array, Array]:
    """Words and scales of some rows."""
    rows, width = x.shape
    words, scales = np.zeros((rows, width // 4), np.uint32), np.zeros((rows, width // 32), "f4")
    run(QuantizeRows(CHUNK, width, "float32", PackedOutput(interleaved)), x, words, scales)
    return words, scales


def assert_packed(found: Sequence[Array], expected: Sequence[Array], operator: Operator) -> None:
    """Of two orders of sums."""
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
    moved = np.abs(found[0].view(np.int8).astype(int) - expected[0].view(np.int8))
    assert moved.max() <= 1
    assert moved.mean() <= operator.moved_share()


def test_branches_are_normed_and_rounded() -> None:
    operator = QuantizedBranchNorms(WIDTH, EPS, True, False, Few(MOST))
    case = make_case(operator, 1, rows=5)
    y, residual, vectors = case.arrays[:3]
    out, *packed = case.expected
    same, dense, experts = (np.zeros_like(out) for _ in range(3))

    run(
        ResidualNorm(CHUNK, WIDTH, EPS, False, "float32", VECTORS),
        y,
        residual,
        vectors,
        same,
        dense,
    )
    run(RmsNorm(CHUNK, WIDTH, EPS, "float32"), same, vectors[EXPERT_NORM].copy(), experts)

    np.testing.assert_allclose(out, same, rtol=1e-5, atol=1e-6)
    assert DENSE_NORM == 1, "the row that `ResidualNorm` takes"
    assert_packed(packed[:2], rounded(dense, True), operator)
    assert_packed(packed[2:], rounded(experts, False), operator)


def test_the_router_s_scores_are_those_of_the_residual() -> None:
    operator = QuantizedBranchNorms(WIDTH, EPS, True, False, Few(MOST), 7, 0.1, "float16")
    case = make_case(operator, 1, rows=5)
    y, residual, vectors, projection = case.arrays[:4]
    *normed, scores = case.expected
    branches = [np.zeros_like(one) for one in normed]
    same = np.zeros_like(scores)

    run(QuantizedBranchNorms(WIDTH, EPS, True, False, Few(MOST)), y, residual, vectors, *branches)
    router = RouterScores(WIDTH, 7, EPS, 0.1, "float16", None, Few(MOST))
    run(router, branches[0], vectors, projection, same)

    for found, expected in zip((*normed, scores), (*branches, same), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "output", [FLOAT32, PackedOutput(True)], ids=lambda one: type(one).__name__
)
def test_experts_are_added_up_normed_and_rounded(output: Output) -> None:
    operator = ResidualNorm(
        Few(MOST), WIDTH, EPS, True, "float32", branches=2, top_k=3, output=output
    )
    case = make_case(operator, 1, rows=5)
    dense, outputs, weights, *others = case.arrays[:7]
    out, *results = case.expected
    chosen, same, hidden = (np.zeros_like(out) for _ in range(3))

    run(CombineExperts(CHUNK, 3, WIDTH), outputs, weights, chosen)
    run(
        ResidualNorm(CHUNK, WIDTH, EPS, True, "float32", branches=2),
        dense,
        chosen,
        *others,
        same,
        hidden,
    )

    np.testing.assert_allclose(out, same, rtol=1e-5, atol=1e-5)
    if operator.packs:
        assert_packed(results, rounded(hidden, True), operator)
    else:
        np.testing.assert_allclose(results[0], hidden, rtol=1e-5, atol=1e-5)


LISTS = shares(OPERATORS, 2, left=2, also=(7,))


def test_scores_have_weights_of_both_dtypes_in_test_all() -> None:
    dtypes = {getattr(one, "router_dtype", None) for one in of_test_all(LISTS)}
    assert dtypes >= {"float16", "float32"}


@pytest.mark.dawn
@pytest.mark.parametrize(("share", "limits"), under_limits(LISTS, "compat", "subgroups"))
def test_kernels(
    share: list[tuple[int, Operator]], limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec = target_spec("webgpu", limits)
    spec = replace(spec, simd_width=min(spec.simd_width, SUBGROUP))
    if spec.simd_width:  # CUDA's blocks make several experts' scores: the last one here too few
        few_rows = replace(spec.tuning.few_rows, scores=3)
        spec = replace(spec, tuning=replace(spec.tuning, few_rows=few_rows))
    cases = numbered_cases(share)

    results = run_on_dawn(cases, spec, lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)
