"""WebGPU against the CPU build of the same recipe: Dawn in Node, validation on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.passes.submit_towers import LAUNCHES
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.spec import NATIVE, WORDS
from tests import tolerances
from tests.marks import exhaustive_if, slow_unless
from tests.web.compiled import SEEING_LITTLE, SIZES, TINY, WINDOWS, Compiler
from tests.web.dawn import SUBGROUP, DawnRun, Float32Array, Step, VulkanDriver, run_on_dawn

pytestmark = pytest.mark.dawn

DECODED = 3
GENERATED = 10
PROMPTS = 3
SEARCHED = 100


@dataclass(frozen=True)
class Case:
    """A recipe, the driver that can run it, how decoding takes its vectors, and its form."""

    quant: str
    driver: str
    activations: str = "float"
    limits: str = "default"
    float16: str = NATIVE

    @property
    def tolerance(self) -> float:
        if self.activations == "int8":
            return tolerances.LOGITS_INT8_BOTH
        if self.float16 == WORDS:
            return tolerances.LOGITS_F32
        return tolerances.ACTIVATIONS[self.quant]


Q4F16 = Case("q4f16", "lavapipe")
Q4F32 = Case("q4f32", "lavapipe")
# Every kind of model once, every recipe once; those of `tiny` are in test_tiny_answers, a dense one
# is below, Gemma 3n is there and in test_gemma3n. One of them is on SwiftShader, which takes a
# minute to compile a model, in test_libraries.
MAIN = (
    (TINY, Q4F16),
    ("e2b, untied", Case("f16", "lavapipe")),
    ("e4b", Case("q8f16", "lavapipe", limits="subgroups-8")),
    ("unified", Case("f32", "lavapipe")),
    ("moe", Q4F16),
)
# Left to the exhaustive run: parts and recipes are those of `tiny` in test_tiny_answers, limits
# those of test_nine_libraries; an untied head is below.
EXHAUSTIVE = ("e2b, untied", "e4b")

# What `make test` runs; kernels of experts have tests of their own there.
QUICK = {(TINY, "q4f16", "float")}


def _is_quick(kind: str, case: Case) -> bool:
    return (kind, case.quant, case.activations) in QUICK


# Logits that are rounded twice are not clear enough to compare tokens. Gemma 3n has int8, or 4 bits
# on WebGPU, in no other test: test_gemma3n is in f32, those of the CPU and Metal in floats.
INT8 = (
    ("dense, untied", Case("q4f16", "lavapipe", "int8", "subgroups-4")),
    ("3n e4b", Case("q4f16", "lavapipe", "int8")),
)
ODD_HEADS = (("heads 72, 264", Q4F32),)  # and dense
# Without `shader-f16`: both sides compute in float32 with float16 scales. That of users is in
# test_nine_libraries.py, experts in 8 bits are in test_drafts.py.
AS_WORDS = (("unified", Case("f16", "lavapipe", limits="subgroups-4", float16=WORDS)),)


def _cases(*groups: tuple[tuple[str, Case], ...]) -> list[Any]:
    """Cases with their marks."""
    cases = slow_unless(_is_quick, [case for group in groups for case in group])
    return exhaustive_if(lambda kind, _: kind in EXHAUSTIVE, cases)


def _name(value: object) -> str:
    if not isinstance(value, Case):
        return str(value)
    others = {"activations": "float", "limits": "default", "float16": NATIVE}
    told = (getattr(value, name) for name, usual in others.items() if getattr(value, name) != usual)
    return "-".join([value.quant, *told])


def _ids(model: str, count: int, seed: int = 0) -> list[int]:
    """Random text tokens behind <bos>; ids from 107 on are text in every test tokenizer."""
    vocabulary = 1000 if model == TINY else 200
    tokens = np.random.default_rng(seed).integers(107, vocabulary, count - 1)
    return [2, *(int(token) for token in tokens)]


def _forwards(ids: Sequence[int], name: str, prompt: int) -> list[Step]:
    """A fresh sequence: the first `prompt` ids as a prompt, the others one by one."""
    steps: list[Step] = [{"op": "clear"}]
    steps.append({"op": "prefill", "ids": list(ids[:prompt]), "save": f"{name}-0"})
    for index, token in enumerate(ids[prompt:], start=1):
        steps.append({"op": "decode", "id": token, "save": f"{name}-{index}"})
    return steps


def _cpu_forwards(engine: Engine, ids: Sequence[int], prompt: int) -> list[Float32Array]:
    engine.clear()
    return [engine.prefill(ids[:prompt]), *(engine.decode(token) for token in ids[prompt:])]


def _cpu_greedy(engine: Engine, ids: Sequence[int]) -> tuple[list[int], float]:
    """Greedy tokens, and the smallest margin by which one of them won."""
    engine.clear()
    logits = engine.prefill(ids)
    tokens: list[int] = []
    smallest = float("inf")
    for _ in range(GENERATED):
        second, first = np.sort(logits)[-2:]
        smallest = min(smallest, float(first - second))
        tokens.append(int(logits.argmax()))
        logits = engine.decode(tokens[-1])
    return tokens, smallest


def _clear_prompts(engine: Engine, kind: str, margin: float) -> list[tuple[list[int], list[int]]]:
    """Prompts with their greedy tokens, every one of which wins by more than `margin`."""
    found: list[tuple[list[int], list[int]]] = []
    for seed in range(SEARCHED):
        ids = _ids(kind, 5 + seed % 25, seed=seed)
        tokens, smallest = _cpu_greedy(engine, ids)
        if smallest > margin:
            found.append((ids, tokens))
        if len(found) == PROMPTS:
            return found
    raise AssertionError(f"fewer than {PROMPTS} clear prompts among {SEARCHED}")


@dataclass(frozen=True)
class Comparison:
    """One model in one recipe on both sides. Dawn is asked everything at once: its software drivers
    take long to compile the kernels.
    """

    engine: Engine
    run: DawnRun
    prompts: dict[str, tuple[list[int], int]]
    greedy: list[tuple[list[int], list[int]]]
    generated: list[list[int]]
    turns: list[int]
    tolerance: float

    def assert_close(self, name: str, expected: Sequence[Float32Array]) -> None:
        for index, logits in enumerate(expected):
            found = self.run.logits(f"{name}-{index}")
            assert np.isfinite(found).all(), f"{name}-{index}"
            np.testing.assert_allclose(
                found, logits, rtol=0, atol=self.tolerance, err_msg=f"{name}-{index}"
            )


def _compare(
    kind: str, case: Case, compiled: Compiler, driver: VulkanDriver, folder: Path
) -> Comparison:
    window, chunk = WINDOWS[kind], SIZES[kind].prefill_chunk
    engine = Engine.open(compiled(kind, "cpu", case.quant, case.activations, float16=case.float16))
    is_float = case.activations == "float"
    greedy = _clear_prompts(engine, kind, 2 * case.tolerance) if is_float else []
    lengths = (1, 2, window - 1, window, window + 1, 3 * window + 2)
    prompts = {f"prompt{n}": (_ids(kind, n + DECODED, seed=n), n) for n in lengths}
    steps = [step for name, (ids, n) in prompts.items() for step in _forwards(ids, name, n)]
    for ids, _ in greedy:
        steps += [{"op": "clear"}, {"op": "greedy", "ids": ids, "count": GENERATED}]
    turns = _ids(kind, 3 * window + 1)
    for size in (5, chunk - 1):
        steps.append({"op": "clear"})
        steps.append({"op": "prefill", "ids": turns, "chunk": size, "save": f"chunks{size}-0"})
    steps += [
        {"op": "clear"},
        {"op": "prefill", "ids": turns[:7]},
        {"op": "decode", "id": 110},
        {"op": "decode", "id": 111},
        {"op": "pop", "count": 2},
        {"op": "prefill", "ids": turns[7:], "save": "popped-0"},
        {"op": "clear"},
        {"op": "prefill", "ids": turns[:1], "save": "clean-0"},
    ]
    package = compiled(kind, "webgpu", case.quant, case.activations, case.limits, case.float16)
    asked = max(SUBGROUP, target_spec("webgpu", case.limits).simd_width)
    run = run_on_dawn(package, steps, folder, driver, subgroup=asked, optimised=kind == TINY)
    generated = [
        list(told["tokens"])
        for step, told in zip(steps, run.steps, strict=True)
        if step["op"] == "greedy"
    ]
    return Comparison(engine, run, prompts, greedy, generated, turns, case.tolerance)


Compare = Callable[[str, Case], Comparison]


@pytest.fixture(scope="module")
def compare(
    compiled: Compiler, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Compare:
    """Runs a model in a recipe on both sides, once."""
    done: dict[tuple[str, Case], Comparison] = {}

    def run(kind: str, case: Case) -> Comparison:
        driver: VulkanDriver = request.getfixturevalue(case.driver)
        if (kind, case) not in done:
            folder = tmp_path_factory.mktemp("dawn")
            done[kind, case] = _compare(kind, case, compiled, driver, folder)
        return done[kind, case]

    return run


@pytest.mark.parametrize(("kind", "case"), _cases(MAIN, INT8, ODD_HEADS, AS_WORDS), ids=_name)
def test_logits_equal_the_cpu_build(kind: str, case: Case, compare: Compare) -> None:
    both = compare(kind, case)
    for name, (ids, length) in both.prompts.items():
        both.assert_close(name, _cpu_forwards(both.engine, ids, length))


@pytest.mark.parametrize(("kind", "case"), _cases(MAIN), ids=_name)
def test_greedy_tokens_equal_the_cpu_build(kind: str, case: Case, compare: Compare) -> None:
    """On prompts where every choice is clearer than two tolerances: one for each side."""
    both = compare(kind, case)
    assert both.generated == [tokens for _, tokens in both.greedy]


@pytest.mark.parametrize(("kind", "case"), _cases(MAIN, INT8), ids=_name)
def test_chunks_and_pops_change_nothing(kind: str, case: Case, compare: Compare) -> None:
    both = compare(kind, case)
    expected = _cpu_forwards(both.engine, both.turns, len(both.turns))
    chunks = (5, SIZES[kind].prefill_chunk - 1)
    for name in (*(f"chunks{size}" for size in chunks), "popped"):
        both.assert_close(name, expected)


@pytest.mark.parametrize(("kind", "case"), _cases(MAIN), ids=_name)
def test_one_token_after_a_conversation_starts_clean(
    kind: str, case: Case, compare: Compare
) -> None:
    both = compare(kind, case)
    both.assert_close("clean", _cpu_forwards(both.engine, both.turns[:1], 1))


def test_every_decoded_token_costs_the_same(
    compiled: Compiler, lavapipe: VulkanDriver, folder: Path
) -> None:
    ids = _ids(TINY, 40)
    steps: list[Step] = [{"op": "prefill", "ids": ids[:30]}]
    steps += [{"op": "decode", "id": token} for token in ids[30:]]
    run = run_on_dawn(compiled(TINY, "webgpu", "q4f16"), steps, folder, lavapipe)
    costs = run.steps[2:]  # the first one allocates
    assert all(cost == costs[0] for cost in costs)
    assert costs[0]["submits"] <= 3  # the step itself and the read-back
    assert costs[0]["buffers"] <= 8  # the token, the logits, the read-back


@pytest.mark.slow
def test_a_tower_is_submitted_a_layer_at_a_time(
    compiled: Compiler, lavapipe: VulkanDriver, folder: Path
) -> None:
    """By the library itself: the client submits when it reads the rows."""
    package = compiled(SEEING_LITTLE, "webgpu", "q4f16")
    step: Step = {"op": "picture", "blocks": 4, "size": 48 * 48 * 3}
    cost = run_on_dawn(package, [step, step], folder, lavapipe).steps[1]
    assert cost["dispatches"] > 40
    assert cost["submits"] >= cost["dispatches"] // LAUNCHES


def test_a_full_context_is_refused_by_name(
    compiled: Compiler, lavapipe: VulkanDriver, folder: Path
) -> None:
    steps = [{"op": "prefill", "ids": _ids(TINY, 20)}]
    with pytest.raises(AssertionError, match="context"):
        run_on_dawn(compiled(TINY, "webgpu", "q4f16"), steps, folder, lavapipe, context_length=16)
