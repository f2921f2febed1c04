"""Texts in calls, and the arguments of one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gemma4_compile.runtime.embedding.texts import calls, cut, packed

LENGTHS = st.lists(st.integers(1, 9), max_size=30)


@given(LENGTHS, st.integers(1, 20))
def test_calls_have_every_text_once_and_are_as_long_as_can_be(
    lengths: list[int], most: int
) -> None:
    found = list(calls(lengths, most))
    assert [index for run in found for index in run] == list(range(len(lengths)))
    for run in found:
        total = sum(lengths[index] for index in run)
        assert total <= most or len(run) == 1
        if run.stop < len(lengths):
            assert total + lengths[run.stop] > most


@given(LENGTHS.filter(bool))
def test_packed_texts_are_found_again(lengths: list[int]) -> None:
    texts = [[10 * number + place for place in range(n)] for number, n in enumerate(lengths)]
    ids, spans, ranges = packed(texts)
    assert [ids[begin:end].tolist() for begin, end in ranges] == texts
    for row, (begin, end) in enumerate(spans):
        assert ids[begin:end].tolist() in texts
        assert begin <= row < end
    assert {ids.dtype, spans.dtype, ranges.dtype} == {np.dtype(np.int32)}


def test_nothing_of_length_one_stays_nothing() -> None:
    np.testing.assert_array_equal(cut(np.zeros((2, 4), np.float32), 2), np.zeros((2, 2)))
