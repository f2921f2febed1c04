"""Machine, commit and versions of a measurement: part of every result line."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from gemma4_compile.system.processor import cpu_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("gemma4-compile", "apache-tvm", "apache-tvm-ffi", "ziglang", "numpy")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except OSError:  # a measured machine may have none
        return ""
    return done.stdout.strip()


def _version(package: str) -> str | None:
    """Its version, or None where it is not installed: a device needs the runtime only."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def environment(commit: str | None = None) -> dict[str, object]:
    """These fields of a line; `load` is what else the machine had to do in the last minute.

    `commit` : of the code that runs, where this is no checkout; what was changed is not known then
    """
    found: dict[str, object] = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "processor": cpu_name(),
        "cores": os.cpu_count(),
        "load": _load(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }
    if commit:
        del found["uncommitted_changes"]
        found["commit"] = commit
    return found


def append_line(line: Mapping[str, object], results: Path) -> None:
    """Print a result line, and append it to a file of them."""
    text = json.dumps(line)
    print(text, file=sys.stderr)
    with results.open("a") as file:
        file.write(text + "\n")


def _load() -> float | None:
    if sys.platform == "win32":
        return None
    return round(os.getloadavg()[0], 1)
