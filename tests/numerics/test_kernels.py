"""WebGPU kernels of real widths against the plain forms that define them, on Dawn in Node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.model_spec.config import Gemma4Config
from gemma4_compile.model_spec.operators.sampling import NucleusSurvey, SampleTopP
from gemma4_compile.quantization.fused_operators import MergedLinear, NormedLinear
from gemma4_compile.targets import target_spec
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.kernel_cases import Array, KernelCase, make_case, operators
from tests.numerics.plain_forms import run
from tests.web.dawn import VulkanDriver

pytestmark = pytest.mark.dawn

# Small enough to run in seconds; every other size is the released model's. Matrices are in parts of
# at most PART_BYTES, so that large ones have several, and the largest table needs several kernels.
VOCABULARY = 4096
INTERMEDIATE = 4096
PART_BYTES = 4 << 20

# Two orders of a float32 sum of up to 16384 terms differ like a random walk, relative to the sum's
# size; three times that, for the exponentials and square roots behind it.
SUM_F32 = 3 * sqrt(16384) * 2.0**-24
# A score of q.k over 512 channels of deviation 1 reaches 100, and its rounding becomes the relative
# error of its exponential.
ATTENTION_F32 = 3 * 100 * sqrt(512) * 2.0**-24 / 8
HALF_ULP_F16 = 2.0**-11
# Such a kernel makes the vector that it multiplies by itself, from a norm or from the splits of an
# attention, and rounds it to float16. Where two ways of summing fall on different sides, an element
# moves by a unit; over the row that stays below one such unit of the largest result.
OWN_VECTOR_F16 = 2.0**-11


@dataclass(frozen=True)
class Setting:
    """A released size in a recipe, under a profile of limits."""

    preset: str
    quant: str
    limits: str


SETTINGS = [
    Setting("gemma-4-E2B-it", "q4f16", "default"),
    Setting("gemma-4-31B-it", "q4f32", "compat"),
]


def config_of(preset: str) -> Gemma4Config:
    config = Gemma4Config.from_preset(preset)
    ple = VOCABULARY if config.hidden_size_per_layer_input else 0
    return replace(
        config,
        vocab_size=VOCABULARY,
        vocab_size_per_layer_input=ple,
        intermediate_size=min(config.intermediate_size, INTERMEDIATE),
    )


def allowed(case: KernelCase, expected: Array) -> Array:
    """The largest error of each element."""
    if not np.issubdtype(expected.dtype, np.floating):
        return np.zeros(expected.shape)
    size = np.abs(expected.astype(np.float64))
    relative = ATTENTION_F32 if "attention" in case.operator.kind else SUM_F32
    makes_vector = isinstance(case.operator, (NormedLinear, MergedLinear))
    if makes_vector and case.operator.in_dtype == "float16":
        relative += OWN_VECTOR_F16
    # Two roundings to float16 of nearly equal values can lie a whole unit apart.
    last_bit = 2 * HALF_ULP_F16 if expected.dtype == np.float16 else 0.0
    return relative * size.max() + last_bit * size


def differences(cases: Sequence[KernelCase], results: Sequence[tuple[Array, ...]]) -> list[str]:
    wrong = []
    for case, arrays in zip(cases, results, strict=True):
        for position, expected, array in zip(case.changed, case.expected, arrays, strict=True):
            error = np.abs(array.astype(np.float64) - expected.astype(np.float64))
            if not (error <= allowed(case, expected)).all():  # a NaN is not, either
                wrong.append(f"argument {position} of {case.operator}: off by {error.max()}")
    return wrong


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s.preset}-{s.quant}-{s.limits}")
def test_every_kernel_computes_what_its_plain_form_says(
    setting: Setting, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec = target_spec("webgpu", setting.limits)
    found = operators(config_of(setting.preset), setting.quant, spec, PART_BYTES)
    cases = [make_case(op, seed) for seed, op in enumerate(found)]

    results = run_on_dawn(cases, spec, lavapipe, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)


def deviating(deviation: float) -> Array:
    """Logits of a sharp or a flat distribution."""
    return np.random.default_rng(3).normal(0, deviation, 262_144)


def one_of_many() -> Array:
    """Logits of which one takes everything."""
    logits = np.full(262_144, -60.0)
    logits[131_071] = 0.0
    return logits


def with_probabilities(case: KernelCase, probs: Array) -> KernelCase:
    """The case with other probabilities."""
    operator = case.operator
    assert isinstance(operator, SampleTopP)
    args = tuple(arg.copy() for arg in case.args if not isinstance(arg, int))
    args[0][...] = probs
    run(operator.survey, *args[:5])
    after = tuple(arg.copy() for arg in args)
    run(operator, *after)
    (position,) = case.changed
    return replace(case, args=args, expected=(after[position],))


@pytest.mark.parametrize("limits", ["default", "compat"])
def test_the_nucleus_search_draws_the_same_token_from_the_whole_vocabulary(
    limits: str, swiftshader: VulkanDriver, tmp_path: Path
) -> None:
    spec = target_spec("webgpu", limits)
    operator = SampleTopP(262_144)
    cases = [make_case(operator, seed) for seed in range(3)]
    for logits in (deviating(14.0), deviating(0.02), np.zeros(operator.vocab), one_of_many()):
        weights = np.exp(logits - logits.max()).astype(np.float32)
        cases.append(with_probabilities(cases[0], weights / weights.sum()))
    cases += [make_case(NucleusSurvey(vocab), vocab) for vocab in (32, operator.vocab + 32)]

    results = run_on_dawn(cases, spec, swiftshader, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)
