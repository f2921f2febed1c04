"""Kernels that keep a row in registers: widths that neither four nor the threads divide."""

from pathlib import Path

import pytest

from gemma4_compile.operators.moe import Router
from gemma4_compile.operators.norms import ResidualNorm, RmsNorm
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.targets import target_spec
from tests.marks import LIMITS, slow_unless
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.kernel_cases import differences, make_case
from tests.web.dawn import VulkanDriver

pytestmark = pytest.mark.dawn

WIDTHS = [6, 1030, 2, 20, 260, 2052]
QUICK = 2  # of them in `make test`: within one vector, and beyond a block's threads


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize(
    "widths", slow_unless(lambda widths: len(widths) == QUICK, [WIDTHS[:QUICK], WIDTHS[QUICK:]])
)
def test_rows_of_any_width(
    widths: list[int], limits: str, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    found = []
    for width in widths:
        found += [
            RmsNorm(CHUNK, width, 1e-6, "float16"),
            ResidualNorm(CHUNK, width, 1e-6, True, "float16"),
            ResidualNorm(ONE, width, 1e-6, False, None),
            ResidualNorm(CHUNK, width, 1e-6, True, "float32", branches=2),
            Router(ONE, width, 7, 3, 1e-6, 0.25, "float32", "float16"),
        ]
    cases = [make_case(operator, seed) for seed, operator in enumerate(found)]

    results = run_on_dawn(cases, target_spec("webgpu", limits), lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)
