"""A cache of experts: the same logits, graphs that note what was chosen, what fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda import fake


@pytest.mark.slow
def test_a_graph_notes_what_was_chosen(mixture: Path) -> None:
    assert "graph" not in fake.run("recorded_choices", mixture)


@pytest.mark.slow
def test_what_the_driver_does_not_move_stays_where_it_is(mixture: Path) -> None:
    assert fake.run("cache_stays", mixture).count("the expert cache stays as it is: refused") == 1


@pytest.mark.slow
def test_a_cache_that_cannot_be_had_is_refused(mixture: Path) -> None:
    fake.run("cache_refused", mixture)
    fake.run("cache_by_room", mixture)


@pytest.mark.slow
def test_logits_are_the_same_whatever_is_cached(mixture_on_cpu: Path) -> None:
    fake.run("same_logits", mixture_on_cpu, GEMMA4_MEMORY_CHECK="0")
