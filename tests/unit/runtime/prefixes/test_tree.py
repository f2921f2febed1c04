"""A tree of kept states alone; test_memory.py holds its answers against lists."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4_compile.runtime.prefixes.tree import Node, PrefixTree

keys_of = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@dataclass(frozen=True)
class State:
    length: int
    slack: int = 0

    @property
    def shortest(self) -> int:
        return max(0, self.length - self.slack)


@given(st.lists(keys_of, min_size=1, max_size=6), st.data())
@settings(max_examples=25, deadline=None)
def test_a_tree_from_which_all_is_taken_is_empty(
    many: list[list[int]], data: st.DataObject
) -> None:
    tree: PrefixTree[State] = PrefixTree()
    nodes = {tuple(keys): tree.insert(keys, State(len(keys))) for keys in many}
    order = data.draw(st.permutations(sorted(nodes)))
    for place, keys in enumerate(order):
        assert tree.at(keys) is nodes[keys]
        tree.remove(nodes[keys])
        for other in order[place + 1 :]:
            assert tree.at(other) is nodes[other]
            assert _tokens(nodes[other]) == list(other)
    assert tree.nbytes == 0
    assert tree.at(order[0]) is None


def test_a_state_of_other_last_tokens_is_found_as_far_as_it_can_be_taken_back() -> None:
    tree: PrefixTree[State] = PrefixTree()
    tree.insert([1, 2, 3, 4, 5, 6], State(6, slack=3))
    tree.insert([1, 2, 3, 9], State(4))
    for prompt, count in [
        ([1, 2, 3, 4, 5, 6, 7], 6),
        ([1, 2, 3, 4, 5, 6], 5),
        ([1, 2, 3, 4, 8, 8], 4),
        ([1, 2, 3, 7, 7], 3),
        ([1, 2, 8, 8], None),
        ([1, 2, 3, 9, 9], 4),
        ([1], None),
        ([], None),
    ]:
        found = tree.find(prompt)
        assert (None if found is None else found.count) == count


def test_a_prompt_that_is_asked_for_again_hears_of_what_changed() -> None:
    tree: PrefixTree[State] = PrefixTree()
    prompt = [1, 2, 3, 4, 5, 6]
    nodes: list[Node[State]] = []

    def count() -> int:
        node, shared, way = tree.look(prompt, lambda count: count)
        assert way == tree.find(prompt)
        assert node is (None if way is None else way.node)
        assert shared == tree.shared(prompt)
        return 0 if way is None else way.count

    assert count() == 0
    for length in (5, 2, 3):
        nodes.append(tree.insert(prompt[:length], State(length)))
        assert count() == 5
    for node, left in zip(nodes, (3, 3, 0), strict=True):
        tree.remove(node)
        assert count() == left


def test_between_a_state_and_the_one_above_it_any_length_can_be_left() -> None:
    """If the one's rows of rings begin no later than the other's end."""
    for link, count in ((3, 4), (2, 3)):
        tree: PrefixTree[State] = PrefixTree(link)
        above = State(3)
        tree.insert([1, 2, 3], above)
        tree.insert([1, 2, 3, 4, 5, 6, 7], State(7, slack=1))
        found = tree.find([1, 2, 3, 4, 8, 8])
        assert found is not None
        assert (found.count, found.before) == (count, above if count == 4 else None)
        last = tree.find([1, 2, 3, 4, 5, 6, 8])
        assert last is not None
        assert (last.count, last.before) == (6, None)


def test_memory_of_tokens_grows_with_those_that_are_not_shared() -> None:
    tree: PrefixTree[State] = PrefixTree()
    tree.insert(list(range(1000, 1100)), State(100))
    before = tree.nbytes
    assert before >= 100 * 8
    tree.insert(list(range(1000, 1050)), State(50))
    assert tree.nbytes == before
    tree.insert([*range(1000, 1050), 7], State(51))
    assert before < tree.nbytes < before + 100


def _tokens(node: Node[State]) -> list[int]:
    return [key for one in reversed(list(node.path())) for key in one.edge]
