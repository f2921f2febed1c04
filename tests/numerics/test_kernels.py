"""WebGPU kernels of real widths against the definitions that define them, on Dawn in Node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.operators.sampling import RUN, SampleTopP, TopPHistogram
from gemma4_compile.targets import target_spec
from tests.marks import exhaustive_if
from tests.numerics.dawn_kernels import run_on_dawn
from tests.numerics.definitions import run
from tests.numerics.kernel_cases import (
    Array,
    KernelCase,
    differences,
    make_case,
    one_of_a_form,
    operators,
)
from tests.web.dawn import VulkanDriver

pytestmark = pytest.mark.dawn

# Small enough to run in seconds; every other size is the released model's. Matrices are in parts of
# at most PART_BYTES, so that large ones have several, and the largest table needs several kernels.
VOCABULARY = 4096
INTERMEDIATE = 4096
PART_BYTES = 4 << 20


@dataclass(frozen=True)
class Setting:
    """A released size in a recipe, under named limits."""

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


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    # Odd shapes of each kernel have the least limits, and matrices of float32, too.
    exhaustive_if(lambda setting: setting.limits == "compat", SETTINGS),
    ids=lambda s: f"{s.preset}-{s.quant}-{s.limits}",
)
def test_every_kernel_computes_its_definition(
    setting: Setting, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    spec = target_spec("webgpu", setting.limits)
    found = one_of_a_form(operators(config_of(setting.preset), setting.quant, spec, PART_BYTES))
    cases = [make_case(op, seed) for seed, op in enumerate(found)]

    results = run_on_dawn(cases, spec, lavapipe, tmp_path, optimised=True)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)


def deviating(deviation: float) -> Array:
    """Logits of a sharp or a flat distribution."""
    return np.random.default_rng(3).normal(0, deviation, 262_144)


def one_of_many() -> Array:
    """Logits of which one takes everything."""
    logits = np.full(262_144, -60.0)
    logits[131_071] = 0.0
    return logits


def with_probabilities(
    case: KernelCase, probs: Array, uniform: float = 0.37, top_p: float = 0.95
) -> KernelCase:
    """The case with other probabilities, another draw and another top-p set."""
    operator = case.operator
    assert isinstance(operator, SampleTopP)
    args = tuple(arg.copy() for arg in case.args if not isinstance(arg, int))
    args[0][...] = probs
    args[5][...], args[6][...] = uniform, top_p
    run(operator.histogram, *args[:5])
    after = tuple(arg.copy() for arg in args)
    run(operator, *after)
    (position,) = case.changed
    return replace(case, args=args, expected=(after[position],))


@pytest.mark.slow
def test_the_top_p_search_samples_the_same_token_from_the_whole_vocabulary(
    swiftshader: VulkanDriver, tmp_path: Path
) -> None:
    spec = target_spec("webgpu", "default")  # in blocks of "compat": the edges below
    operator = SampleTopP(262_144)
    cases = [make_case(operator, seed) for seed in range(3)]
    for logits in (deviating(14.0), deviating(0.02), np.zeros(operator.vocab), one_of_many()):
        weights = np.exp(logits - logits.max()).astype(np.float32)
        cases.append(with_probabilities(cases[0], weights / weights.sum()))
    cases += [make_case(TopPHistogram(vocab), vocab) for vocab in (32, operator.vocab + 32)]

    results = run_on_dawn(cases, spec, swiftshader, tmp_path)

    assert not (wrong := differences(cases, results)), "\n".join(wrong)


EDGES = [(u, p) for u in (0.0, 0.5, 1 - 2.0**-24) for p in (0.0, 0.95, 1.0)]


def is_drawn(token: int, probs: Array, uniform: float, top_p: float) -> bool:
    """Return whether a draw is right but for the rounding of masses, by sums in float64.

    Their float32 sums differ like a random walk over the tokens, three times that; and the last
    token of the top-p set may be in or out.
    """
    rounding = 3 * sqrt(probs.size) * 2.0**-24
    order = np.argsort(-probs, kind="stable")
    sums = probs[order].cumsum()
    count = 1 + int(np.searchsorted(sums[:-1], min(top_p, sums[-1]) - rounding))
    last = probs[order[count - 1]]
    rank = int(np.flatnonzero(order == token)[0])
    is_inside = rank < count or sums[rank - 1] <= top_p + rounding
    inside = order[: max(count, rank + 1)]
    kept = np.zeros_like(probs)
    kept[inside] = probs[inside]
    shares = kept.cumsum() / kept.sum()
    slack = rounding + (last / sums[count - 1] if top_p > 0 else 0.0)
    begin = shares[token] - probs[token] / kept.sum()
    return is_inside and begin - slack <= uniform <= shares[token] + slack


@pytest.mark.slow
def test_samples_at_the_edges_of_a_top_p_set_in_several_runs(
    swiftshader: VulkanDriver, tmp_path: Path
) -> None:
    """Both ends of a float32 uniform and the middle; from one token, most and all."""
    operator = SampleTopP(5 * RUN + 32)
    rng = np.random.default_rng(0)
    case, cases = make_case(operator, 0), []
    for deviation in (3.0, 0.05):
        weights = np.exp(rng.normal(0, deviation, operator.vocab)).astype(np.float32)
        probs = weights / weights.sum()
        cases += [with_probabilities(case, probs, uniform, top_p) for uniform, top_p in EDGES]

    results = run_on_dawn(cases, target_spec("webgpu", "compat"), swiftshader, tmp_path)

    wrong = []
    for edge, drawn, (tokens,) in zip(2 * EDGES, cases, results, strict=True):
        probs = np.asarray(drawn.args[0], np.float64).ravel()
        if not is_drawn(int(tokens[0]), probs, *edge):
            wrong.append(f"{edge}: {tokens[0]}, expected about {drawn.expected[0]}")
    assert not wrong, "\n".join(wrong)


def test_a_wrong_draw_is_seen() -> None:
    probs = np.random.default_rng(0).dirichlet(np.full(2080, 0.05))
    best = int(probs.argmax())
    assert is_drawn(best, probs, 0.5, 0.0)
    assert not is_drawn(int(probs.argmin()), probs, 0.5, 0.0)
    assert is_drawn(2079, probs, 1 - 2.0**-24, 1.0)
    assert not is_drawn(0, probs, 1 - 2.0**-24, 1.0)
    assert not is_drawn(int(np.argsort(probs)[1000]), probs, 0.5, 0.95)  # beyond the set
