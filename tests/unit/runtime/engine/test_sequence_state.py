"""The order of what is done with a sequence, on a KV state that only counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.engine.sequence_state import ContextFullError, SequenceState
from gemma4_compile.runtime.library.kv_state import KvState

ROOM = 10
RING = 6  # tokens that can be taken back


class CountingKv:
    def __init__(self) -> None:
        self.length = 0
        self.begun = 0

    def begin(self, count: int) -> None:
        self.begun = count

    def end(self) -> None:
        self.length, self.begun = self.length + self.begun, 0

    def pop(self, count: int) -> None:
        if count > min(self.length, RING):
            raise ValueError("the rings do not reach")
        self.length -= count

    def clear(self) -> None:
        self.length = self.begun = 0


@pytest.fixture
def sequence() -> SequenceState:
    return SequenceState(cast("KvState", CountingKv()), ROOM)


def add(sequence: SequenceState, count: int, logits: str | None = "logits") -> None:
    sequence.check(count)
    sequence.begin(count)
    sequence.end(cast("Any", logits))


def begin_round(sequence: SequenceState, guesses: int) -> None:
    sequence.check(1)
    sequence.begin(guesses + 1)
    sequence.end_round(guesses)


def test_room_is_what_is_left_of_the_context(sequence: SequenceState) -> None:
    add(sequence, 4)
    assert (sequence.length, sequence.room) == (4, 6)
    with pytest.raises(ContextFullError, match="holds 4 of 10 tokens, and 7 more do not fit"):
        sequence.check(7)
    sequence.check(6)


def test_within_a_round_nothing_is_added(sequence: SequenceState) -> None:
    with pytest.raises(UsageError, match="no round of guesses"):
        sequence.keep(0)
    begin_round(sequence, 3)
    with pytest.raises(UsageError, match="call accept first"):
        sequence.check(1)
    for count in (-1, 4):
        with pytest.raises(UsageError, match=f"expected 0 to 3 guesses, found {count}"):
            sequence.keep(count)
    sequence.keep(2)
    assert sequence.length == 3
    sequence.check(1)


@pytest.mark.parametrize("end", [SequenceState.clear, lambda sequence: sequence.pop(2)])
def test_a_round_ends_when_its_tokens_are_taken_back(
    end: Callable[[SequenceState], object], sequence: SequenceState
) -> None:
    begin_round(sequence, 3)
    end(sequence)
    assert sequence.tentative is None
    sequence.check(1)


def test_every_change_has_a_version_of_its_own(sequence: SequenceState) -> None:
    seen = [sequence.version]
    changes: tuple[Callable[[], object], ...] = (
        lambda: add(sequence, 3),
        lambda: begin_round(sequence, 2),
        lambda: sequence.keep(1),
        lambda: sequence.pop(1),
        sequence.clear,
    )
    for change in changes:
        change()
        seen.append(sequence.version)
    assert len(set(seen)) == len(seen)
    assert not sequence.pop(1), "there is nothing to take back"
    assert sequence.version == seen[-1]


def test_logits_are_those_of_the_last_token_alone(sequence: SequenceState) -> None:
    add(sequence, 3)
    assert sequence.logits == "logits"
    assert not sequence.pop(7)
    assert sequence.logits == "logits", "nothing was taken back"
    assert sequence.pop(1)
    assert sequence.logits is None, "they are of a token that is gone"
    add(sequence, 3)
    begin_round(sequence, 0)
    assert sequence.logits is None, "those of a round are read by rows"
    sequence.keep(0)
    add(sequence, 1)
    sequence.clear()
    assert sequence.logits is None
