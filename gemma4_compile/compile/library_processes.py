"""Processes that compile libraries beside this one: how many, and their beginning and end.

Each loads the compiler, which takes as long as half a library. So a command begins them before it
loads the compiler itself: this module loads none.
"""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
from collections.abc import Iterator

from gemma4_compile.system.limits import machine_memory_bytes
from gemma4_compile.system.log_lines import process_noted
from gemma4_compile.system.parallel import workers
from gemma4_compile.system.processes import OWN_GROUP

WORKER = "gemma4_compile.compile.library_worker"
LENGTH = struct.Struct("<Q")
"""Of the pickled jobs, which comes before them."""
FEWEST = 3
"""Libraries of a process of its own: to start one takes as long as half a library."""
PROCESS_BYTES = 3 << 30
"""Memory of the machine for each process, of which the largest released model takes a third."""
_SECONDS_TO_END = 5

Process = subprocess.Popen[bytes]

_early: list[Process] = []
"""Begun, and not yet given anything to do."""


def processes(libraries: int) -> int:
    """How many processes compile so many libraries at once: by cores and memory, this one too."""
    most = min(workers(), machine_memory_bytes() // PROCESS_BYTES, libraries // FEWEST)
    return max(1, most)


@contextlib.contextmanager
def begun_early(libraries: int) -> Iterator[None]:
    """Begin processes for so many libraries, which `process` gives out; the rest ends with this."""
    try:
        with contextlib.suppress(OSError):  # `process` says what is wrong, if one is needed
            for _ in range(processes(libraries) - 1):
                _early.append(_start())
        yield
    finally:
        while _early:
            _end(_early.pop())


@contextlib.contextmanager
def process(jobs: bytes) -> Iterator[Process]:
    """A process that has the pickled jobs, and is gone when the block ends."""
    made = _early.pop() if _early else _start()
    try:
        assert made.stdin is not None, "asked for"
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is seen at its answers
            made.stdin.write(LENGTH.pack(len(jobs)) + jobs)
            made.stdin.flush()
        with process_noted(WORKER):
            yield made
    finally:
        _end(made)


def _start() -> Process:
    return subprocess.Popen(
        [sys.executable, "-m", WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **OWN_GROUP,  # Ctrl-C is for this process, which ends that one
    )


def _end(made: Process) -> None:
    if made.stdin is not None:
        with contextlib.suppress(OSError):
            made.stdin.close()  # by which it knows that nobody waits for it
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            made.wait(_SECONDS_TO_END)
    finally:
        made.kill()  # nothing where it has ended
        made.wait()
        if made.stdout is not None:
            made.stdout.close()
