"""Processes with the ones that they start: to be ended together."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TypedDict


class _Group(TypedDict):
    start_new_session: bool


OWN_GROUP: _Group = {"start_new_session": True}
"""Options of `Popen` for `kill_group`; Windows knows no sessions, and takes the option."""


def kill_group(process: subprocess.Popen[str]) -> None:
    """End a process that was started with OWN_GROUP, and those that it started."""
    if sys.platform == "win32":
        kill_tree(process)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def kill_tree(process: subprocess.Popen[str], run: Callable[..., object] = subprocess.run) -> None:
    """`kill_group` on Windows, where `taskkill`, a part of it, knows who started whom."""
    command = ["taskkill", "/F", "/T", "/PID", str(process.pid)]
    with contextlib.suppress(OSError):
        run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    process.kill()  # what taskkill could not, and nothing where it has ended


def signal_name(number: int) -> str:
    """The name of a signal, `SIGKILL`; its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def terminate_main_thread() -> None:
    """Have the handler of SIGTERM run in the main thread; on POSIX also where that one waits."""
    if sys.platform == "win32":
        _thread.interrupt_main(signal.SIGTERM)
        return
    main = threading.main_thread().ident
    assert main is not None, "it has begun"
    signal.pthread_kill(main, signal.SIGTERM)
