"""Processes are ended with those that they started; on Windows by `taskkill`."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from gemma4_compile.system.processes import OWN_GROUP, kill_group, kill_tree, signal_name

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
child.wait()
"""


def start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, **OWN_GROUP
    )


def test_a_group_ends_with_its_children() -> None:
    with start() as process:
        assert process.stdout is not None
        process.stdout.readline()
        kill_group(process)
        assert process.stdout.read() == "", "the child has let go of the pipe as well"
    assert process.returncode == -9


@pytest.mark.parametrize("is_there", [True, False])
def test_on_windows_the_tree_is_asked_for_by_its_number(is_there: bool) -> None:
    asked: list[list[str]] = []

    def taskkill(command: list[str], **options: object) -> None:
        asked.append(command)
        if not is_there:
            raise FileNotFoundError(command[0])

    with start() as process:
        kill_tree(process, taskkill)
        assert asked == [["taskkill", "/F", "/T", "/PID", str(process.pid)]]
        process.wait(120)
        kill_group(process)  # the child, which no taskkill has ended
    assert process.returncode == -9


def test_the_main_thread_is_ended_where_it_waits() -> None:
    code = """
import queue, signal, sys, threading
from gemma4_compile.system.processes import terminate_main_thread
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
threading.Timer(0.1, terminate_main_thread).start()
queue.SimpleQueue().get()
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 7


def test_a_signal_without_a_name_has_its_number() -> None:
    assert signal_name(signal.SIGTERM) == "SIGTERM"
    assert signal_name(35) == "35", "of the real-time signals only the first and the last are named"
