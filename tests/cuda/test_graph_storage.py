"""Memory that the graphs of an engine have in turns, on a CUDA that has no GPU."""

from __future__ import annotations

from pathlib import Path

from tests.cuda import fake


def test_graphs_share_intermediate_results_and_no_results(package: Path) -> None:
    assert "graph" not in fake.run("shared_storage", package)
