"""A table of per-layer embeddings on the host, on a CUDA that has no GPU."""

from __future__ import annotations

from pathlib import Path

from tests.cuda import fake


def test_a_step_is_its_graph_and_the_rows_of_its_token(package: Path) -> None:
    assert "graph" not in fake.run("host_steps", package)


def test_a_step_waits_for_the_token_that_was_drawn(package: Path) -> None:
    fake.run("host_waits", package)


def test_a_round_waits_for_its_guesses(drafted: Path) -> None:
    assert "graph" not in fake.run("host_rounds", drafted)
