"""What tests start ends within its limit, and so does what that started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.child import first_line, run_within
from tests.shared import PATIENCE_S
from tests.web.dawn import TIMEOUT_S

# Starts a process that holds the same pipes, says something and hangs.
HANGS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
time.sleep(600)
"""


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(")")[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="asks Linux about processes")
def test_a_program_that_hangs_is_named_and_killed_with_its_children() -> None:
    begin = time.monotonic()
    with pytest.raises(AssertionError, match=r"not done after 2 s: .*python") as caught:
        run_within(2, [sys.executable, "-c", HANGS])
    assert time.monotonic() - begin < PATIENCE_S  # it does not wait for who holds the pipes
    child = int(str(caught.value).split("child ")[-1].split()[0])
    end = time.monotonic() + PATIENCE_S
    while is_running(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_running(child)


def test_a_program_that_ends_gives_what_it_said() -> None:
    program = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    done = run_within(60, [sys.executable, "-c", program])
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_a_server_that_says_nothing_is_killed() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        pytest.raises(AssertionError, match="no line after 1 s"),
    ):
        first_line(process, 1)


def test_who_knows_more_of_a_wait_gives_up_first(pytestconfig: pytest.Config) -> None:
    """A driver names what it waited for, a test shows stacks, and at last the process ends."""
    limit, last = (float(pytestconfig.getini(n)) for n in ("timeout", "faulthandler_timeout"))
    assert 0 < PATIENCE_S < limit < last
    assert 0 < TIMEOUT_S < limit
    assert pytestconfig.getini("faulthandler_exit_on_timeout") is True
