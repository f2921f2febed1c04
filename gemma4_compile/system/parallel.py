"""Work on all cores, its results in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

AHEAD = 2  # jobs per worker that may wait for the one whose turn it is


def workers() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_order(function: Callable[[Job], Result], jobs: Iterable[Job]) -> Generator[Result]:
    """Apply `function` to every job in threads; results come in the order of the jobs.

    For functions that spend their time outside of the interpreter's lock, as NumPy does. Only a few
    results exist at a time, however many jobs there are. An error of a job is raised at its turn;
    jobs that have not begun then never do.
    """
    count = workers()
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(count) as pool:
        try:
            for job in jobs:
                waiting.append(pool.submit(function, job))
                if len(waiting) > AHEAD * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
