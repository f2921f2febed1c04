"""Limits of time and memory that hold for native code, too; and how such a process is started."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":  # where packages are neither compiled nor run
    import resource

_PACKAGE_PARENT = Path(__file__).parents[2]
# To find Python and its libraries, for texts, numbers of threads, and for what measures tests.
_KEPT = frozenset({"PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "SYSTEMROOT"})
_KEPT_BEGINNINGS = (
    *("LC_", "LD_", "DYLD_", "PYTHON", "CONDA_PREFIX"),
    *("OMP_", "OPENBLAS_", "MKL_", "RAYON_", "TOKENIZERS_", "MALLOC_", "COVERAGE_"),
)
_STATUS = Path("/proc/self/status")


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package, to be started in `start_folder`."""
    return [sys.executable, "-m", f"gemma4_compile.confined.{module}", *arguments]


def start_folder() -> Path:
    """Return where to start it: `-m` looks for modules there first, so it must be no stranger's."""
    return _PACKAGE_PARENT


def environment(**more: str) -> dict[str, str]:
    """Return what such a process needs of the environment: none of its keys and tokens."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(_KEPT_BEGINNINGS)
    }
    return {**kept, **more}


def limit_memory(more_bytes: int) -> None:
    """Let this process take so much memory more than it has; an allocation beyond that fails.

    macOS knows no such limit: there the limit of time holds alone.
    """
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if not _STATUS.exists():
            return
        limit = _address_space_bytes() + more_bytes
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def limit_cpu(seconds: int) -> None:
    """End this process when it has computed for so long."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End this process if the block takes longer: by the signal's own action, so in any code."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _address_space_bytes() -> int:
    lines = _STATUS.read_text("utf-8").splitlines()
    (size,) = (line for line in lines if line.startswith("VmSize:"))
    return int(size.split()[1]) * 1024
