"""Which slot a prompt takes, and what becomes of slots that find no room."""

from __future__ import annotations

import logging

import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.engine.slots import LEAST_FORK, Slots
from gemma4_compile.runtime.engine.token_engine import TokenEngine
from tests.scripted_engine import (
    GuessingEngine,
    ScriptedEngine,
    ScriptedSequences,
    ScriptedShelf,
    greedy,
    scripted_slots,
    slots_of,
)

LONG = list(range(300, 400))


def answer(slots: Slots, prompt: list[int]) -> int:
    """Generate in the slot that a prompt takes, and free it; its number."""
    slot = slots.take(prompt)
    list(slot.generator.start(prompt, greedy))
    slot.is_free = True
    return slot.number


def made(count: int) -> Slots:
    return scripted_slots(*(ScriptedEngine([500]) for _ in range(count)))


def test_a_conversation_goes_on_in_its_slot_and_others_take_new_ones() -> None:
    slots = made(3)
    asked = [LONG[:20], LONG[40:60], LONG[:30], LONG[40:80], LONG[80:]]
    assert [answer(slots, prompt) for prompt in asked] == [0, 1, 0, 1, 2]
    assert [answer(slots, [*LONG[50:60]]), answer(slots, LONG[60:70])] == [0, 1]  # the oldest uses


def test_a_template_alone_is_no_shared_beginning() -> None:
    slots = made(2)
    first, second = [1, 2, 3, *LONG[:20]], [1, 2, 3, *LONG[40:60]]
    assert [answer(slots, first), answer(slots, second), answer(slots, first)] == [0, 1, 0]


def test_slots_that_are_taken_are_left_alone() -> None:
    slots = made(2)
    answer(slots, LONG)
    taken = [slots.take(LONG), slots.take(LONG)]
    assert [slot.number for slot in taken] == [0, 1]
    assert (slots.free, slots.has_room()) == (0, False)
    taken[1].is_free = True
    assert (slots.free, slots.has_room()) == (1, True)
    assert slots.take(LONG) is taken[1]


def test_one_alone_takes_the_slot_that_guesses() -> None:
    slots = scripted_slots(GuessingEngine([500]), ScriptedEngine([500]))
    assert [answer(slots, LONG[begin:][:9]) for begin in (0, 20, 40)] == [0, 0, 0]
    slots.take(LONG[:9])
    assert answer(slots, LONG[60:70]) == 1


class NoRoom(ScriptedSequences):
    """Has memory for two of its engines."""

    def add(self) -> ScriptedEngine:
        if self.added == 2:
            raise ArtifactError("no room for keys and values")
        return super().add()


class NoRoomLater(ScriptedSequences):
    """Has memory for two of its engines, and is asked for it when the third one begins."""

    def add(self) -> ScriptedEngine:
        added = super().add()
        if self.added == 3:
            added.clear = self.refuse  # type: ignore[method-assign]
        return added

    def refuse(self) -> None:
        raise ArtifactError("no room for keys and values")


@pytest.mark.parametrize("kind", [NoRoom, NoRoomLater])
def test_a_slot_without_room_is_one_fewer(
    kind: type[ScriptedSequences], caplog: pytest.LogCaptureFixture
) -> None:
    slots = slots_of(kind([ScriptedEngine([500]) for _ in range(4)]))
    assert slots.free == 4
    slots.take(LONG)
    slots.take(LONG[50:])
    with caplog.at_level(logging.WARNING):
        assert not slots.has_room()
    assert "2 slots in the place of 4: no room for keys and values" in caplog.text
    assert (slots.most, slots.free) == (2, 0)


def test_a_fork_must_spare_enough() -> None:
    sequences = ScriptedSequences([ScriptedEngine([500]) for _ in range(2)])
    slots = slots_of(sequences)
    answer(slots, LONG)
    parent, child = slots.take(LONG), slots.take(LONG)
    assert not slots.fork(child, LONG[:32])
    assert slots.fork(child, LONG[:33])
    assert sequences.forks == [(0, 1, 32)]
    assert child.generator.held_keys == LONG[:32]
    assert parent.generator.rewind([*LONG, 7]) == len(LONG)
    assert child.generator.rewind([*LONG[:32], 7, 8]) == 32


class NoneIntoTheFirst(ScriptedSequences):
    """As an engine's own sequence, the first one takes no copy; the third one's rings are gone."""

    def can_fork(self, parent: TokenEngine, child: TokenEngine, count: int) -> bool:
        return child is not self.engines[0] and (not count or parent is not self.engines[2])


def test_where_no_copy_can_be_made_a_slot_keeps_what_it_holds() -> None:
    sequences = NoneIntoTheFirst([ScriptedEngine([500]) for _ in range(4)])
    slots = slots_of(sequences)
    for slot, count in zip([slots.take(LONG[:9]) for _ in range(4)], (40, 80, 90, 0), strict=True):
        slot.generator.rewind(LONG)
        for begin in range(0, count, 10):
            slot.generator.prefill(Prompt(LONG[begin : begin + 10]))
        assert slot.generator.held_keys == LONG[:count]
    first, last = slots.held[0], slots.held[3]
    assert not slots.fork(first, LONG)
    assert first.generator.rewind(LONG) == 40
    assert slots.fork(last, LONG)
    assert sequences.forks == [(1, 3, 80)]


class Reaching(ScriptedShelf):
    """Keeps rings of so many tokens of any prompt."""

    tokens = 0

    def reach(self, prompt: Prompt) -> int:
        return self.tokens


class NearTheEnd(ScriptedSequences):
    """Rings hold the end alone."""

    def can_fork(self, parent: TokenEngine, child: TokenEngine, count: int) -> bool:
        return count in (0, parent.length)


@pytest.mark.parametrize(
    ("reach", "behind", "expected"),
    [(40, 100, (0, 1, 140)), (31, 100, None), (40, 120, (0, 1, 160)), (40, 121, None)],
)
def test_all_of_a_slot_is_copied_where_what_its_rings_lost_is_kept(
    reach: int, behind: int, expected: tuple[int, int, int] | None
) -> None:
    """If that is enough of a prompt, and no more than four times what they share."""
    sequences, shelf = NearTheEnd([ScriptedEngine([500]) for _ in range(2)]), Reaching()
    slots = slots_of(sequences, shelf=shelf)
    shelf.tokens = reach
    parent, child = slots.take(LONG), slots.take(LONG)
    for begin in range(0, 40 + behind, 10):
        held = [*LONG[:40], *range(600, 600 + behind)]
        parent.generator.prefill(Prompt(held[begin : begin + 10]))
    assert slots.fork(child, [*LONG[:40], 7]) is (expected is not None)
    assert sequences.forks == ([expected] if expected else [])
    assert len(child.generator.held_keys) == (expected[2] if expected else 0)


def test_what_can_be_copied_goes_where_a_copy_can_be_made() -> None:
    slots = slots_of(NoneIntoTheFirst([ScriptedEngine([500]) for _ in range(3)]))
    for begin in (0, 30, 60):
        answer(slots, LONG[begin:][:9])
    long = [*LONG[50:], *LONG[:20]]
    busy = slots.take(LONG[30:40])
    assert busy.number == 1
    assert slots.take(long, read=LEAST_FORK).number == 2  # the first one's use is longer ago
    slots.held[2].is_free = True
    busy.generator.rewind(long)
    for begin in range(0, 40, 10):
        busy.generator.prefill(Prompt(long[begin : begin + 10]))
    assert slots.take(long).number == 2
    assert slots.take(long).number == 0  # there is no other one
