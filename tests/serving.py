"""`gemma4-serve` in a process of its own, as a user runs it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.child import first_line
from tests.commands import SERVE


@contextmanager
def serving(*arguments: object) -> Iterator[str]:
    """The address of a server, which is ended by Ctrl-C."""
    command = [*SERVE, *map(str, arguments), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            address = first_line(process, 120)
            assert address.startswith("http://"), process.stderr.read()
            yield address
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 130
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()
