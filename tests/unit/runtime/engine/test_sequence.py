"""The order of what is done with a sequence, on a KV state that only counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.engine.sequence import ContextFullError, Sequence, Sequences
from gemma4_compile.runtime.library.kv_state import KvState

ROOM = 10
RING = 6  # tokens that can be taken back


class CountingKv:
    """Lengths of sequences by their numbers; slots are given away in order."""

    sequences = 3

    def __init__(self) -> None:
        self.lengths: dict[int, int] = {}
        self.begun: dict[int, int] = {}

    def add(self, sequence: int) -> int:
        self.lengths[sequence] = 0
        return len(self.lengths) - 1

    def fork(self, parent: int, child: int, position: int) -> int:
        if position > self.lengths[parent]:
            raise ValueError(f"a sequence of {self.lengths[parent]} tokens")
        if position and position < self.lengths[parent] - RING:
            raise ValueError("the rings do not reach")
        slot = self.add(child)
        self.lengths[child] = position
        return slot

    def renew(self, sequence: int) -> int:
        self.lengths[sequence] = 0
        self.begun.clear()
        return len(self.lengths) - 1

    def remove(self, sequence: int) -> None:
        del self.lengths[sequence]

    def length(self, sequence: int) -> int:
        return self.lengths[sequence]

    def begin(
        self, sequences: tuple[int, ...], counts: tuple[int, ...], *, by_layer: bool = False
    ) -> None:
        self.begun = dict(zip(sequences, counts, strict=True))

    def end(self) -> None:
        for sequence, count in self.begun.items():
            self.lengths[sequence] += count
        self.begun = {}

    def pop(self, sequence: int, count: int) -> None:
        if count > min(self.lengths[sequence], RING):
            raise ValueError("the rings do not reach")
        self.lengths[sequence] -= count


class CopyingDevice:
    def copied(self, tensor: object) -> str:
        return f"copied {tensor}"


@pytest.fixture
def sequences() -> Sequences:
    device = cast("Device", CopyingDevice())
    return Sequences(cast("KvState", CountingKv()), ROOM, device)


@pytest.fixture
def sequence(sequences: Sequences) -> Sequence:
    return sequences.add()


def add(sequence: Sequence, count: int, logits: str | None = "logits") -> None:
    sequence.check(count)
    sequence.begin(count)
    sequence.end(cast("Any", logits))


def begin_round(sequence: Sequence, guesses: int) -> None:
    sequence.check(1)
    sequence.begin(guesses + 1)
    sequence.end_round(guesses)


def test_room_is_what_is_left_of_the_context(sequence: Sequence) -> None:
    add(sequence, 4)
    assert (sequence.length, sequence.room) == (4, 6)
    with pytest.raises(ContextFullError, match="holds 4 of 10 tokens, and 7 more do not fit"):
        sequence.check(7)
    sequence.check(6)


def test_within_a_round_nothing_is_added(sequence: Sequence) -> None:
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


def test_a_fork_has_nothing_of_what_is_ahead(sequences: Sequences) -> None:
    parent = sequences.add()
    add(parent, 4)
    for _ in range(2):
        Sequence.begin_ahead([parent])
        Sequence.end_ahead([parent], "a forward")
        assert sequences.fork(parent).length == parent.length == 4
        with pytest.raises(UsageError, match="fork: a sequence of 4 tokens"):
            sequences.fork(parent, 5)
        sequences.remove(sequences.others[-1])


@pytest.mark.parametrize("end", [Sequence.clear, lambda sequence: sequence.pop(2)])
def test_a_round_ends_when_its_tokens_are_taken_back(
    end: Callable[[Sequence], object], sequence: Sequence
) -> None:
    begin_round(sequence, 3)
    end(sequence)
    assert sequence.tentative is None
    sequence.check(1)


def test_every_change_has_a_version_of_its_own(sequence: Sequence) -> None:
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


def test_logits_are_those_of_the_last_token_alone(sequence: Sequence) -> None:
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


# --- Several ---


def test_a_fork_begins_with_tokens_of_its_parent(sequences: Sequences, sequence: Sequence) -> None:
    add(sequence, 5)
    whole, part = sequences.fork(sequence), sequences.fork(sequence, 3)
    assert [one.length for one in (sequence, whole, part)] == [5, 5, 3]
    assert whole.logits == "copied logits", "the parent's next step may write where they are"
    assert part.logits is None, "they are of a token that it has not"
    add(part, 2)
    assert [one.length for one in (sequence, whole, part)] == [5, 5, 5]


def test_a_fork_where_the_rings_do_not_reach_adds_nothing(
    sequences: Sequences, sequence: Sequence
) -> None:
    add(sequence, 9)
    with pytest.raises(UsageError, match="fork: the rings do not reach"):
        sequences.fork(sequence, 1)
    assert len(sequences) == 1
    begin_round(sequence, 0)
    with pytest.raises(UsageError, match="call accept first"):
        sequences.fork(sequence)


def test_a_fork_begins_at_a_position(sequences: Sequences, sequence: Sequence) -> None:
    """The state itself takes -1 for the end, as TVM's does."""
    add(sequence, 5)
    with pytest.raises(UsageError, match="position from 0 on, found -1"):
        sequences.fork(sequence, -1)
    assert len(sequences) == 1


def test_a_sequence_of_another_engine_is_left_alone(
    sequences: Sequences, sequence: Sequence
) -> None:
    others = Sequences(cast("KvState", CountingKv()), ROOM, cast("Device", CopyingDevice()))
    for foreign in (others.add(), others.add()):
        uses = (sequences.check, sequences.fork, sequences.remove)
        for use in uses:
            with pytest.raises(UsageError, match="another engine's"):
                use(foreign)
        add(foreign, 2)
    assert (len(sequences), sequence.length, len(others)) == (1, 0, 2)


def test_there_are_as_many_as_there_is_room_for(sequences: Sequences, sequence: Sequence) -> None:
    other = sequences.add()
    sequences.add()
    for more in (sequences.add, lambda: sequences.fork(sequence)):
        with pytest.raises(UsageError, match="the engine holds 3"):
            more()
    sequences.remove(other)
    assert sequences.add().length == 0


def test_nothing_is_done_with_a_sequence_that_was_removed(
    sequences: Sequences, sequence: Sequence
) -> None:
    other = sequences.add()
    sequences.remove(other)
    uses: tuple[Callable[[], object], ...] = (
        lambda: other.length,
        lambda: other.check(1),
        lambda: other.pop(0),
        other.clear,
        lambda: sequences.fork(other),
        lambda: sequences.remove(other),
    )
    for use in uses:
        with pytest.raises(UsageError, match="was removed"):
            use()
    with pytest.raises(UsageError, match="clear it instead"):
        sequences.remove(sequence)
    assert len(sequences) == 1


def test_a_token_that_was_chosen_is_forgotten_with_the_end(sequence: Sequence) -> None:
    for end in (lambda: sequence.pop(1), sequence.clear, lambda: add(sequence, 1)):
        add(sequence, 2)
        sequence.chosen = 7
        end()
        assert sequence.chosen is None
