"""What tests of several files, and of several processes of one run, need once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest

PATIENCE_S = 500  # for another process that makes the same


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of this run, the same one in each of its processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


def made_once(path: Path, make: Callable[[Path], object]) -> Path:
    """Return `path`, which `make` writes; of several processes one does, and the others wait.

    `make` gets a path beside it, so that nothing is there by halves: what it writes must not hold
    its own place. Who uses it must not change it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path.with_name(f"{path.name}.lock"), timeout=PATIENCE_S)
    with lock:
        if not path.exists():
            scratch = path.with_name(f"{path.name}.part")
            shutil.rmtree(scratch, ignore_errors=True)
            make(scratch)
            scratch.rename(path)
    return path
