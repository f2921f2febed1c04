"""Whether a prompt's last rows ride, by times that a test plays."""

from __future__ import annotations

import pytest

from gemma4_compile.runtime.server.ride_pace import RidePace

ROWS, STEP_S = 6, 1.0


def played(pace: RidePace, chunk_s: float, ride_s: float, prompts: int, turns: int = 1) -> int:
    """How many prompts of some ride, where what is measured takes so long."""
    rode = 0
    for _ in range(prompts):
        rides = pace.pays(ROWS, turns, STEP_S)
        rode += rides
        for _ in range(turns if rides else 0):
            pace.note_ride(ROWS, ride_s)
        if not rides:
            pace.note_chunk(chunk_s)
    return rode


@pytest.mark.parametrize(
    ("chunk_s", "ride_s", "turns", "pays"),
    [
        (1.5, 1.4, 1, True),
        (1.5, 1.6, 1, False),
        (1.5, 1.2, 2, True),
        (1.5, 1.3, 2, False),
    ],
)
def test_rows_ride_where_that_takes_less(
    chunk_s: float, ride_s: float, turns: int, pays: bool
) -> None:
    """Than a turn with a chunk and the steps after it; each way is tried again after 64."""
    pace = RidePace()
    played(pace, chunk_s, ride_s, 16, turns)
    rode = played(pace, chunk_s, ride_s, 256, turns)
    slower = 256 - rode if pays else rode
    assert slower == 4


def test_what_is_not_known_is_tried() -> None:
    pace = RidePace()
    assert all(pace.pays(rows, 1, None) for rows in (2, 8)), "nothing was timed yet"
    assert played(pace, 1.1, 9.0, 4) == 4, "the first one has a graph to record"
    assert played(pace, 1.1, 9.0, 4) == 0, "and a chunk is timed as often"
    assert pace.pays(ROWS + 1, 1, STEP_S), "another number of rows"
    assert not pace.pays(ROWS, 1, None), "a turn has its step"
    assert pace.pays(ROWS, 2, None), "of the second one nothing is known"


def test_times_that_change_are_followed() -> None:
    pace = RidePace()
    played(pace, 1.5, 1.1, 100)
    assert played(pace, 0.5, 9.0, 64) < 16, "the last eight are looked at"
    assert played(pace, 20.0, 9.0, 1000) > 300, "chunks are timed while they are taken"
