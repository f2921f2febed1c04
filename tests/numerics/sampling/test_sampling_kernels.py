"""Kernels that draw a token from each of several rows, against their definitions, on Dawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.operators.sampling import (
    RUN,
    SampleTopP,
    SoftmaxPartials,
    SoftmaxProbs,
    TopPHistogram,
)
from gemma4_compile.targets import target_spec
from tests.marks import LIMITS
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import Array, KernelCase, differences, make_case
from tests.web.dawn import VulkanDriver

pytestmark = pytest.mark.dawn

ROWS = 5
VOCAB = 2 * RUN + 32

OPERATORS: tuple[Operator, ...] = (
    SoftmaxPartials(VOCAB, 7, CHUNK),
    SoftmaxProbs(VOCAB, 7, CHUNK),
    TopPHistogram(VOCAB, CHUNK),
    SampleTopP(VOCAB, CHUNK),
)


def probabilities(rng: np.random.Generator) -> Array:
    """Rows (ROWS, VOCAB) from flat to sharp, in none of which the same token is the best."""
    logits = rng.normal(0, 1, (ROWS, VOCAB)) * np.geomspace(0.1, 20, ROWS)[:, None]
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float32)


def unlike_rows() -> KernelCase:
    """Draws from rows that differ, with numbers that differ."""
    rng = np.random.default_rng(5)
    case = make_case(SampleTopP(VOCAB, CHUNK), 0, rows=ROWS)
    args = tuple(array.copy() for array in case.arrays)
    args[0][...] = probabilities(rng)
    args[5][...] = rng.uniform(0.05, 0.95, ROWS)
    assert isinstance(case.operator, SampleTopP)
    run(case.operator.histogram, *args[:5])
    after = tuple(array.copy() for array in args)
    run(case.operator, *after)
    (position,) = case.changed
    return replace(case, args=args, expected=(after[position],))


def cases_of() -> list[KernelCase]:
    """Every kernel, and draws from rows that have nothing in common."""
    made = [make_case(operator, seed, rows=ROWS) for seed, operator in enumerate(OPERATORS)]
    return [*made, unlike_rows()]


def test_rows_of_the_case_have_tokens_of_their_own() -> None:
    (tokens,) = unlike_rows().expected
    assert len(set(tokens.tolist())) == ROWS


@pytest.mark.parametrize("limits", LIMITS)
def test_every_kernel_computes_its_definition(
    limits: str, swiftshader: VulkanDriver, tmp_path: Path
) -> None:
    cases = cases_of()

    results = run_on_dawn(cases, target_spec("webgpu", limits), swiftshader, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)
