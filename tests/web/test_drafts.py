"""A few rows at a time on WebGPU: what one token after the other gives. Dawn in Node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.targets import target_spec
from tests import models, tolerances
from tests.drafted import drafted_package
from tests.web.dawn import SUBGROUP, Step, VulkanDriver, run_on_dawn

pytestmark = [pytest.mark.dawn, pytest.mark.slow]

ROUNDS = (1, 9, 4, 2, 6, 3, 8, 5, 7)  # rows of a step; a window is of 16 keys or fewer, and wraps
PROMPT = 30


@dataclass(frozen=True)
class Case:
    """A kind of model in a recipe, how matmuls take their vectors, and --limits."""

    kind: str
    quant: str
    activations: str = "float"
    limits: str = "default"

    @property
    def tolerance(self) -> float:
        is_int8 = self.activations == "int8"
        return tolerances.LOGITS_INT8_BOTH if is_int8 else tolerances.ACTIVATIONS[self.quant]


CASES = [
    Case("e2b", "q4f16", "int8"),
    Case("e2b", "q4f32"),
    Case("dense", "q8f16", "int8", "subgroups-4"),
    Case("unified", "q4f16", limits="compat"),
    Case("moe", "q4f16", "int8"),
]


@pytest.mark.parametrize(
    "case",
    CASES,
    ids=lambda case: "-".join((case.kind, case.quant, case.activations, case.limits)),
)
def test_rows_have_the_logits_of_single_tokens(
    case: Case,
    lavapipe: VulkanDriver,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    made = drafted_package(
        tmp_path_factory, case.kind, case.quant, case.activations, "webgpu", case.limits
    )
    text = models.prompt(PROMPT + sum(ROUNDS), seed=13).tolist()
    prompt: list[Step] = [{"op": "clear"}]
    prompt += [{"op": "prefill", "ids": text[at : at + 10]} for at in range(0, PROMPT, 10)]
    alone: list[Step] = [
        {"op": "decode", "id": token, "save": f"one-{index}"}
        for index, token in enumerate(text[PROMPT:])
    ]
    ends = [PROMPT + sum(ROUNDS[: index + 1]) for index in range(len(ROUNDS))]
    together: list[Step] = [
        {"op": "verify", "ids": text[end - count : end], "save": f"rows-{count}"}
        for count, end in zip(ROUNDS, ends, strict=True)
    ]

    asked = max(SUBGROUP, target_spec("webgpu", case.limits).simd_width)
    steps = [*prompt, *alone, *prompt, *together]
    run = run_on_dawn(made.package, steps, tmp_path, lavapipe, subgroup=asked)

    for count, end in zip(ROUNDS, ends, strict=True):
        found = run.logits(f"rows-{count}").reshape(count, -1)
        for row, logits in enumerate(found):
            expected = run.logits(f"one-{end - count + row - PROMPT}")
            error = np.abs(logits - expected).max()
            assert error <= case.tolerance, f"row {row} of {count}"
