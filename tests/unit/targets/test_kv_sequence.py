"""Several sequences in one state, `targets/native/kv_sequence.cc`, in a library for the CPU.

Each is held against a state of its own that is given the same rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

from gemma4_compile import abi
from tests.unit.targets.checkpoints import (
    CHUNK,
    EXPORT,
    FINISH,
    IMPORT,
    LAYERS,
    METADATA,
    PREPARE,
    ROWS,
    TOTAL,
    WINDOW,
    WRAPPED,
    Library,
    export,
    load,
    restore,
    rows_of,
    write,
)
from tests.unit.targets.kv_library import NativeState

FUNCTIONS = (abi.KV_KEY, abi.KV_VALUE)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return load(tmp_path_factory.mktemp("sequences"))


def state_of(library: Library, count: int) -> NativeState:
    return NativeState(library.module, total=TOTAL, chunk=CHUNK, max_sequences=count)


class Alone:
    """A sequence of a state, and a state that has such a one alone."""

    def __init__(self, library: Library, state: NativeState, name: int) -> None:
        self.state, self.name = state, name
        self.own = library.state()
        self._seed = 0

    def write(self, count: int) -> None:
        """Forward some tokens, with the same rows in both."""
        self._seed += 1
        for state, name in ((self.state, self.name), (self.own, 0)):
            rng = np.random.default_rng([self.name, self._seed])
            write(state, state.length_of(name) + count, rng, name)

    def pop(self, count: int) -> None:
        self.state.pop(count, self.name)
        self.own.pop(count)

    def check(self) -> None:
        """What the next token could attend to is the same."""
        assert self.state.length_of(self.name) == self.own.length
        for expected, found in zip(rows_of(self.own), rows_of(self.state, self.name), strict=True):
            np.testing.assert_array_equal(found, expected)
        for state, name in ((self.state, self.name), (self.own, 0)):
            state.begin(1, name)
            state(abi.KV_END_FORWARD)
            state.pop(1, name)
        for function in (abi.KV_POSITIONS, abi.KV_ROTARY):
            found, expected = self.state(function).numpy(), self.own(function).numpy()
            np.testing.assert_array_equal(found[:1], expected[:1])


# --- Turns ---


@pytest.mark.parametrize("count", [2, 3])
def test_sequences_that_take_turns_are_as_each_alone(library: Library, count: int) -> None:
    """Beyond what the rings hold, with tokens taken back between."""
    state = state_of(library, count)
    slots = [state.add(name) for name in range(5, 5 + count)]
    assert slots == list(range(count))
    sequences = [Alone(library, state, name) for name in range(5, 5 + count)]
    for turn in range(9):
        for index, one in enumerate(sequences):
            one.write(1 + (turn + index) % 5)
            if turn % 3 == index:
                one.pop(1 + turn % 2)
    for one in sequences:
        assert one.own.length > ROWS
        one.check()


def test_each_slot_keeps_its_memory(library: Library) -> None:
    """Recorded launches hold addresses; a sequence comes to the first slot that is free."""
    state = state_of(library, 3)
    addresses: list[int] = []
    for name in (7, 8, 9):
        slot = state.add(name)
        state.forward(1, name)
        assert slot == len(addresses)
        addresses.append(address_of(state))
    assert len(set(addresses)) == 3
    state(abi.KV_REMOVE_SEQUENCE, 8)
    state(abi.KV_REMOVE_SEQUENCE, 7)
    for name, slot in ((20, 0), (21, 1)):
        assert state.add(name) == slot
        assert state.length_of(name) == 0
        state.forward(2, name)
        assert address_of(state) == addresses[slot]
    state.forward(1, 9)
    assert address_of(state) == addresses[2]
    state(abi.KV_CLEAR)
    assert state.add(1) == 0


def address_of(state: NativeState) -> int:
    tensor = state(abi.KV_KEY, 1)
    return int(np.from_dlpack(tensor).ctypes.data)


def test_a_new_slot_is_filled_with_zeros(library: Library) -> None:
    """Masked keys are multiplied by zero, and what memory holds may be no number."""
    state = state_of(library, 2)
    state.add(0)
    write(state, 5, np.random.default_rng(0))
    state.add(1)
    state.forward(1, 1)
    for function in FUNCTIONS:
        for layer in range(len(LAYERS)):
            assert not state(function, layer).numpy().any()


# --- Forks ---


def test_a_fork_is_what_would_be_left_and_both_go_on_alone(library: Library) -> None:
    """At each position to which the tokens could be taken back, and refused at each other."""
    shortest = WRAPPED - ROWS + WINDOW - 1
    for position in range(WRAPPED + 1):
        state = state_of(library, 2)
        state.add(0)
        parent = Alone(library, state, 0)
        parent.write(WRAPPED)
        if 0 < position < shortest:
            with pytest.raises(ValueError, match=f"after {shortest} to {WRAPPED}, or after none"):
                state(abi.KV_FORK_SEQUENCE, 0, 1, position)
            assert state.add(1) == 1, "nothing was added"
            continue
        child = Alone(library, state, 1)
        write(child.own, WRAPPED, np.random.default_rng([0, 1]))
        child.own.pop(WRAPPED - position)
        assert state(abi.KV_FORK_SEQUENCE, 0, 1, position) == 1
        child.check()
        for count in (3, 1):
            child.write(count)
            parent.write(count)
        parent.check()
        child.check()


def test_a_fork_of_all_tokens_can_be_forked_again(library: Library) -> None:
    state = state_of(library, 3)
    state.add(0)
    parent = Alone(library, state, 0)
    parent.write(ROWS)
    state(abi.KV_FORK_SEQUENCE, 0, 1, -1)
    state(abi.KV_FORK_SEQUENCE, 1, 2, ROWS - 2)
    assert [state.length_of(name) for name in range(3)] == [ROWS, ROWS, ROWS - 2]
    for name in (1, 2):
        for expected, found in zip(rows_of(parent.own), rows_of(state, name), strict=True):
            np.testing.assert_array_equal(found, expected[: state.length_of(name)])


def test_a_fork_can_go_back_no_further_than_its_parent(library: Library) -> None:
    state = state_of(library, 2)
    state.add(0)
    for _ in range(20):
        state.forward(1)
    state(abi.KV_FORK_SEQUENCE, 0, 1, 17)
    for name, most in ((0, 5), (1, 2)):
        with pytest.raises(ValueError, match=f"pop at most {most}, or all"):
            state.pop(most + 1, name)


def test_a_fork_is_refused_by_name(library: Library) -> None:
    state = state_of(library, 2)
    state.add(0)
    state.forward(3)

    def fork(parent: int, child: int, position: int) -> None:
        state(abi.KV_FORK_SEQUENCE, parent, child, position)

    for position in (-2, 4):
        with pytest.raises(ValueError, match=f"of 3 tokens after {position}"):
            fork(0, 1, position)
    with pytest.raises(ValueError, match="no sequence 4"):
        fork(4, 1, 0)
    with pytest.raises(ValueError, match="there is a sequence 0"):
        fork(0, 0, 1)
    state.begin(1)
    with pytest.raises(RuntimeError, match="end_forward of sequence 0"):
        fork(0, 1, 1)
    state(abi.KV_END_FORWARD)
    fork(0, 1, 1)
    with pytest.raises(ValueError, match="at most 2: remove sequence 0 or another before adding 2"):
        fork(0, 2, 1)
    assert (state.length_of(0), state.length_of(1)) == (4, 1)


# --- Checkpoints ---


def test_a_checkpoint_of_one_sequence_while_another_goes_on(library: Library) -> None:
    state = state_of(library, 2)
    kept, other = (Alone(library, state, name) for name in (3, 4))
    for one in (kept, other):
        state.add(one.name)
        one.write(WRAPPED)
    checkpoint = export(state, 3)
    assert checkpoint.metadata["seq_id"] == 3
    kept.write(5)
    other.write(2)
    state(PREPARE, 3, checkpoint.text)
    other.write(1)
    with pytest.raises(RuntimeError, match="is being imported"):
        state.begin(1, 3)
    other.check()
    state(abi.KV_REMOVE_SEQUENCE, 4)
    with pytest.raises(RuntimeError, match="imported into sequence 3"):
        state(abi.KV_FORK_SEQUENCE, 3, 4, 0)
    for index, group in enumerate(checkpoint.groups):
        state(IMPORT, 3, index, tvm.runtime.tensor(group))
    state(FINISH, 3)
    fresh = library.state()
    restore(fresh, checkpoint)
    kept.own = fresh
    kept.check()
    kept.write(2)
    kept.check()


def test_a_checkpoint_makes_the_sequence_that_it_is_read_into(library: Library) -> None:
    state = state_of(library, 2)
    state.add(0)
    sequence = Alone(library, state, 0)
    sequence.write(WRAPPED)
    checkpoint = export(state)
    restore(state, checkpoint, 6)
    for name in (0, 6):
        for expected, found in zip(rows_of(sequence.own), rows_of(state, name), strict=True):
            np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="into sequence 7"):
        restore(state, checkpoint, 7)
    state.begin(1, 6)
    export(state, 0)
    with pytest.raises(ValueError, match="between begin_forward"):
        state(METADATA, 6)
    with pytest.raises(ValueError, match="no sequence 7"):
        state(EXPORT, 7, 0, tvm.runtime.tensor(checkpoint.groups[0]))


# --- What is refused ---


def test_more_sequences_than_there_is_room_for(library: Library) -> None:
    state = state_of(library, 2)
    state.add(4)
    with pytest.raises(ValueError, match="there is a sequence 4 in this state"):
        state.add(4)
    state.add(-5)
    with pytest.raises(ValueError, match="at most 2: remove sequence 4 or another before adding 6"):
        state.add(6)
    state(abi.KV_REMOVE_SEQUENCE, -5)
    assert state.add(6) == 1


def test_a_sequence_that_is_not_there(library: Library) -> None:
    state = state_of(library, 2)
    state.add(0)
    calls: tuple[Any, ...] = (
        lambda: state.begin(1, 1),
        lambda: state.pop(0, 1),
        lambda: state.length_of(1),
        lambda: state(abi.KV_REMOVE_SEQUENCE, 1),
    )
    for call in calls:
        with pytest.raises(ValueError, match="no sequence 1"):
            call()
    state.forward(1)


def test_a_forward_without_sequences_is_refused(library: Library) -> None:
    state = state_of(library, 2)
    state.add(0)
    state.add(1)
    with pytest.raises(RuntimeError, match="found 0"):
        state.begin_all([], [])
    with pytest.raises(ValueError, match="a length for each of 2 sequences, found 1"):
        state.begin_all([0, 1], [1])
    state.forward(1, 1)
    assert (state.length_of(0), state.length_of(1)) == (0, 1)


def test_a_forward_begins_after_that_of_another_has_ended(library: Library) -> None:
    state = state_of(library, 2)
    state.add(0)
    state.add(1)
    state.begin(2, 1)
    with pytest.raises(RuntimeError, match="of sequence 1, has not ended"):
        state.begin(1, 0)
    state.pop(0, 0)
    state(abi.KV_REMOVE_SEQUENCE, 1)
    with pytest.raises(RuntimeError, match="without begin_forward"):
        state(abi.KV_END_FORWARD)
    state.forward(1, 0)
    assert state.length_of(0) == 1
