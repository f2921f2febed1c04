"""The process that compiles libraries: it sends errors, and ends when nobody waits for it."""

from __future__ import annotations

import pickle
import subprocess
import sys

from gemma4_compile.compile.library_processes import LENGTH, WORKER


def test_it_says_that_it_is_ready_and_ends_with_its_input() -> None:
    jobs = pickle.dumps(())
    done = subprocess.run(
        [sys.executable, "-m", WORKER],
        input=LENGTH.pack(len(jobs)) + jobs,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stdout in (b"", pickle.dumps(None)), "none where its input ended before"


def test_it_does_not_outlive_who_started_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", WORKER], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(120) != 0
