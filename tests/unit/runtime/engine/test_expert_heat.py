"""Which pages of experts are hot, and which change places."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4_compile.runtime.engine.expert_heat import LEAD, PageHeat, Stack, plan_moves

PAGE = 100
EXPERTS = 5


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    pages=st.integers(1, 30),
    frames=st.integers(0, 35),
    most=st.integers(1, 9),
)
def test_frames_hold_what_is_read_most(
    data: st.DataObject, pages: int, frames: int, most: int
) -> None:
    """After any accesses every frame has one page, and in the end none that is much colder."""
    frame_of: dict[int, int] = {}
    numbers = st.lists(st.integers(0, 1000), min_size=pages, max_size=pages)
    scores = np.zeros(pages)
    for values in data.draw(st.lists(numbers, min_size=1, max_size=6)):
        scores = np.array(values, np.float64)
        for _ in range(2 * pages):
            moves = plan_moves(scores, frame_of, frames, most)
            assert len(moves) <= most
            for move in moves:
                assert move.page not in frame_of
                if move.evicted is None:
                    assert move.frame not in frame_of.values()
                else:
                    assert frame_of.pop(move.evicted) == move.frame
                    assert scores[move.page] > scores[move.evicted]
                frame_of[move.page] = move.frame
            assert len(set(frame_of.values())) == len(frame_of) <= frames
            assert set(frame_of.values()) <= set(range(frames))
            if not moves:
                break
        else:
            pytest.fail("moves come to an end")
        outside = [scores[page] for page in range(pages) if page not in frame_of]
        if len(frame_of) < frames:
            assert not any(outside), "a free frame is for what is read at all"
        elif frame_of and outside:
            assert max(outside) <= LEAD * min(scores[page] for page in frame_of)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    counts=st.lists(st.integers(0, 3), min_size=2 * EXPERTS, max_size=2 * EXPERTS),
    cut=st.integers(1, EXPERTS - 1),
)
@settings(max_examples=60, deadline=None)
def test_a_page_is_as_hot_as_its_bytes(sizes: list[int], counts: list[int], cut: int) -> None:
    """Next to a count of every byte by itself, of stacks that are whole and one in two parts."""
    stacks, expected = [], np.zeros(0)
    chosen = np.array(counts, np.float64).reshape(2, EXPERTS)
    for number, size in enumerate(sizes):
        parts = [(0, EXPERTS)] if number else [(0, cut), (cut, EXPERTS)]
        for first, end in parts:
            row, nbytes = number % 2, size * (end - first)
            reads = np.repeat(chosen[row, first:end], size)
            pages = -(-nbytes // PAGE)
            begin = len(expected)
            own = [reads[page * PAGE : (page + 1) * PAGE].sum() for page in range(pages)]
            expected = np.append(expected, own)
            share = first / EXPERTS, end / EXPERTS
            stacks.append(Stack(row, *share, range(begin, begin + pages), nbytes))
    heat = PageHeat(stacks, EXPERTS, PAGE)
    read = heat.add(chosen)
    # Shares of float64: a byte's place is right to 2**-50 of a stack.
    np.testing.assert_allclose(read, expected, atol=1e-9)
    once = heat.scores.copy()
    heat.add(np.zeros_like(chosen))
    np.testing.assert_array_equal(heat.scores, once)


def test_what_is_no_longer_read_cools_down() -> None:
    heat = PageHeat([Stack(0, 0.0, 1.0, range(2), 2 * PAGE)], 2, PAGE)
    first, second = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    for _ in range(10):
        heat.add(first)
    assert plan_moves(heat.scores, {}, 1, 4)[0].page == 0
    for _ in range(100):
        heat.add(second)
    (move,) = plan_moves(heat.scores, {0: 0}, 1, 4)
    assert (move.page, move.frame, move.evicted) == (1, 0, 0)
