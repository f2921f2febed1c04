"""Limits of a process; those that end one are tried in tests/unit/confined/test_limits.py."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gemma4_compile.system import limits
from gemma4_compile.system.limits import peak_memory_bytes, peak_of_children_bytes

ASK = "from gemma4_compile.system.limits import peak_memory_bytes; print(peak_memory_bytes())"
WATCHED = """
import time
from gemma4_compile.system.limits import watch
with watch(0.05):
    time.sleep(60)
"""


def test_a_childs_peak_is_its_own() -> None:
    ballast = bytearray(b"x") * (256 << 20)
    mine = peak_memory_bytes()
    asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, check=True)
    assert mine is not None
    assert mine > len(ballast)
    assert 0 < int(asked.stdout) < 256 << 20
    assert peak_of_children_bytes() > 1 << 20


def test_a_watch_ends_the_process_where_no_signal_does() -> None:
    done = subprocess.run([sys.executable, "-c", WATCHED], timeout=120, check=False)
    assert done.returncode == limits.TIME_IS_UP


def test_a_watch_is_of_its_block_alone() -> None:
    ended = threading.Event()
    with limits.watch(0.05, lambda _: ended.set()):
        pass
    assert not ended.wait(0.2)


def test_a_limit_of_time_is_told_from_other_ends() -> None:
    assert limits.took_too_long(-signal.SIGALRM)
    assert limits.took_too_long(-signal.SIGXCPU)
    assert not any(map(limits.took_too_long, (0, 1, -signal.SIGSEGV, -signal.SIGKILL)))


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="reads Linux' own count")
def test_the_machines_memory_is_what_linux_counts() -> None:
    line = Path("/proc/meminfo").read_text("utf-8").splitlines()[0]
    assert limits.machine_memory_bytes() == pytest.approx(int(line.split()[1]) * 1024, rel=0.02)


def test_a_system_that_does_not_tell_its_memory_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr("os.sysconf", refuse)
    assert limits.machine_memory_bytes() == 0
