"""Where states of prompts are kept."""

from __future__ import annotations

from gemma4_compile.runtime.prefixes.spacing import Places, Spacing


def test_rings_that_take_much_of_the_budget_are_kept_less_often() -> None:
    near, far = Spacing.of(512, 2**20, 2**31), Spacing.of(512, 2**29, 2**31)
    assert near == Spacing(256, 2048, 0.25, 512)
    assert far == Spacing(256, 8192, 1.0, 512)
    assert near.is_due(10_000, 256, 0, Places())
    assert not near.is_due(10_000, 2499, 5000, Places())
    assert near.is_due(10_000, 2500, 5000, Places())


def test_the_last_chunk_before_a_question_is_kept() -> None:
    spacing = Spacing.of(512, 2**20, 2**31)
    ends = range(512, 20_000, 512)
    due = [end for end in ends if spacing.is_due(end, 2048, 20_000 - end, Places())]
    assert [end for end in due if end > 8192] == [19_456]
