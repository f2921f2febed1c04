"""Several sequences of one engine: each is, byte for byte, what it is on an engine of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.engine import sequence as engine_sequence
from gemma4_compile.runtime.sampling.sampling import Float32Array
from tests.several_sequences import emptied, ids_of

RINGS = 64
"""Rows of the package's sliding layers: later positions overwrite."""


@pytest.fixture(scope="module")
def shared(tiny_package: Path) -> Engine:
    return Engine.open(tiny_package, sequences=3)


@pytest.fixture
def engine(shared: Engine) -> Engine:
    return emptied(shared)


@pytest.fixture(scope="module")
def alone(tiny_package: Path) -> Engine:
    return Engine.open(tiny_package)


@dataclass
class Talk:
    """What is done with a sequence, to be done again alone."""

    engine: Engine
    sequence: engine_sequence.Sequence
    done: list[tuple[str, Any]] = field(default_factory=list)
    logits: list[Float32Array] = field(default_factory=list)

    def prefill(self, ids: Sequence[int]) -> None:
        self.done.append(("prefill", list(ids)))
        self.logits.append(self.engine.prefill(ids, self.sequence))

    def decode(self, token: int) -> None:
        self.done.append(("decode", token))
        self.logits.append(self.engine.decode(token, self.sequence))

    def pop(self, count: int) -> None:
        self.done.append(("pop", count))
        assert self.sequence.pop(count)

    def fork(self, position: int) -> Talk:
        """Another one, whose end is as if tokens had been taken back."""
        child = self.engine.sequences.fork(self.sequence, position)
        back = ("pop", self.sequence.length - position)
        return Talk(self.engine, child, [*self.done, back], list(self.logits))

    def check(self, alone: Engine) -> None:
        alone.clear()
        found = []
        for kind, value in self.done:
            result = getattr(alone, kind)(value)
            if kind != "pop":
                found.append(result)
        for expected, logits in zip(found, self.logits, strict=True):
            assert np.isfinite(logits).all()
            assert logits.tobytes() == expected.tobytes()
        assert self.sequence.length == alone.length


@pytest.mark.parametrize("count", [2, 3])
def test_sequences_that_take_turns(engine: Engine, alone: Engine, count: int) -> None:
    """Beyond what the rings hold, with tokens taken back between."""
    others = [engine.sequences.add() for _ in range(count - 1)]
    talks = [Talk(engine, sequence) for sequence in (engine.sequence, *others)]
    for index, talk in enumerate(talks):
        talk.prefill(ids_of(RINGS + 10 - 20 * index, index))
    for turn in range(3):
        for index, talk in enumerate(talks):
            talk.decode(200 + turn + 7 * index)
            if turn == index:
                talk.pop(2)
    for index, talk in enumerate(talks):
        talk.prefill(ids_of(70 + index, 10 + index))
        talk.decode(300 + index)
    for talk in talks:
        assert talk.sequence.length > RINGS
        talk.check(alone)


@pytest.mark.parametrize("length", [20, 200])
def test_a_fork_goes_on_with_other_tokens(engine: Engine, alone: Engine, length: int) -> None:
    """At several positions, those of a conversation whose rings have wrapped among them."""
    parent = Talk(engine, engine.sequence)
    parent.prefill(ids_of(length, 1))
    for position in (length, length - 1, length - 9):
        child = parent.fork(position)
        child.decode(400)
        parent.decode(500)
        child.prefill(ids_of(12, position))
        child.check(alone)
        parent.pop(1)
        engine.sequences.remove(child.sequence)
    parent.decode(600)
    parent.check(alone)


def test_a_fork_is_refused_where_the_rings_do_not_reach(engine: Engine) -> None:
    engine.prefill(ids_of(240, 1))
    engine.pop(1)
    with pytest.raises(UsageError, match="sliding layers have overwritten"):
        engine.sequences.fork(engine.sequence, 5)
    with pytest.raises(UsageError, match="of 239 tokens after 240"):
        engine.sequences.fork(engine.sequence, 240)
    assert len(engine.sequences) == 1
    assert engine.sequences.fork(engine.sequence, 0).length == 0


def test_one_that_was_removed_leaves_nothing(engine: Engine, alone: Engine) -> None:
    before = engine.sequences.add()
    engine.prefill(ids_of(150, 3), before)
    slot = before.slot
    engine.sequences.remove(before)
    talk = Talk(engine, engine.sequences.add())
    assert talk.sequence.slot == slot
    talk.prefill(ids_of(10, 4))
    talk.decode(300)
    talk.check(alone)
    with pytest.raises(UsageError, match="was removed"):
        engine.decode(3, before)


def test_one_that_is_cleared_leaves_the_others(engine: Engine, alone: Engine) -> None:
    kept = Talk(engine, engine.sequences.add())
    kept.prefill(ids_of(30, 5))
    engine.prefill(ids_of(40, 6))
    engine.clear()
    assert (engine.length, kept.sequence.length) == (0, 30)
    kept.decode(201)
    kept.check(alone)


def test_a_forward_that_was_interrupted_is_over_when_its_sequence_is_cleared(
    engine: Engine, alone: Engine
) -> None:
    other = Talk(engine, engine.sequences.add())
    engine.sequence.begin(1)  # and Ctrl-C
    with pytest.raises(RuntimeError, match="of sequence 0, has not ended"):
        other.prefill([2, 3])
    engine.clear()
    other = Talk(engine, other.sequence)
    other.prefill([2, 3])
    other.check(alone)


# --- Opening ---


@pytest.mark.parametrize("wrong", [0, -1, 2**40])
def test_impossible_numbers_of_sequences(tiny_package: Path, wrong: int) -> None:
    with pytest.raises(UsageError, match=f"sequences: expected 1 to 1024, found {wrong}"):
        Engine.open(tiny_package, sequences=wrong)


def test_more_sequences_than_there_is_room_for(engine: Engine) -> None:
    for _ in range(2):
        engine.sequences.add()
    with pytest.raises(UsageError, match="the engine holds 3") as error:
        engine.sequences.add()
    assert "sequences" in (error.value.hint or "")
