"""The router's kernels where choices are equal, nearly equal, or all the same; on Dawn."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.operators.activations import INT8, PackedOutput
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.moe import PermuteByExpert, Router, TopKExperts
from gemma4_compile.operators.rows import ONE
from gemma4_compile.targets import target_spec
from tests.marks import LIMITS
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import KernelCase, differences, make_case
from tests.web.dawn import VulkanDriver

pytestmark = pytest.mark.dawn

EXPERTS, TOP_K, WIDTH = 16, 4, 64
PROJECTION = 2  # the router's argument


def router_case(projection: np.ndarray) -> KernelCase:
    """A router with these rows: what its definition chooses, the lower index of equals first."""
    case = make_case(Router(ONE, WIDTH, EXPERTS, TOP_K, 1e-6, 0.125, "float32", "float32"), 1)
    args = case.arrays
    args[PROJECTION] = projection
    after = tuple(arg.copy() for arg in args)
    run(case.operator, *after)
    expected = tuple(after[position] for position in case.changed)
    return replace(case, args=tuple(args), expected=expected)


def with_scores(case: KernelCase, scores: np.ndarray) -> np.ndarray:
    """The case's routed position with other scores."""
    routed = case.arrays[0].copy()
    routed[:, :EXPERTS] = scores
    return routed


def choice_case(scores: np.ndarray) -> KernelCase:
    """The second half of one position's router on these scores."""
    case = make_case(TopKExperts(EXPERTS, TOP_K, WIDTH), 1)
    args = [with_scores(case, scores), *(arg.copy() for arg in case.arrays[1:])]
    after = tuple(arg.copy() for arg in args)
    run(case.operator, *after)
    expected = tuple(after[position] for position in case.changed)
    return replace(case, args=tuple(args), expected=expected)


def expert_case(scores: np.ndarray) -> KernelCase:
    """Gate and up in int8, whose every block chooses by these scores."""
    rows = 64
    operator = ExpertLinear(
        WeightLayout(4, "float32", 32, WIDTH, (rows * EXPERTS,)),
        rows,
        EXPERTS,
        TOP_K,
        "float32",
        activations=INT8,
        output=PackedOutput(False),
    )
    case = make_case(operator, 1)
    args = [with_scores(case, scores), *(arg.copy() for arg in case.arrays[1:])]
    after = tuple(arg.copy() for arg in args)
    run(operator, *after)
    ids = len(args) - 1
    return replace(case, args=tuple(args), changed=(ids,), expected=(after[ids],))


def grouping_case(ids: np.ndarray) -> KernelCase:
    """The grouping of a chunk whose rows chose these experts."""
    case = make_case(PermuteByExpert(EXPERTS, TOP_K, 32), 1)
    args = [ids, *(np.zeros_like(arg) for arg in case.arrays[1:])]
    after = tuple(arg.copy() for arg in args)
    run(case.operator, *after)
    return replace(case, args=tuple(args), changed=(1, 2), expected=after[1:])


@pytest.mark.parametrize("limits", LIMITS)
def test_equal_and_nearly_equal_choices(
    limits: str, swiftshader: VulkanDriver, tmp_path: Path
) -> None:
    rows = np.random.default_rng(2).normal(0, 1, (EXPERTS, WIDTH)).astype(np.float32)
    pairs = np.repeat(rows[::2], 2, axis=0)  # experts 2i and 2i + 1 are equal
    near = pairs.copy()
    near[1::2] *= np.float32(1 + 1e-3)
    chunk = make_case(PermuteByExpert(EXPERTS, TOP_K, 32), 1).arrays[0]
    same = np.broadcast_to(np.arange(TOP_K, dtype=np.int32), chunk.shape).copy()
    cases = [
        router_case(rows),
        router_case(pairs),
        router_case(np.broadcast_to(rows[:1], rows.shape).copy()),  # all experts are equal
        router_case(near),
        choice_case(np.repeat(rows[:1, : EXPERTS // 2], 2, axis=1)),
        choice_case(np.zeros((1, EXPERTS), np.float32)),
        expert_case(np.repeat(rows[:1, : EXPERTS // 2], 2, axis=1)),
        expert_case(np.zeros((1, EXPERTS), np.float32)),
        grouping_case(same),  # all rows choose the same experts, and nobody the others
    ]

    results = run_on_dawn(cases, target_spec("webgpu", limits), swiftshader, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)
    assert sorted(results[2][0].ravel()) == list(range(TOP_K))
    assert sorted(results[5][0].ravel()) == list(range(TOP_K))
    assert list(results[7][0].ravel()) == list(range(TOP_K))
