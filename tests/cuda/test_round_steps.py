"""Rounds of guesses on a CUDA that has no GPU: two graphs, draws, and one wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.runtime.device.cuda_graph import SWITCH
from tests.cuda import fake


def test_a_round_is_two_graphs_and_one_wait(drafted: Path) -> None:
    assert "graph" not in fake.run("rounds", drafted)


@pytest.mark.slow
def test_each_number_of_guesses_has_graphs_of_its_own(drafted: Path) -> None:
    assert "graph" not in fake.run("rounds_of_many_sizes", drafted)


def test_where_a_graph_is_refused_the_host_issues_a_round(drafted: Path) -> None:
    log = fake.run("rounds_refused", drafted)
    assert "no CUDA graph for the step of 3 guesses, whose launches the host issues" in log
    assert "no CUDA graph for the step of 4 rows, whose launches the host issues" in log


def test_without_graphs_a_round_has_one_wait(drafted: Path) -> None:
    assert "graph" not in fake.run("plain_rounds", drafted, **{SWITCH: "0"})


def test_while_guesses_pause_steps_are_as_without_a_drafter(drafted: Path) -> None:
    fake.run("pauses", drafted)


def test_guesses_of_several_sequences_have_a_graph_for_their_number(drafted: Path) -> None:
    assert "graph" not in fake.run("shared_rounds", drafted)
