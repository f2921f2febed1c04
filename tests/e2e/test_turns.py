"""A step of several sequences, each with its own sampler, against engines that have one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime import ContextFullError, Engine, Sampler, SamplingOptions
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.sampling.sampling import AdjustedSampler, Float32Array, TokenChooser

CONTEXT = 256


@pytest.fixture(scope="module")
def alone(tiny_package: Path) -> Engine:
    return Engine.open(tiny_package)


@pytest.fixture
def engine(tiny_package: Path) -> Engine:
    return Engine.open(tiny_package, sequences=3)


def ids_of(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(107, 1000, count).tolist()


def samplers() -> list[TokenChooser]:
    warm = SamplingOptions(temperature=1.5, top_p=0.98)
    penalty = SamplingOptions(temperature=0.9, presence_penalty=1.0)
    greedy = SamplingOptions(temperature=0.0)
    return [Sampler(warm, seed=3), AdjustedSampler(penalty, seed=4), Sampler(greedy)]


def by_hand(alone: Engine, prompt: Sequence[int], sampler: TokenChooser, count: int) -> list[int]:
    """Tokens after a prompt, each chosen from logits on the host."""
    alone.clear()
    logits, tokens = alone.prefill(prompt), []
    for _ in range(count):
        tokens.append(sampler(logits))
        logits = alone.decode(tokens[-1])
    return tokens


def test_a_step_gives_each_the_token_that_it_would_have_alone(
    engine: Engine, alone: Engine
) -> None:
    sequences = [engine.sequence, engine.sequences.add(), engine.sequences.add()]
    prompts = [ids_of(30 + 40 * index, index) for index in range(3)]
    for sequence, prompt, sampler in zip(sequences, prompts, samplers(), strict=True):
        engine.prefill(prompt, sequence)
        sequence.sampler = sampler
    found = [engine.step(sequences) for _ in range(8)]
    found += [engine.step(sequences[::-1])[::-1]]
    assert [one.length for one in sequences] == [30 + 8, 70 + 8, 110 + 8]
    for index, (prompt, sampler) in enumerate(zip(prompts, samplers(), strict=True)):
        assert [tokens[index] for tokens in found] == by_hand(alone, prompt, sampler, 9)
    assert engine.step([]) == []
    assert len(engine.step(sequences[1:2])) == 1
    assert [one.length for one in sequences] == [38, 79, 118]


def test_a_step_draws_on_a_device_that_is_faster(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokens as one draw after another, each with its own temperature and seed."""
    sequences = [engine.sequence, engine.sequences.add()]
    options = [SamplingOptions(temperature=2.0), SamplingOptions(temperature=0.7, top_p=0.9)]
    expected = []
    for seed, option in enumerate(options):
        engine.clear()
        engine.prefill([2, 9 + seed])
        random = Sampler(option, seed).random
        drawn = engine.sampling.sampled(option.temperature, option.top_p, random)
        expected.append([next(drawn) for _ in range(5)])
        drawn.close()
    engine.clear()
    monkeypatch.setattr(Device, "kind", replace(engine.device.kind, draws=True))
    for seed, (sequence, option) in enumerate(zip(sequences, options, strict=True)):
        engine.prefill([2, 9 + seed], sequence)
        sequence.sampler = Sampler(option, seed)
    found = [engine.step(sequences) for _ in range(5)]
    assert [list(tokens) for tokens in zip(*found, strict=True)] == expected


def test_a_step_that_cannot_be_done_adds_to_none(engine: Engine) -> None:
    first, second = engine.sequence, engine.sequences.add()
    first.sampler = second.sampler = Sampler(SamplingOptions(temperature=0.0))
    engine.prefill(ids_of(30, 1), first)
    with pytest.raises(UsageError, match="no tokens: add a prompt"):
        engine.step([first, second])
    engine.prefill(ids_of(CONTEXT - 1, 2), second)
    with pytest.raises(UsageError, match="named twice"):
        engine.step([first, first])
    engine.step([first, second])
    engine.step([first, second])
    assert second.length == CONTEXT
    with pytest.raises(ContextFullError, match="256 of 256 tokens"):
        engine.step([first, second])
    assert first.length == 31
    second.sampler = None
    with pytest.raises(UsageError, match="no sampler"):
        engine.step([first, second])
    assert (first.length, engine.step([first])[0]) == (31, first.chosen)


def test_a_fork_chooses_from_the_logits_of_its_beginning(engine: Engine, alone: Engine) -> None:
    """Two ways to go on after one prompt, the parent first."""
    prompt = ids_of(25, 8)
    engine.prefill(prompt)
    child = engine.sequences.fork(engine.sequence)
    engine.sequence.sampler, child.sampler = samplers()[:2]
    for sequence, sampler in zip((engine.sequence, child), samplers()[:2], strict=True):
        found = [engine.step([sequence])[0] for _ in range(6)]
        assert found == by_hand(alone, prompt, sampler, 6)


def test_a_step_whose_sampler_fails_chooses_for_none(engine: Engine) -> None:
    """All tokens are added once, and the step after it gives each the next one."""
    greedy = Sampler(SamplingOptions(temperature=0.0))
    first, second = engine.sequence, engine.sequences.add()

    def fail(logits: Float32Array) -> int:
        raise ZeroDivisionError

    def clear(logits: Float32Array) -> int:
        second.clear()
        return 3

    def states() -> list[tuple[int, int | None]]:
        return [(one.length, one.chosen) for one in (first, second)]

    def choosing(token: object) -> TokenChooser:
        return cast("TokenChooser", lambda logits: token)

    for one in (first, second):
        engine.prefill([2, 9, 10], one)
        one.sampler = greedy
    chosen = engine.step([first, second])
    second.sampler = fail
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            engine.step([first, second])
        assert states() == [(4, None), (4, None)]
    for wrong in (None, -1, engine.vocab_size, 1.0):
        second.sampler = choosing(wrong)
        with pytest.raises(UsageError, match=f"chose {wrong}: expected a token id, 0 to"):
            engine.step([first, second])
    second.sampler = choosing(np.int64(7))
    again = engine.step([first, second])
    assert states() == [(4, again[0]), (4, 7)]
    engine.clear()
    assert again[0] == int(np.argmax(engine.prefill([2, 9, 10, chosen[0]])))
    first.sampler = clear
    with pytest.raises(UsageError, match="a sampler changed a sequence"):
        engine.step([first, second])
    assert states() == [(4, None), (0, None)]


def test_a_step_says_why_a_sequence_cannot_take_part(engine: Engine, alone: Engine) -> None:
    """Nothing is added, to a sequence of another engine neither."""
    greedy = Sampler(SamplingOptions(temperature=0.0))
    first, removed, popped = engine.sequence, engine.sequences.add(), engine.sequences.add()
    alone.clear()
    alone.prefill([2, 9, 10])
    for one in (first, removed, popped):
        engine.prefill([2, 9, 10], one)
    popped.pop(1)
    engine.sequences.remove(removed)
    wrong = [(removed, "was removed"), (popped, "taken back"), (alone.sequence, "another engine's")]
    for one, why in wrong:
        one.sampler = first.sampler = greedy
        with pytest.raises(UsageError, match=why):
            engine.step([first, one])
        assert first.chosen is None
    with pytest.raises(UsageError, match="another engine's"):
        engine.prefill([3], alone.sequence)
    with pytest.raises(UsageError, match="was removed"):
        engine.decode(3, removed)
    assert (first.length, popped.length, alone.length) == (3, 2, 3)
    first.tentative = 0
    with pytest.raises(UsageError, match="call accept first"):
        engine.step([first])
