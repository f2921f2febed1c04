"""Work in threads: order, bound, errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from gemma4_compile.system import parallel
from gemma4_compile.system.parallel import AHEAD, in_order, workers


def test_results_come_in_the_order_of_the_jobs() -> None:
    def slow_first(job: int) -> int:
        time.sleep(0.02 if job % 3 == 0 else 0.0)
        return job * job

    assert list(in_order(slow_first, range(20))) == [job * job for job in range(20)]
    assert list(in_order(slow_first, [])) == []


def test_no_more_jobs_are_taken_than_may_wait() -> None:
    taken = 0

    def jobs() -> Iterator[int]:
        nonlocal taken
        for job in range(1000):
            taken += 1
            yield job

    with closing(in_order(lambda job: job, jobs())) as results:
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        assert taken <= 3 + AHEAD * workers()


def test_jobs_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "workers", lambda: 3)
    together = threading.Barrier(3, timeout=120)
    assert sorted(in_order(lambda job: together.wait(), range(3))) == [0, 1, 2]


def test_an_error_is_raised_at_its_turn_and_ends_the_work() -> None:
    ran: list[int] = []

    def fails_at_five(job: int) -> int:
        if job == 5:
            raise ValueError("five")
        ran.append(job)
        return job

    results: list[int] = []
    with pytest.raises(ValueError, match="five"):
        results.extend(in_order(fails_at_five, range(1000)))
    assert len(ran) <= 5 + (AHEAD + 1) * workers() + 1


def test_at_least_one_core() -> None:
    assert workers() >= 1
