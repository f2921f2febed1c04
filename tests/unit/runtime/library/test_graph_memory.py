"""What graphs keep, counted by hand; tests/unit/runtime/engine/test_slot_room.py has the sums."""

from __future__ import annotations

from gemma4_compile.runtime.library.graph_memory import graph_bytes
from gemma4_compile.runtime.library.round_steps import ROWS


def test_rounds_have_graphs_of_each_number_of_rows_in_every_slot() -> None:
    found = graph_bytes(1000, 2, drafter=True) - graph_bytes(1000, 2, drafter=False)
    assert ROWS == 9
    assert found == 4 * 1000 * (2 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9) + 3 * (16 - 8))
