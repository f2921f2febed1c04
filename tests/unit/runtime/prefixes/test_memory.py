"""The tree of kept states and its budget, against lists that are searched from end to end."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gemma4_compile.runtime.prefixes.memory import PrefixMemory
from gemma4_compile.runtime.prefixes.tree import Node

BUDGET = 4000

keys_of = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@dataclass(frozen=True, eq=False)
class Part:
    nbytes: int


@dataclass(frozen=True, eq=False)
class State:
    keys: tuple[int, ...]
    slack: int
    parts: tuple[Part, ...] = ()

    @property
    def length(self) -> int:
        return len(self.keys)

    @property
    def shortest(self) -> int:
        return max(0, self.length - self.slack)


def shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = zip(one, other, strict=False)
    limit = min(len(one), len(other))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), limit)


def most_kept(states: list[State], keys: tuple[int, ...], cut: int = 0) -> int:
    """Tokens that the best state leaves; `cut` as a picture that begins there and never ends."""
    best = 0
    for state in states:
        count = min(shared(state.keys, keys), len(keys) - 1)
        count = min(count, cut) if cut else count
        if count >= max(state.shortest, 1):
            best = max(best, count)
    return best


class Memory(RuleBasedStateMachine):
    """Adds, looks up and forgets in a memory, and in lists by the events that it tells of."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[Node[State], State] = {}
        self.memory: PrefixMemory[State] = PrefixMemory(BUDGET, self.kept.pop)

    @property
    def states(self) -> list[State]:
        return list(self.kept.values())

    @rule(
        keys=keys_of,
        slack=st.integers(0, 3),
        own=st.integers(0, 1500),
    )
    def add(self, keys: list[int], slack: int, own: int) -> None:
        before = self.memory.at(keys)
        inherited = () if before is None else before.parts[:-1]
        state = State(tuple(keys), slack, (*inherited, Part(own // 2), Part(own - own // 2)))
        node = self.memory.add(keys, state)
        if node is not None and node not in self.kept:
            self.kept[node] = state

    @rule(keys=keys_of)
    def add_too_much(self, keys: list[int]) -> None:
        if not any(state.keys == tuple(keys) for state in self.states):
            before = dict(self.kept)
            assert self.memory.add(keys, State(tuple(keys), 0, (Part(BUDGET - 1),))) is None
            assert self.kept == before  # none went for it

    @rule(keys=keys_of, cut=st.integers(0, 6))
    def find(self, keys: list[int], cut: int) -> None:
        found = self.memory.find(keys, lambda n: min(n, cut) if cut else n)
        expected = most_kept(self.states, tuple(keys), cut)
        assert (0 if found is None else found.count) == expected
        if found is not None:
            assert found.state in self.states
            assert found.state.keys[: found.count] == tuple(keys[: found.count])
            assert found.count >= found.state.shortest

    @rule(keys=keys_of)
    def at(self, keys: list[int]) -> None:
        whole = [s for s in self.states if s.keys == tuple(keys[: s.length])]
        assert self.memory.at(keys) is max(whole, key=lambda s: s.length, default=None)
        at, shared, found = self.memory.look(keys, lambda count: count)
        assert at is self.memory.at(keys)
        assert shared == self.memory.shared(keys)
        assert found == self.memory.peek(keys)
        begun = (zip(s.keys, keys, strict=False) for s in self.states)
        assert shared == max(
            (sum(takewhile(bool, (a == b for a, b in z))) for z in begun), default=0
        )

    @rule()
    def clear(self) -> None:
        self.memory.clear()
        assert not self.kept
        assert self.memory.nbytes == 0

    @invariant()
    def the_budget_is_kept(self) -> None:
        assert len(self.memory) == len(self.kept)
        parts = {part for state in self.states for part in state.parts}
        least = sum(part.nbytes for part in parts)
        assert least <= self.memory.nbytes <= BUDGET
        tokens = sum(state.length for state in self.states)
        assert self.memory.nbytes - least <= 64 * tokens  # of no token that is nobody's


Memory.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestMemory = Memory.TestCase


def of(keys: range, nbytes: int, *inherited: Part) -> State:
    return State(tuple(keys), 1, (*inherited, Part(nbytes)))


def test_what_was_not_used_for_longest_goes_a_leaf_first() -> None:
    memory: PrefixMemory[State] = PrefixMemory(BUDGET)
    memory.add(range(4), of(range(4), 900))
    memory.add(range(8), of(range(8), 900))
    memory.add(range(20, 24), of(range(20, 24), 900))
    assert memory.find(range(9)) is not None  # the first two are used again
    memory.add(range(40, 44), of(range(40, 44), 1200))
    assert memory.find(range(20, 26)) is None
    memory.add(range(50, 54), of(range(50, 54), 900))
    at = memory.at(range(9))
    assert at is not None
    assert at.length == 4


def test_a_shared_part_counts_once_and_stays_while_one_has_it() -> None:
    memory: PrefixMemory[State] = PrefixMemory(BUDGET)
    part = Part(1500)
    for end in (6, 9, 12):
        memory.add(range(end), of(range(end), 500, part))
    assert len(memory) == 3
    memory.add(range(70, 72), of(range(70, 72), 600))
    assert len(memory) == 3
    assert memory.find(range(13)) is not None


def test_what_is_lent_drives_states_out_and_comes_back() -> None:
    memory: PrefixMemory[State] = PrefixMemory(BUDGET)
    for first in (1, 2):
        memory.add((first,), State((first,), 0, (Part(1500),)))
    assert not memory.lend(BUDGET + 1)
    assert len(memory) == 2
    assert memory.lend(2000)
    assert memory.budget == BUDGET - 2000
    assert memory.at((1,)) is None, "it was used longest ago"
    assert memory.at((2,)) is not None
    assert memory.add((3,), State((3,), 0, (Part(2100),))) is None
    assert not memory.lend(2001)
    memory.take_back(2000)
    assert memory.budget == BUDGET
    assert memory.add((3,), State((3,), 0, (Part(2100),))) is not None
    assert len(memory) == 2
