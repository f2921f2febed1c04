"""Kept states within a budget: what has not been used for the longest time goes."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gemma4_compile.runtime.prefixes.tree import (
    Cut,
    KeptState,
    Keys,
    Node,
    PrefixTree,
    Way,
    token_bytes,
)


class Part(Protocol):
    """Memory that several states may share."""

    @property
    def nbytes(self) -> int:
        """Its bytes."""


class KeptParts(KeptState, Protocol):
    """A kept state that is made of parts."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """All of its memory."""


State = TypeVar("State", bound=KeptParts)


@dataclass(frozen=True)
class Found(Generic[State]):
    """A state to go on from, and how many of its tokens; `before` as of `Way`."""

    state: State
    count: int
    before: State | None = None


class PrefixMemory(Generic[State]):
    """States of prefixes, and no more of them than there is memory for.

    A part that several states have counts once. Of the states that one uses, the last is used
    before those that it goes on from, so that it goes before them: a leaf first.

    Attributes
    ----------
    budget : bytes of parts and tokens, at most
    on_leave : called with a state's node after it went
    """

    def __init__(
        self,
        budget: int,
        on_leave: Callable[[Node[State]], object] = lambda node: None,
        link: int = 0,
    ) -> None:
        """Begin empty; `link` as of `PrefixTree`."""
        self.budget, self.on_leave = budget, on_leave
        self._tree: PrefixTree[State] = PrefixTree(link)
        self._used: OrderedDict[Node[State], State] = OrderedDict()  # the latest last
        self._parts: Counter[int] = Counter()  # states that have it, by the part's identity
        self._part_bytes = 0

    def __len__(self) -> int:
        """How many states there are."""
        return len(self._used)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept."""
        return self._part_bytes + self._tree.nbytes

    def find(self, keys: Keys, cut: Cut = lambda count: count) -> Found[State] | None:
        """As `PrefixTree.find`; what is found counts as used."""
        way = self._tree.find(keys, cut)
        if way is not None:
            self._use(way.node)
        return self._found(way)

    def peek(self, keys: Keys, cut: Cut = lambda count: count) -> Found[State] | None:
        """As `find`, but nothing counts as used."""
        return self._found(self._tree.find(keys, cut))

    def shared(self, keys: Keys) -> int:
        """As `PrefixTree.shared`."""
        return self._tree.shared(keys)

    def look(self, keys: Keys, cut: Cut) -> tuple[State | None, int, Found[State] | None]:
        """What `at`, `shared` and `peek` say, for one way down the tree."""
        node, shared, way = self._tree.look(keys, cut)
        return None if node is None else node.state, shared, self._found(way)

    def at(self, keys: Keys) -> State | None:
        """The longest state whose tokens these begin with, or are."""
        node = self._tree.at(keys)
        return None if node is None else node.state

    def add(self, keys: Keys, state: State) -> Node[State] | None:
        """Keep a state; where it is, or None where the budget is too small for it alone.

        A state that is there already is used, and stays.
        """
        there = self._tree.at(keys)
        if there is not None and there.depth == len(keys):
            self._use(there)
            return there
        if sum(part.nbytes for part in state.parts) + token_bytes(keys) > self.budget:
            return None  # before others go for it
        node = self._tree.insert(keys, state)
        self._used[node] = state
        for part in state.parts:
            if not self._parts[id(part)]:
                self._part_bytes += part.nbytes
            self._parts[id(part)] += 1
        self._use(node)
        self._make_room(node)
        assert self.nbytes <= self.budget, "it has room alone"
        return node

    def lend(self, nbytes: int) -> bool:
        """Let somebody else have a part of the budget; False where it is not that large."""
        if nbytes > self.budget:
            return False
        self.budget -= nbytes
        self._make_room(None)
        return True

    def take_back(self, nbytes: int) -> None:
        """Have a part again that was lent."""
        self.budget += nbytes

    def clear(self) -> None:
        """Forget all."""
        for node in list(self._used):
            self._remove(node)

    def _make_room(self, but: Node[State] | None) -> None:
        for node in list(self._used):
            if self.nbytes <= self.budget:
                return
            if node is not but:
                self._remove(node)

    def _remove(self, node: Node[State]) -> None:
        state = self._used.pop(node)
        for part in state.parts:
            self._parts[id(part)] -= 1
            if not self._parts[id(part)]:
                del self._parts[id(part)]
                self._part_bytes -= part.nbytes
        self._tree.remove(node)
        self.on_leave(node)

    def _found(self, way: Way[State] | None) -> Found[State] | None:
        return None if way is None else Found(self._used[way.node], way.count, way.before)

    def _use(self, node: Node[State]) -> None:
        for one in node.path():
            if one in self._used:
                self._used.move_to_end(one)
