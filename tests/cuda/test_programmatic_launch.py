"""Kernels of CUDA graphs that begin early, on a CUDA that has no GPU.

It refuses that of a kernel whose text does not wait, and is a Hopper in all other tests, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda import fake


@pytest.mark.parametrize(
    ("generation", "switch", "begins_early"),
    [(9, "1", True), (9, "0", False), (8, "1", False), (10, "1", False)],
)
def test_kernels_of_a_graph_begin_early_on_hopper(
    package: Path, generation: int, switch: str, begins_early: bool
) -> None:
    arguments = str(generation), str(int(begins_early))
    log = fake.run("programmatic", package, *arguments, GEMMA4_PROGRAMMATIC_LAUNCH=switch)
    assert "graph" not in log
