"""Statistics of repeated samples in the result lines."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def summary(samples: list[float]) -> dict[str, Any]:
    """Median, relative spread (largest minus smallest) and every value."""
    median = statistics.median(samples)
    return {
        "median": round(median, 5),
        "spread": round((max(samples) - min(samples)) / median, 4),
        "all": [round(sample, 5) for sample in samples],
    }


def timed(action: Callable[[], Any]) -> float:
    """Milliseconds of a call."""
    begin = time.perf_counter()
    action()
    return (time.perf_counter() - begin) * 1e3
