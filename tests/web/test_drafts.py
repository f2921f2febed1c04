"""Several tokens a step on WebGPU: what one token after the other gives. Dawn in Node.

The kernels, and the rounds of guesses of `gemma4-web/fast`, with the conversations of
`fast_conversation.mjs`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.runtime import Package
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.spec import NATIVE, WORDS
from tests import models, tolerances
from tests.drafted import CONTEXT, Drafted, drafted_package
from tests.marks import exhaustive_if
from tests.web.compiled import DRAFTED, SIZES, TINY, Compiler
from tests.web.dawn import SUBGROUP, Step, VulkanDriver, library_of, run_driver, run_on_dawn
from tools.training.tiny.evaluate import tasks
from tools.training.tiny.further import all_evaluation_dialogues

pytestmark = pytest.mark.dawn

ROUNDS = (1, 9, 4, 2, 6, 3, 8, 5, 7)  # rows of a step; a window is of 16 keys or fewer, and wraps
PROMPT = 30


@dataclass(frozen=True)
class Case:
    """A kind of model in a recipe, how matmuls take their vectors, and --limits."""

    kind: str
    quant: str
    activations: str = "float"
    limits: str = "default"
    float16: str = NATIVE

    @property
    def tolerance(self) -> float:
        if self.activations == "int8":
            return tolerances.LOGITS_INT8_BOTH
        return tolerances.ACTIVATIONS["f32" if self.float16 == WORDS else self.quant]

    def package(self, factory: pytest.TempPathFactory) -> Drafted:
        form = (self.quant, self.activations, "webgpu", self.limits)
        return drafted_package(factory, self.kind, *form, float16=self.float16)


# Every kind of matmul, limit and form at least once. Of those in EXHAUSTIVE, matmuls of q4f16 are
# `tiny`'s in test_known_answers and in the dialogues below, int8 and words are in the case of moe.
CASES = [
    Case("e2b", "q4f16", float16=WORDS),
    Case("dense", "q4f16", "int8"),
    Case("unified", "q4f32", limits="compat"),
    Case("moe", "q8f16", "int8", "subgroups-4", WORDS),
]
EXHAUSTIVE = ("e2b", "dense")


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    exhaustive_if(lambda case: case.kind in EXHAUSTIVE, CASES),
    ids=lambda case: "-".join(vars(case).values()),
)
def test_rows_have_the_logits_of_single_tokens(
    case: Case,
    lavapipe: VulkanDriver,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    made = case.package(tmp_path_factory)
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
    run = run_on_dawn(made.package, steps, tmp_path, lavapipe, subgroup=asked, optimised=False)

    for count, end in zip(ROUNDS, ends, strict=True):
        found = run.logits(f"rows-{count}").reshape(count, -1)
        for row, logits in enumerate(found):
            expected = run.logits(f"one-{end - count + row - PROMPT}")
            error = np.abs(logits - expected).max()
            assert error <= case.tolerance, f"row {row} of {count}"


# --- Rounds of guesses in a browser ---

MOST_TOKENS = 60
SHORT = 40
# Those that compute in float32. Per-layer embeddings and shared layers are in the other tests; of a
# dense model's functions those of unified ones have all.
EXACT = [case for case in CASES if case.kind in ("unified", "moe")]
LEAST_TOKENS_A_ROUND = 2.5


@dataclass(frozen=True)
class Outcome:
    """Name and token of every step, what `useDrafter` returned, what the module counted."""

    steps: list[str]
    has_drafter: bool | None
    stats: dict[str, Any]

    @property
    def rounds(self) -> tuple[int, int, int]:
        """Rounds, tokens guessed in them, and how many of these came true."""
        names = ("draftRounds", "draftedTokens", "acceptedTokens")
        rounds, guessed, accepted = (int(self.stats[name]) for name in names)
        return rounds, guessed, accepted


Play = Callable[..., Outcome]


@pytest.fixture(scope="module")
def play(
    compiled: Compiler,
    lavapipe: VulkanDriver,
    fast_module: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Play:
    """Plays a scene, once; with `drafts` on the module with the drafter, else in the client."""
    played: dict[str, Outcome] = {}

    def run(scene: str, recipe: str, model: str = DRAFTED, **more: Any) -> Outcome:
        key = json.dumps([scene, recipe, model, more], sort_keys=True)
        if key not in played:
            played[key] = start(scene, recipe, model, **more)
        return played[key]

    def start(scene: str, recipe: str, model: str, **more: Any) -> Outcome:
        package = compiled(model, "webgpu", recipe)
        folder = tmp_path_factory.mktemp(scene)
        job = {"package": str(package), "output": str(folder), "scene": scene, **more}
        job |= {"library": library_of(package), "capacity": SIZES[model].context_length}
        if "drafts" in more:
            job["fast"] = str(fast_module / "fast.js")
        result = run_driver("fast_conversation.mjs", job, folder, lavapipe.environment(folder))
        return Outcome(result["steps"], result.get("hasDrafter"), result.get("stats", {}))

    return run


def dialogues(compiled: Compiler, count: int) -> dict[str, Any]:
    """Held-out questions of the kind that `tiny` and its drafter know, for a scene."""
    package = Package.open(compiled(TINY, "cpu", "q4f16"))  # of the same tokenizer
    found = tasks(all_evaluation_dialogues(1, seed=7), package.load_tokenizer())
    prompts = [list(task.prompt) for task in found if len(task.prompt) < 300]
    stops = sorted(package.stop_token_ids)
    return {"prompts": prompts[:count], "stops": stops, "count": MOST_TOKENS}


@pytest.mark.slow
def test_guesses_on_dialogues_come_true(compiled: Compiler, play: Play) -> None:
    asked = dialogues(compiled, 4)
    plain = play("dialogues", "q4f16", **asked)
    found = play("dialogues", "q4f16", drafts=4, **asked)
    assert found.steps == plain.steps
    assert found.stats["reasons"] == []
    rounds, guessed, accepted = found.rounds
    with_guesses = rounds - len(asked["prompts"])  # after a prompt one has none
    assert guessed > 3 * with_guesses
    overlapped = found.stats["overlappedRounds"]
    assert overlapped > with_guesses / 2, "submitted before the one before is read"
    assert accepted + with_guesses >= LEAST_TOKENS_A_ROUND * with_guesses, (
        "as in the native runtime"
    )


@pytest.mark.slow
def test_replies_of_all_kinds_are_those_without_guesses(play: Play) -> None:
    """Rings wrap, turns, pops, aborts, other seeds and samplings, penalties, a context's end.

    Eight guesses; four: the test of dialogues; as many as pay: with rows from the host, below.
    """
    plain = play("drafted", "q4f32")
    assert len(plain.steps) > 220
    found = play("drafted", "q4f32", drafts=8)
    assert found.steps == plain.steps
    assert found.has_drafter is True
    assert found.stats["reasons"] == []
    rounds, guessed, accepted = found.rounds
    assert rounds > 60
    assert guessed <= 8 * rounds
    assert accepted > 10
    assert found.stats["overlappedRounds"] > rounds / 4


@pytest.mark.slow
def test_guesses_behind_beginnings_that_were_kept(play: Play) -> None:
    """A round before the first guess makes what a drafter needs of a prompt's last token."""
    plain = play("begun", "q4f32", unlooked=True)
    found = play("begun", "q4f32", unlooked=True, drafts=4, kept=2**26)
    assert found.steps == plain.steps
    assert found.stats["reasons"] == []
    assert found.stats["keptTokens"] >= 25 * SIZES[DRAFTED].prefill_chunk
    rounds, guessed, accepted = found.rounds
    assert guessed > rounds > 20
    assert accepted > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    exhaustive_if(lambda case: case.kind == "moe", EXACT),
    ids=lambda case: case.kind,
)
def test_rounds_of_every_kind_of_model(
    case: Case,
    lavapipe: VulkanDriver,
    fast_module: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Their functions have other launches and other buffers on the way; random drafters guess.

    Of experts, whose rows' logits are above, in `make test-exhaustive`.
    """
    made = case.package(tmp_path_factory)
    asked = max(SUBGROUP, target_spec("webgpu", case.limits).simd_width)

    def reply(name: str, **more: Any) -> dict[str, Any]:
        folder = tmp_path / name
        folder.mkdir()
        job = {"package": str(made.package), "library": library_of(made.package), "count": 24}
        job |= {"output": str(folder), "scene": "short", "capacity": CONTEXT, **more}
        environment = lavapipe.environment(folder, asked, optimised=False)
        return run_driver("fast_conversation.mjs", job, folder, environment)

    plain = reply("plain")
    found = reply("rounds", fast=str(fast_module / "fast.js"), drafts=4)
    assert found["steps"] == plain["steps"]
    assert found["stats"]["reasons"] == []
    assert found["stats"]["draftedTokens"] > 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scene", "drafts"),
    [
        ("drafted", 0),
        ("copied", 4),
        ("raced", 4),
        # Rows of a lost device are in test_fast, rounds of one below.
        pytest.param("lost", 4, marks=pytest.mark.exhaustive),
    ],
)
def test_guesses_with_rows_of_embeddings_from_the_host(scene: str, drafts: int, play: Play) -> None:
    """One round at a time, whose guesses are read before the model runs on their rows.

    What the client does to its state meanwhile cuts a round short: its first token is right.

    0 guesses, as many as pay, go by the clock: so does whether a token's logits come from
    `decode_tokens` or `verify_tokens`, whose sums differ in their order. Where a random number lies
    between two tokens to the last bits, another is drawn: seen once with float16 activations.
    """
    plain = play(scene, "q4f32")
    found = play(scene, "q4f32", drafts=drafts, rows={"room": 1 << 30})
    assert found.steps == plain.steps
    assert found.has_drafter is True
    assert found.stats["reasons"] == []
    assert found.stats["tableBytesOnHost"] > 0
    rounds, guessed, accepted = found.rounds
    if drafts:
        assert guessed > 3 * rounds / 2
        assert accepted > 0
        assert found.stats["aheadSteps"] > rounds / 2
    assert found.stats["overlappedRounds"] == 0
    assert found.stats["repeatedSteps"] >= (scene == "raced")


@pytest.mark.slow
def test_a_device_lost_with_rounds_on_their_way_ends_the_reply(play: Play) -> None:
    plain, found = play("lost", "q4f16"), play("lost", "q4f16", drafts=4)
    assert found.steps == plain.steps
    assert found.stats["overlappedRounds"] > 5
    assert found.stats["reasons"] == []


@pytest.mark.slow
def test_a_checkpoint_within_a_step_is_of_one_state(play: Play) -> None:
    """The client copies it in several calls, and rounds of guesses write rows on."""
    plain, found = play("copied", "q4f32"), play("copied", "q4f32", drafts=4)
    assert found.steps == plain.steps
    assert found.stats["overlappedRounds"] > 5
    assert found.stats["reasons"] == []


@pytest.mark.slow
def test_a_prompt_may_come_before_the_token_of_the_step_before_it(play: Play) -> None:
    plain = play("raced", "q4f32")
    for drafts in (4, 0):  # none: steps run ahead one by one
        found = play("raced", "q4f32", drafts=drafts)
        assert found.steps == plain.steps
        assert found.stats["repeatedSteps"] == 1
        assert found.stats["reasons"] == []


@pytest.mark.slow
def test_weights_that_are_not_the_package_s_are_refused(
    compiled: Compiler, play: Play, tmp_path: Path
) -> None:
    package = shutil.copytree(compiled(DRAFTED, "webgpu", "q4f16"), tmp_path / "broken")
    shard = package / "params_shard_drafter_0.bin"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    plain = play("short", "q4f16", count=SHORT)
    found = play("short", "q4f16", count=SHORT, drafts=4, drafter=str(package))
    assert found.has_drafter is False
    assert any(
        "params_shard_drafter_0.bin: expected sha256" in why for why in found.stats["reasons"]
    )
    assert found.steps == plain.steps
    assert found.stats["drafterBytes"] == 0


@pytest.mark.slow
def test_a_model_without_its_drafter_goes_on(compiled: Compiler, play: Play) -> None:
    drafted = compiled(DRAFTED, "webgpu", "q4f16")
    plain = play("short", "q4f16", TINY)
    found = play("short", "q4f16", TINY, drafts=4, drafter=str(drafted))
    assert found.has_drafter is False
    assert any("no loaded model takes these weights" in why for why in found.stats["reasons"])
    assert found.steps == plain.steps


@pytest.mark.slow
def test_a_trap_ends_the_guesses_alone(play: Play) -> None:
    plain = play("short", "q4f16", count=SHORT)
    found = play("short", "q4f16", count=SHORT, drafts=4, fake="a drafter that traps")
    assert found.steps == plain.steps
    assert found.stats["reasons"] == ["no tokens are drafted: unreachable"]
    assert found.stats["draftedTokens"] == found.stats["drafterBytes"] == 0
    assert found.stats["aheadSteps"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("alone", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_a_drafter_that_one_conversation_gives_up_leaves_the_other_s_step(
    alone: int, play: Play
) -> None:
    plain = play("states", "q4f32", alone=alone)
    again = {"fake": "a drafter that traps when it is recorded again"}
    found = play("states", "q4f32", drafts=4, alone=alone, **again)
    assert found.steps == plain.steps
    assert found.stats["reasons"] == ["no tokens are drafted: unreachable"]
    assert found.stats["drafterBytes"] == 0
    assert found.stats["overlappedRounds"] > 2
