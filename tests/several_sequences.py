"""An engine of several sequences, emptied between tests, and token ids for them."""

from __future__ import annotations

import numpy as np

from gemma4_compile.runtime import Engine


def emptied(engine: Engine) -> Engine:
    """An engine with its own sequence alone, which is empty."""
    for other in engine.sequences.others:
        engine.sequences.remove(other)
    engine.clear()
    return engine


def ids_of(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(107, 1000, count).tolist()
