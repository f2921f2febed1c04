"""A process that compiles libraries beside the one that asked, which it does not outlive.

Its jobs come pickled through its input; what went wrong, or None, goes back through its output.
Its input stays open as long as somebody waits.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading

from gemma4_compile.errors import Gemma4CompileError
from gemma4_compile.library_build import make_library


def _end_with_the_other() -> None:
    os.read(sys.stdin.fileno(), 1)  # without a lock, which Python would want at its end
    os._exit(1)


def main() -> None:
    """Make the libraries; the exit status is 0 even for errors of ours, which are sent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group
    answer, sys.stdout = sys.stdout.buffer, sys.stderr
    jobs = pickle.load(sys.stdin.buffer)  # of the process that started this one
    threading.Thread(target=_end_with_the_other, daemon=True).start()
    error: Gemma4CompileError | None = None
    try:
        for job in jobs:
            make_library(job)
    except Gemma4CompileError as raised:
        error = raised
    answer.write(pickle.dumps(error))
    answer.flush()


if __name__ == "__main__":
    main()
