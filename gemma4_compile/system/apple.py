"""Names of an Apple chip and of its parts, as macOS tells them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence

_SYSCTL = ("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
_IOREG = ("/usr/sbin/ioreg", "-r", "-c", "AGXAccelerator", "-d", "1")
_CORES = re.compile(r'"gpu-core-count"\s*=\s*(\d+)')
_LIMIT_S = 20.0

Ask = Callable[[Sequence[str]], str]


def _run(command: Sequence[str]) -> str:
    """What a program of the system says; "" where there is none, or it fails."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", errors="replace")


def apple_chip(ask: Ask = _run) -> str | None:
    """The chip's name, `Apple M1 Max`; None where there is none.

    Parameters
    ----------
    ask : runs a program of the system and returns its output, "" if it fails
    """
    return ask(_SYSCTL).strip() or None


def apple_gpu_cores(ask: Ask = _run) -> int | None:
    """Cores of the GPU, which are fewer in the smaller kind of a chip; None where it is not told.

    Parameters
    ----------
    ask : as of `apple_chip`
    """
    found = _CORES.search(ask(_IOREG))
    return int(found[1]) if found else None
