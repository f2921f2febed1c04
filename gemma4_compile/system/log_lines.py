"""Lines of the log: `12:34:56.789 info [pid] runtime.package: message` on stderr."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator

from gemma4_compile.errors import printable

NAME = "gemma4_compile"
"""Of the logger above all of ours."""

_processes = logging.getLogger(f"{NAME}.processes")


class _Lines(logging.Formatter):
    """One line a record, without control characters: messages name files of others."""

    def format(self, record: logging.LogRecord) -> str:
        clock = self.formatTime(record, "%H:%M:%S")
        name = record.name.removeprefix(f"{NAME}.")
        message = super().format(record)  # with the traceback, where there is one
        head = f"{clock}.{record.msecs:03.0f} {record.levelname.lower()} [{record.process}] {name}"
        return printable(f"{head}: {' '.join(message.split())}")


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]  # not generic when it runs
    """Writes to what stderr is by now; where that takes nothing, the command goes on."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        if self.stream is not None:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Say nothing: it would be said on stderr."""


def write_from(level: str) -> None:
    """Write what our loggers are given, from a level on; called again, it changes the level."""
    logger = logging.getLogger(NAME)
    logger.setLevel(level)
    if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
        handler = _Stderr()
        handler.setFormatter(_Lines())
        logger.addHandler(handler)


@contextlib.contextmanager
def process_noted(what: str) -> Iterator[None]:
    """Log that a process begins, and when it has ended; what it is given is not said."""
    begin = time.monotonic()
    _processes.debug("started: %s", what)
    try:
        yield
    finally:
        _processes.debug("ended after %.2f s: %s", time.monotonic() - begin, what)
