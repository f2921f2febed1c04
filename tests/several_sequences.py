"""An engine of several sequences, emptied between tests, and what does not depend on times."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.engine.slots import Slots
from gemma4_compile.runtime.server.ride_pace import RidePace
from gemma4_compile.runtime.server.scheduler import Scheduler
from gemma4_compile.runtime.server.tickets import Ticket


def emptied(engine: Engine) -> Engine:
    """An engine with its own sequence alone, which is empty."""
    for other in engine.sequences.others:
        engine.sequences.remove(other)
    engine.clear()
    return engine


def ids_of(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(107, 1000, count).tolist()


def in_turns(
    slots: Slots, tickets: Sequence[Ticket], prepare: Callable[[Scheduler], None] | None = None
) -> Scheduler:
    """Turn until all of these have ended, each admitted as soon as there is, or can be made, room.

    Call it in an event loop. `prepare` is given the scheduler before its first turn.
    """
    waiting, ended = list(tickets), set[Ticket]()
    scheduler = Scheduler(slots, ended.add)
    if prepare is not None:
        prepare(scheduler)
    while len(ended) < len(tickets):
        while waiting and (slots.has_room() or scheduler.make_room()):
            scheduler.admit(waiting.pop(0))
        scheduler.turn()
    return scheduler


class FixedRides(RidePace):
    """Last rows of prompts ride, or they do not, whatever it takes."""

    def __init__(self, *, ride: bool) -> None:
        super().__init__()
        self._ride = ride

    def pays(self, rows: int, turns: int, step_s: float | None) -> bool:
        return self._ride
