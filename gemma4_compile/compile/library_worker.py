"""A process that compiles libraries beside the one that asked, which it does not outlive.

All jobs come pickled through its input, once, after their length; then a byte for each that it is
to make. It answers that it is ready, and after each what went wrong, or None. When its input ends,
so does it, with the compilers that it has started.
"""

from __future__ import annotations

import importlib
import os
import pickle
import queue
import signal
import sys
import threading
import time
from typing import NoReturn

from gemma4_compile.compile.library_processes import LENGTH
from gemma4_compile.errors import Gemma4CompileError
from gemma4_compile.system import logs, processes
from gemma4_compile.system.loading import without_torch

BUILD = "gemma4_compile.compile.library_build"
"""Loaded after it is seen to that this process ends, should nobody want it any more."""
SECONDS_TO_END = 3.0
"""After which it ends where it is; who started it waits a little longer."""


def _exactly(count: int) -> bytes:
    """The next bytes of the input, read without a lock, which Python would want as it ends."""
    parts: list[bytes] = []
    while count and (part := os.read(sys.stdin.fileno(), count)):
        parts.append(part)
        count -= len(part)
    if count:
        os._exit(1)  # nobody waits, and nothing is begun
    return b"".join(parts)


def _read(jobs: queue.SimpleQueue[bytes], asked: queue.SimpleQueue[int]) -> None:
    """Take the jobs, and numbers of them, until nobody waits for them."""
    (length,) = LENGTH.unpack(_exactly(LENGTH.size))
    jobs.put(_exactly(length))
    while number := os.read(sys.stdin.fileno(), 1):
        asked.put(number[0])
    processes.terminate_main_thread()
    time.sleep(SECONDS_TO_END)
    os._exit(1)


def _terminate(*_: object) -> NoReturn:
    raise KeyboardInterrupt  # what clears up as after Ctrl-C


def main() -> None:
    """Make the libraries; errors of ours are sent, all others end the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group
    signal.signal(signal.SIGTERM, _terminate)
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    logs.set_up()
    given: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    try:
        threading.Thread(target=_read, args=(given, asked), daemon=True).start()
        with without_torch():
            make_library = importlib.import_module(BUILD).make_library
        jobs = pickle.loads(given.get())  # of the process that started this one
        error: Gemma4CompileError | None = None
        while True:
            pickle.dump(error, answers)
            answers.flush()
            try:
                make_library(jobs[asked.get()])
                error = None
            except Gemma4CompileError as raised:
                error = raised
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)  # nobody waits, and all is cleared up


if __name__ == "__main__":
    main()
