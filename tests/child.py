"""Programs that tests start: with a limit, and without anything left behind when it has passed."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gemma4_compile.system.processes import OWN_GROUP, kill_group


def run_within(
    seconds: float, command: Sequence[str | Path], **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program in a process group of its own; return what it printed, whatever its status.

    After `seconds` the whole group is killed, browsers and servers too, and the test fails with the
    last that the program said.
    """
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **OWN_GROUP,
        **options,
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as expired:
            kill_group(process)
            out, err = _drain(process, expired)
            shown = " ".join(map(str, command))
            raise AssertionError(
                f"not done after {seconds} s: {shown}\n{out[-2000:]}\n{err[-2000:]}"
            ) from None
        except BaseException:
            kill_group(process)
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def first_line(process: subprocess.Popen[str], seconds: float) -> str:
    """Return the first line that a running program prints; kill it if none has come in time."""
    assert process.stdout is not None
    patience = threading.Timer(seconds, process.kill)
    patience.start()
    try:
        line = process.stdout.readline().strip()
    finally:
        patience.cancel()
    assert line, f"no line after {seconds} s, or ended, with {process.poll()}: {process.args!r}"
    return line


def _drain(process: subprocess.Popen[str], expired: subprocess.TimeoutExpired) -> tuple[str, str]:
    try:
        return process.communicate(timeout=10)
    except subprocess.TimeoutExpired:  # a program that left the group holds the pipes
        return _text(expired.stdout), _text(expired.stderr)


def _text(data: str | bytes | None) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else data or ""
