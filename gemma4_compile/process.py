"""What all commands share as processes: how they end, and the memory that they took."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from gemma4_compile.errors import Gemma4CompileError, UsageError

if sys.platform != "win32":
    import resource

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_STATUS = Path("/proc/self/status")


def report(error: Gemma4CompileError, *, debug: bool) -> int:
    """Say an error on stderr, with its traceback if asked; returns the exit status."""
    if debug:
        traceback.print_exception(error)
    print(f"error: {error}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED


def peak_memory_bytes() -> int | None:
    """Largest resident size of this process so far; None where the system does not say."""
    if sys.platform == "win32":
        return None
    if _STATUS.exists():  # Linux's ru_maxrss begins with that of the process which forked this one
        lines = _STATUS.read_text("utf-8").splitlines()
        (peak,) = (line for line in lines if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found * 1024  # KiB but on macOS
