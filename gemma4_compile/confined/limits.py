"""How a process is started that reads what a stranger wrote: where, and with which variables."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_PACKAGE_PARENT = Path(__file__).parents[2]
# To find Python and its libraries, for texts, numbers of threads, and for what measures tests.
_KEPT = frozenset({"PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "SYSTEMROOT"})
_KEPT_BEGINNINGS = (
    *("LC_", "LD_", "DYLD_", "PYTHON", "CONDA_PREFIX"),
    *("OMP_", "OPENBLAS_", "MKL_", "RAYON_", "TOKENIZERS_", "MALLOC_", "COVERAGE_"),
)


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
