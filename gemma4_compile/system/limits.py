"""Limits of time, memory and open files of this process, which hold for native code, too."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from gemma4_compile.system import jobs

if sys.platform != "win32":
    import resource

TIME_IS_UP = 124
"""Exit status of a process that a watch ended, where no signal does; as of `timeout`."""
_QUOTA = 1816  # ERROR_NOT_ENOUGH_QUOTA: Windows' end of a process that has computed for too long
_STATUS = Path("/proc/self/status")


def limit_memory(more_bytes: int) -> None:
    """Let this process take so much memory more than it has; an allocation beyond that fails.

    macOS knows no such limit: there the limit of time holds alone.
    """
    with contextlib.suppress(ValueError, OSError):
        if sys.platform == "win32":
            jobs.limit_memory(ctypes.WinDLL("kernel32"), more_bytes)
        else:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if _STATUS.exists():
                _, hard = resource.getrlimit(resource.RLIMIT_AS)
                limit = _status_bytes("VmSize:") + more_bytes
                if hard != resource.RLIM_INFINITY:
                    limit = min(limit, hard)
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def limit_cpu(seconds: int) -> None:
    """End this process when it has computed for so long."""
    with contextlib.suppress(ValueError, OSError):
        if sys.platform == "win32":
            jobs.limit_cpu(ctypes.WinDLL("kernel32"), seconds)
        else:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End this process if the block takes longer: by the signal's own action, so in any code.

    Windows has no such signal. A thread ends the process there, once native code lets threads run;
    who started the process ends it in any case.
    """
    if sys.platform == "win32":
        with watch(seconds):
            yield
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def watch(seconds: float, end: Callable[[int], object] = os._exit) -> Iterator[None]:
    """Call `end` with TIME_IS_UP from a thread if the block takes longer."""
    timer = threading.Timer(seconds, end, (TIME_IS_UP,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def took_too_long(status: int) -> bool:
    """Return whether a process that ended so (`Popen.returncode`) broke a limit of time."""
    if sys.platform == "win32":
        return status in (TIME_IS_UP, _QUOTA)
    return status in (-signal.SIGALRM, -signal.SIGXCPU)


def has_address_space_limit() -> bool:
    """Return whether this process may only have so much address space, as by `ulimit -v`."""
    if sys.platform == "win32":
        return False
    else:  # a branch: mypy looks for names in what stands after `return` as well
        return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def peak_memory_bytes() -> int | None:
    """Largest resident size of this process so far; None where the system does not show it."""
    if _STATUS.exists():  # Linux's ru_maxrss begins with that of the process which forked this one
        return _status_bytes("VmHWM:")
    if sys.platform == "win32":
        with contextlib.suppress(OSError):
            return int(jobs.memory_counters(ctypes.WinDLL("kernel32")).peak_working_set)
        return None
    else:
        return _peak_of(resource.RUSAGE_SELF)


def peak_of_children_bytes() -> int:
    """Largest resident size of a child that has ended; 0 where the system does not show it."""
    if sys.platform == "win32":
        return 0
    else:
        return _peak_of(resource.RUSAGE_CHILDREN)


if sys.platform != "win32":

    def _peak_of(whose: int) -> int:
        found = resource.getrusage(whose).ru_maxrss
        return found if sys.platform == "darwin" else found * 1024  # KiB but on macOS


def machine_memory_bytes() -> int:
    """Memory of the machine; 0 where the system does not tell."""
    if sys.platform == "win32":
        with contextlib.suppress(OSError):
            return jobs.machine_memory_bytes(ctypes.WinDLL("kernel32"))
        return 0
    else:
        try:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError):
            return 0


def allow_open_files(count: int) -> int:
    """Let this process open so many files; return how many it may, the system's most or more."""
    if sys.platform == "win32":  # handles have no such limit
        return count
    else:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        unlimited = resource.RLIM_INFINITY
        if soft == unlimited:
            return count
        if soft < count:
            with contextlib.suppress(ValueError, OSError):  # more than the system has, on macOS
                most = count if hard == unlimited else min(count, hard)
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _status_bytes(name: str) -> int:
    lines = _STATUS.read_text("utf-8").splitlines()
    (size,) = (line for line in lines if line.startswith(name))
    return int(size.split()[1]) * 1024
