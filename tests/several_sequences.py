"""An engine of several sequences, emptied between tests, and what does not depend on times."""

from __future__ import annotations

import numpy as np

from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.server.ride_pace import RidePace


def emptied(engine: Engine) -> Engine:
    """An engine with its own sequence alone, which is empty."""
    for other in engine.sequences.others:
        engine.sequences.remove(other)
    engine.clear()
    return engine


def ids_of(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(107, 1000, count).tolist()


class FixedRides(RidePace):
    """Last rows of prompts ride, or they do not, whatever it takes."""

    def __init__(self, *, ride: bool) -> None:
        super().__init__()
        self._ride = ride

    def pays(self, rows: int, turns: int, step_s: float | None) -> bool:
        return self._ride
