"""WebGPU against the CPU build of the same recipe: Dawn in Node, validation on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.runtime.engine import Engine
from tests import tolerances
from tests.web.compiled import SIZES, TINY, WINDOWS, Compiler
from tests.web.dawn import DawnRun, Float32Array, Step, VulkanDriver, run_on_dawn

pytestmark = pytest.mark.dawn

KINDS = (TINY, "e2b", "e4b", "dense")
DECODED = 3
GENERATED = 10
PROMPTS = 3
SEARCHED = 100


@dataclass(frozen=True)
class Case:
    """A recipe and the driver that can run it."""

    quant: str
    driver: str

    @property
    def tolerance(self) -> float:
        return tolerances.ACTIVATIONS[self.quant]


Q4F16 = Case("q4f16", "lavapipe")
Q4F32 = Case("q4f32", "swiftshader")
MAIN = tuple((kind, case) for kind in KINDS for case in (Q4F16, Q4F32))
OTHERS = tuple(
    (TINY, case)
    for case in (Case("q8f16", "lavapipe"), Case("f16", "lavapipe"), Case("f32", "swiftshader"))
)


def _name(value: object) -> str:
    return value.quant if isinstance(value, Case) else str(value)


def _ids(model: str, count: int, seed: int = 0) -> list[int]:
    """Random text tokens behind <bos>; ids from 107 on are text in every test tokenizer."""
    vocabulary = 1000 if model == TINY else 200
    tokens = np.random.default_rng(seed).integers(107, vocabulary, count - 1)
    return [2, *(int(token) for token in tokens)]


def _driver(case: Case, request: pytest.FixtureRequest) -> VulkanDriver:
    driver: VulkanDriver = request.getfixturevalue(case.driver)
    return driver


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


def _assert_close(run: DawnRun, name: str, expected: Sequence[Float32Array], bound: float) -> None:
    for index, logits in enumerate(expected):
        found = run.logits(f"{name}-{index}")
        assert np.isfinite(found).all(), f"{name}-{index}"
        np.testing.assert_allclose(found, logits, rtol=0, atol=bound, err_msg=f"{name}-{index}")


@pytest.mark.parametrize(("kind", "case"), MAIN + OTHERS, ids=_name)
def test_logits_equal_the_cpu_build(
    kind: str, case: Case, compiled: Compiler, request: pytest.FixtureRequest, folder: Path
) -> None:
    window = WINDOWS[kind]
    engine = Engine.open(compiled(kind, "cpu", case.quant))
    lengths = (1, 2, window - 1, window, window + 1, 3 * window + 2)
    prompts = {f"prompt{n}": (_ids(kind, n + DECODED, seed=n), n) for n in lengths}
    steps = [step for name, (ids, n) in prompts.items() for step in _forwards(ids, name, n)]
    run = run_on_dawn(
        compiled(kind, "webgpu", case.quant), steps, folder, _driver(case, request)
    )
    for name, (ids, n) in prompts.items():
        _assert_close(run, name, _cpu_forwards(engine, ids, n), case.tolerance)


@pytest.mark.parametrize(("kind", "case"), MAIN, ids=_name)
def test_greedy_tokens_equal_the_cpu_build(
    kind: str, case: Case, compiled: Compiler, request: pytest.FixtureRequest, folder: Path
) -> None:
    """On prompts where every choice is clearer than two tolerances: one for each side."""
    engine = Engine.open(compiled(kind, "cpu", case.quant))
    expected: list[tuple[list[int], list[int]]] = []
    for seed in range(SEARCHED):
        ids = _ids(kind, 5 + seed % 25, seed=seed)
        tokens, margin = _cpu_greedy(engine, ids)
        if margin > 2 * case.tolerance:
            expected.append((ids, tokens))
        if len(expected) == PROMPTS:
            break
    assert len(expected) == PROMPTS, f"too few clear prompts among {SEARCHED}"
    steps: list[Step] = []
    for ids, _ in expected:
        steps += [{"op": "clear"}, {"op": "greedy", "ids": ids, "count": GENERATED}]
    run = run_on_dawn(
        compiled(kind, "webgpu", case.quant), steps, folder, _driver(case, request)
    )
    assert [told["tokens"] for told in run.steps[1::2]] == [tokens for _, tokens in expected]


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


@pytest.mark.parametrize(("kind", "case"), MAIN, ids=_name)
def test_chunks_pop_and_later_turns_change_nothing(
    kind: str, case: Case, compiled: Compiler, request: pytest.FixtureRequest, folder: Path
) -> None:
    ids = _ids(kind, 3 * WINDOWS[kind] + 1)
    later, tail = ids[:7], ids[7:]
    chunk = SIZES[kind].prefill_chunk
    steps: list[Step] = [{"op": "prefill", "ids": ids, "save": "whole-0"}]
    for size in (1, 5, chunk - 1):
        steps += [
            {"op": "clear"},
            {"op": "prefill", "ids": ids, "chunk": size, "save": f"chunks{size}-0"},
        ]
    steps += [
        {"op": "clear"},
        {"op": "prefill", "ids": later},
        {"op": "decode", "id": 110},
        {"op": "decode", "id": 111},
        {"op": "pop", "count": 2},
        {"op": "prefill", "ids": tail, "save": "popped-0"},
        # After all that, a prompt of one token starts clean.
        {"op": "clear"},
        {"op": "prefill", "ids": ids[:1], "save": "clean-0"},
    ]
    run = run_on_dawn(
        compiled(kind, "webgpu", case.quant), steps, folder, _driver(case, request)
    )
    engine = Engine.open(compiled(kind, "cpu", case.quant))
    expected = _cpu_forwards(engine, ids, len(ids))
    for name in ("whole", *(f"chunks{size}" for size in (1, 5, chunk - 1)), "popped"):
        _assert_close(run, name, expected, case.tolerance)
    _assert_close(run, "clean", _cpu_forwards(engine, ids[:1], 1), case.tolerance)


def test_every_decoded_token_costs_the_same(
    compiled: Compiler, swiftshader: VulkanDriver, folder: Path
) -> None:
    ids = _ids(TINY, 40)
    steps: list[Step] = [{"op": "prefill", "ids": ids[:30]}]
    steps += [{"op": "decode", "id": token} for token in ids[30:]]
    run = run_on_dawn(compiled(TINY, "webgpu", "q4f32"), steps, folder, swiftshader)
    costs = run.steps[2:]  # the first one allocates
    assert all(cost == costs[0] for cost in costs)
    # Submits: the step itself and the read-back. Buffers: the token, the logits, the read-back.
    assert costs[0]["submits"] <= 3
    assert costs[0]["buffers"] <= 8


def test_a_full_context_is_refused_by_name(
    compiled: Compiler, swiftshader: VulkanDriver, folder: Path
) -> None:
    steps = [{"op": "prefill", "ids": _ids(TINY, 20)}]
    with pytest.raises(AssertionError, match="context"):
        run_on_dawn(
            compiled(TINY, "webgpu", "q4f32"), steps, folder, swiftshader, context_length=16
        )
