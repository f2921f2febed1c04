"""A process that compiles libraries beside the one that asked, which it does not outlive.

All jobs come pickled through its input, once; then a byte for each that it is to make. It answers
that it is ready, and after each what went wrong, or None. When its input ends, so does it, with the
compilers that it has started.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
import time
from typing import NoReturn

from gemma4_compile.compile.library_build import make_library
from gemma4_compile.errors import Gemma4CompileError
from gemma4_compile.system import logs, processes

SECONDS_TO_END = 3.0
"""After which it ends where it is; who started it waits a little longer."""


def _read(asked: queue.SimpleQueue[int]) -> None:
    """Take numbers of jobs, until nobody waits for them."""
    while number := os.read(sys.stdin.fileno(), 1):  # without a lock, which Python would want
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
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    try:
        jobs = pickle.load(sys.stdin.buffer)  # of the process that started this one
        threading.Thread(target=_read, args=(asked,), daemon=True).start()
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
