"""The name of the machine's processor."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path

_CPU_LIST = Path("/proc/cpuinfo")


def cpu_name() -> str:
    """The processor's name, as far as the system tells it."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in _CPU_LIST.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
