"""A radix tree over tokens: which states are kept, and which of them a prompt can go on from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

_TOKEN_BYTES = sys.getsizeof(1 << 18) + 8  # to ask every number takes milliseconds of long prompts
Keys = Sequence[int]
"""Numbers of tokens or of rows of media, as `Prompt.keys` has them."""


class KeptState(Protocol):
    """What is kept of a sequence after its first `length` tokens."""

    @property
    def length(self) -> int:
        """Tokens that it holds."""

    @property
    def shortest(self) -> int:
        """The fewest that can be left of it by taking back the last ones."""


State = TypeVar("State", bound=KeptState)
Cut = Callable[[int], int]
"""At most so many tokens where a number of them may be kept, as pictures are not to be cut."""


class Node(Generic[State]):
    """A place in the tree: the tokens from its parent to it, and the state that is kept there.

    Attributes
    ----------
    edge : the tokens from the parent's place to this one
    depth : tokens from the root to here
    """

    __slots__ = ("children", "depth", "edge", "parent", "state")

    def __init__(self, parent: Node[State] | None, edge: list[int], depth: int) -> None:
        self.parent, self.edge, self.depth = parent, edge, depth
        self.children: dict[int, Node[State]] = {}
        self.state: State | None = None

    def path(self) -> Iterator[Node[State]]:
        """The place itself and those above it, up to the root."""
        node: Node[State] | None = self
        while node is not None:
            yield node
            node = node.parent


@dataclass(frozen=True)
class Way(Generic[State]):
    """How the first `count` tokens of a prompt can be had.

    Attributes
    ----------
    node : of the state that has all of them
    before : the state above it, of fewer than `count` tokens, that has the rest of what sliding
        layers attend to there; None where that of the node has all
    """

    node: Node[State]
    count: int
    before: State | None = None


# The last node on the way, how many tokens match, and the child whose edge they end in.
_Walk: TypeAlias = tuple[Node[State], int, Node[State] | None]


class PrefixTree(Generic[State]):
    """States by the tokens that they hold.

    A state stays at its node: nodes come and go around it.

    Attributes
    ----------
    nbytes : memory of the tokens, roughly
    """

    def __init__(self, link: int = 0) -> None:
        """Begin empty.

        Parameters
        ----------
        link : a state has the rows of sliding layers from so many before its `shortest` tokens on,
            so that those of a state which ends there or later go on without a gap
        """
        self._link = link
        self._root: Node[State] = Node(None, [], 0)
        self._slack = 0  # most tokens that could be taken back of any state
        self._walked: tuple[Keys, _Walk[State]] | None = None  # of the last prompt
        self.nbytes = 0

    def insert(self, keys: Keys, state: State) -> Node[State]:
        """Put a state in its place, instead of one that is there; return the place."""
        assert state.length == len(keys), "a state is kept under all of its tokens"
        assert 0 <= state.shortest <= state.length, "checked where the state was made"
        node, depth, below = self._walk(keys)
        self._walked = None
        if below is not None:
            node = self._split(below, depth)
        if depth < len(keys):
            node = self._hang(node, list(keys[depth:]))
        node.state = state
        self._slack = max(self._slack, state.length - state.shortest)
        return node

    def remove(self, node: Node[State]) -> None:
        """Forget the state of a node, and the nodes that were there for it alone."""
        node.state = self._walked = None
        while node.state is None and not node.children and node.parent is not None:
            parent = node.parent
            del parent.children[node.edge[0]]
            self.nbytes -= token_bytes(node.edge)
            node = parent
        if node.parent is not None and node.state is None and len(node.children) == 1:
            (child,) = node.children.values()
            child.edge = node.edge + child.edge
            child.parent = node.parent
            node.parent.children[child.edge[0]] = child

    def at(self, keys: Keys) -> Node[State] | None:
        """The deepest node with a state whose tokens these begin with, or are."""
        return _nearest(self._walk(keys)[0])

    def shared(self, keys: Keys) -> int:
        """How many of these tokens some state begins with, be it kept there or further on."""
        return self._walk(keys)[1]

    def look(self, keys: Keys, cut: Cut) -> tuple[Node[State] | None, int, Way[State] | None]:
        """What `at`, `shared` and `find` say, for one way down."""
        walk = self._walk_prompt(keys)
        return _nearest(walk[0]), walk[1], self._best(keys, cut, walk)

    def find(self, keys: Keys, cut: Cut = lambda count: count) -> Way[State] | None:
        """The way to most tokens of a prompt.

        At least one token of the prompt is left to run. Of a state whose last tokens are not those
        of the prompt these are taken back, as far as `shortest` lets them, or to the end of the
        state above it where the two have no gap between them.
        """
        return self._best(keys, cut, self._walk_prompt(keys))

    def _best(self, keys: Keys, cut: Cut, walk: _Walk[State]) -> Way[State] | None:
        deepest, depth, below = walk
        best: Way[State] | None = None
        seen: Node[State] | None = None
        starts = deepest.path() if below is None else (below, *deepest.path())
        shared = depth
        for start in starts:
            shared = min(shared, start.depth)
            count = cut(min(shared, len(keys) - 1))
            if count <= (0 if best is None else best.count):
                break  # further up less is shared
            for node in self._near(start, seen, count):
                assert node.state is not None, "only such are near"
                most = cut(min(count, node.state.length))
                if most > (0 if best is None else best.count):
                    best = self._way(node, most) or best
            seen = start
        return best

    def _way(self, node: Node[State], count: int) -> Way[State] | None:
        """How a node's state can be taken back to so many tokens, if it can."""
        state = node.state
        assert state is not None, "asked before"
        if count >= state.shortest:
            return Way(node, count)
        above = node.path()
        next(above)
        before = next((one.state for one in above if one.state is not None), None)
        if before is not None and state.shortest - self._link <= before.length < count:
            return Way(node, count, before)
        return None

    def _near(
        self, start: Node[State], seen: Node[State] | None, count: int
    ) -> Iterator[Node[State]]:
        """Nodes with states from here on that may leave so many tokens, but for what was seen."""
        rest = [start]
        while rest:
            node = rest.pop()
            if node.state is not None:
                yield node
            if node.depth - self._slack - self._link < count:  # below it all are deeper
                rest += (child for child in node.children.values() if child is not seen)

    def _walk_prompt(self, keys: Keys) -> _Walk[State]:
        """As `_walk`, at once for the same list as last: a prompt's stays as it is."""
        if self._walked is None or self._walked[0] is not keys:
            self._walked = keys, self._walk(keys)
        return self._walked[1]

    def _walk(self, keys: Keys) -> _Walk[State]:
        """The last node on the way, how many tokens match, and the child whose edge they end in."""
        node, depth = self._root, 0
        while depth < len(keys):
            child = node.children.get(keys[depth])
            if child is None:
                break
            part = keys[depth : child.depth]
            if (part if isinstance(part, list) else list(part)) == child.edge:
                node, depth = child, child.depth
                continue
            shared = zip(keys[depth : child.depth], child.edge, strict=False)
            depth += next((i for i, (a, b) in enumerate(shared) if a != b), len(keys) - depth)
            return node, depth, child
        return node, depth, None

    def _hang(self, parent: Node[State], edge: list[int]) -> Node[State]:
        child = Node(parent, edge, parent.depth + len(edge))
        parent.children[edge[0]] = child
        self.nbytes += token_bytes(edge)
        return child

    def _split(self, child: Node[State], depth: int) -> Node[State]:
        """Put a node into the edge to a child."""
        assert child.parent is not None, "only a child has an edge"
        parent, first = child.parent, depth - child.parent.depth
        middle = Node(parent, child.edge[:first], depth)
        parent.children[middle.edge[0]] = middle
        child.edge, child.parent = child.edge[first:], middle
        middle.children[child.edge[0]] = child
        return middle


def _nearest(node: Node[State]) -> Node[State] | None:
    """The place itself or the next one above it that has a state."""
    return next((one for one in node.path() if one.state is not None), None)


def token_bytes(edge: Sequence[int]) -> int:
    """Memory of tokens, roughly: numbers, and where they are named.

    Those of media are longer; their rows are some hundred times as long as that.
    """
    return _TOKEN_BYTES * len(edge)
