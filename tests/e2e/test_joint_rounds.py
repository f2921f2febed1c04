"""Rounds of several sequences in one forward: each is what it is alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.errors import UsageError
from gemma4_compile.runtime import ContextFullError, Engine
from gemma4_compile.runtime.engine.joint_rounds import SWITCH
from gemma4_compile.runtime.engine.rounds import Rounds
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.library.native_library import NativeLibrary
from tests.drafted import CONTEXT, drafted_package
from tests.marks import slow_unless


@pytest.fixture(scope="module", params=slow_unless(lambda kind: kind == "e2b", ["e2b", "moe"]))
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drafted_package(tmp_path_factory, request.param).package


def ids_of(count: int, seed: int) -> list[int]:
    return [int(one) for one in np.random.default_rng(seed).integers(107, 256, count)]


def begun(engine: Engine, prompts: list[list[int]]) -> list[Sequence]:
    """Sequences with these prompts, the engine's own first."""
    sequences = [engine.sequence, *(engine.sequences.add() for _ in prompts[1:])]
    for sequence, prompt in zip(sequences, prompts, strict=True):
        engine.prefill(prompt, sequence)
    return sequences


def rounds_of(engine: Engine, sequences: list[Sequence]) -> list[Rounds]:
    assert engine.rounds is not None
    return [engine.rounds, *map(engine.rounds.beside, sequences[1:])]


def guessed_together(engine: Engine, patch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Where each call for guesses of several sequences is noted: of how many, and how many each."""
    joint, noted = engine.joint_rounds, list[tuple[int, int]]()
    assert joint is not None
    assert joint.guesses is not None
    plain = joint.guesses.guess

    def guess(tokens: list[int], states: list[Any], count: int) -> list[list[int]]:
        noted.append((len(tokens), count))
        return plain(tokens, states, count)

    patch.setattr(joint.guesses, "guess", guess)
    return noted


@pytest.mark.parametrize("count", [2, 3])
def test_rounds_that_share_a_forward_are_those_of_each_alone(
    count: int, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits, byte for byte, as of one token after another; guesses as of a round alone."""
    prompts = [ids_of(5, 1), ids_of(CONTEXT // 2, 2), ids_of(CONTEXT - 9, 3)][-count:]
    engine, plain, apart = (Engine.open(package, sequences=count) for _ in range(3))
    sequences, by_token, by_round = (begun(one, prompts) for one in (engine, plain, apart))
    rounds, rounds_alone = rounds_of(engine, sequences), rounds_of(apart, by_round)
    joint, order = engine.joint_rounds, np.random.default_rng(4)
    assert joint is not None
    noted, drafts = guessed_together(engine, monkeypatch), joint.most_guesses(count)
    for step in range(4):
        places = [int(place) for place in order.permutation(count)]
        tokens = [110 + 10 * place + step for place in places]
        joint.begin([rounds[place] for place in places], tokens, drafts)
        for place, token in zip(places, tokens, strict=True):
            assert rounds[place].is_checked
            guesses, rows = rounds[place].advance(token, drafts)
            assert not rounds[place].is_checked
            assert guesses == rounds_alone[place].advance(token, drafts)[0]
            assert len(guesses) == (drafts if step else 0), "the first one is for the state"
            for row, added in enumerate([token, *guesses]):
                expected = plain.decode(added, by_token[place])
                np.testing.assert_array_equal(rows.read(row), expected)
            accepted = step % 2 if guesses else 0
            rounds[place].accept(accepted)
            rounds_alone[place].accept(accepted)
            assert by_token[place].pop(len(guesses) - accepted)
            assert sequences[place].length == by_token[place].length
    assert noted == [(count, drafts)] * 3


def test_guesses_are_those_of_one_sequence_after_the_other(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As libraries of before make them; where a sequence has no room for all, or no state yet."""
    prompts = [ids_of(5, 1), ids_of(CONTEXT - 4, 2)]
    engine = Engine.open(package, sequences=3)
    noted = guessed_together(engine, monkeypatch)
    monkeypatch.setattr(NativeLibrary, "has", lambda self, name: name != abi.DRAFT_ROWS)
    before = Engine.open(package, sequences=3)
    assert before.joint_rounds is not None
    assert before.joint_rounds.guesses is None, "a library of an earlier version"
    assert before.joint_rounds.most_guesses(2) == 3
    found: list[list[list[int]]] = []
    for one in (engine, before):
        joint, own = one.joint_rounds, list[list[int]]()
        assert joint is not None
        sequences = begun(one, [*prompts, ids_of(20, 3)])
        *rounds, late = rounds_of(one, sequences)
        for step in range(4):
            chosen = [*rounds[:1], late] if step == 3 else rounds
            joint.begin(chosen, [120 + step] * 2, 3)
            for each in chosen:
                own.append(each.advance(120 + step, 3)[0])
                each.accept(0)
        found.append(own)
    assert found[0] == found[1]
    assert [len(guesses) for guesses in found[0]] == [0, 0, 3, 2, 3, 1, 3, 0]
    assert noted == [(2, 3), (2, 3)], "one that guesses alone does as it does without others"


def test_rounds_that_cannot_share_a_forward_are_refused_and_add_nothing(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.open(package, sequences=5)
    own, joint = engine.rounds, engine.joint_rounds
    assert own is not None
    assert joint is not None
    others = [own.beside(engine.sequences.add()) for _ in range(4)]
    assert [joint.most_guesses(count) for count in range(1, 6)] == [0, 3, 1, 1, 0]
    engine.prefill(ids_of(CONTEXT, 1))
    wrong: list[tuple[list[Rounds], int, type[Exception], str]] = [
        ([own, own], 1, UsageError, "a sequence is named twice"),
        (others[:1], 1, UsageError, "of 1 sequences: expected 1 to 0 guesses, found 1"),
        (others[:2], 4, UsageError, "of 2 sequences: expected 1 to 3 guesses, found 4"),
        (others, 1, UsageError, "of 4 sequences: expected 1 to 1 guesses, found 0"),
        ([others[0], own], 1, ContextFullError, "the context is full"),
    ]
    for rounds, drafts, error, message in wrong:
        with pytest.raises(error, match=message):
            joint.begin(rounds, [110] * len(rounds), 0 if "found 0" in message else drafts)
    assert [one.sequence.length for one in others] == [0] * 4
    engine.sequence.clear()
    joint.begin([own, others[0]], [110, 111], 1)
    own.sequence.clear()
    assert (own.is_checked, others[0].is_checked) == (False, True)
    for one, token in ((others[0], 111), (own, 112)):
        assert one.advance(token, 1)[0] == []
        one.accept(0)
    assert [one.sequence.length for one in (own, others[0])] == [1, 1]
    monkeypatch.setenv(SWITCH, "0")
    off = Engine.open(package, sequences=2)
    assert off.joint_rounds is not None
    assert off.joint_rounds.most_guesses(2) == 0, "the environment forbids it"
    monkeypatch.delenv(SWITCH)
    monkeypatch.setattr(NativeLibrary, "has", lambda self, name: name != abi.VERIFY_ROWS)
    before = Engine.open(package, sequences=2)
    assert before.joint_rounds is not None
    assert before.joint_rounds.most_guesses(2) == 0, "a library of an earlier version"
