"""Processes that compile libraries are begun early, given out once, and gone afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gemma4_compile.compile import library_processes
from gemma4_compile.compile.library_processes import (
    LENGTH,
    Process,
    begun_early,
    process,
    processes,
)

WORKER = "tests.unit.compile.idle_worker"


@pytest.fixture
def _idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_processes, "WORKER", WORKER)
    monkeypatch.setattr(library_processes, "workers", lambda: 2)
    monkeypatch.setattr(library_processes, "machine_memory_bytes", lambda: 64 << 30)


def test_processes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_processes, "workers", lambda: 16)
    monkeypatch.setattr(library_processes, "machine_memory_bytes", lambda: 64 << 30)
    assert [processes(count) for count in (0, 1, 2, 5, 6, 9)] == [1, 1, 1, 1, 2, 3]
    monkeypatch.setattr(library_processes, "machine_memory_bytes", lambda: 0)
    assert processes(9) == 1


def _said(made: Process) -> bytes:
    assert made.stdout is not None
    return made.stdout.read()


@pytest.mark.usefixtures("_idle")
def test_one_that_was_begun_early_is_given_out_and_then_others() -> None:
    with begun_early(9):
        (early,) = library_processes._early
        with process(b"first") as one, process(b"second") as another:
            assert one.pid == early.pid
            assert another.pid != early.pid
            for made, jobs in ((one, b"first"), (another, b"second")):
                assert made.stdin is not None
                made.stdin.close()
                assert _said(made) == LENGTH.pack(len(jobs)) + jobs
        assert one.returncode is not None
        assert another.returncode is not None


@pytest.mark.usefixtures("_idle")
def test_one_that_nobody_wants_is_ended() -> None:
    with begun_early(9):
        (early,) = library_processes._early
    assert early.returncode is not None
    assert library_processes._early == []


@pytest.mark.usefixtures("_idle")
def test_few_libraries_begin_none() -> None:
    with begun_early(5):
        assert library_processes._early == []


@pytest.mark.usefixtures("_idle")
def test_ctrl_c_is_for_who_started_a_process_which_ends_it() -> None:
    with process(b"") as made:
        assert os.getpgid(made.pid) != os.getpgid(0), "a terminal sends it to a group"
    assert made.returncode is not None


def test_it_ends_with_its_input_while_it_loads_the_compiler() -> None:
    """As where the command is interrupted, or what it is to compile is not there."""
    with subprocess.Popen(
        [sys.executable, "-m", library_processes.WORKER], stdin=subprocess.PIPE
    ) as made:
        assert made.stdin is not None
        made.stdin.write(LENGTH.pack(7) + b"half")
        made.stdin.close()
        assert made.wait(120) == 1
