"""How many slots fit; tests/e2e/test_sequence_engine.py asks it of a package."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemma4_compile.package.libraries import LibraryRecord
from gemma4_compile.runtime.engine.slot_room import slots_that_fit
from gemma4_compile.runtime.package.room import MemoryNeed

MB = 10**6
RECORD = LibraryRecord(
    "model.so",
    *("cuda", "cuda", "cuda", "default", "float"),
    None,
    {"weights_bytes": 3000 * MB, "kv_sliding_bytes": 100 * MB, "kv_full_bytes": 400 * MB},
)
NEED = MemoryNeed(3100 * MB, 400 * MB, 8192)  # 100 of which are the rings of one slot


@pytest.mark.parametrize(
    ("free", "context", "slots"),
    [
        (3500, 8192, 1),  # what one takes
        (4499, 8192, 1),  # half of what is left is short of another's 500 by a little
        (4500, 8192, 2),
        (5500, 8192, 3),
        (80_000, 8192, 4),
        (1000, 8192, 1),  # the load says that it does not fit
        (3850, 2048, 2),  # a shorter context: 100 and 100 each
    ],
)
def test_half_of_what_one_leaves_is_for_others(free: int, context: int, slots: int) -> None:
    assert slots_that_fit(RECORD, NEED, free * MB, context) == slots


def test_slots_without_keys_of_their_own_are_as_many_as_may_be() -> None:
    record = replace(RECORD, requirements={})
    assert slots_that_fit(record, MemoryNeed(1, 0, 8192), 100, 8192) == 4
