"""Wheels of installed packages for other systems than this one, downloaded as files."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from gemma4_compile.system.cache_folder import cache_folder

_OPTIONS = (
    *("--python-version", "3.11", "--only-binary=:all:", "--no-deps"),
    *("--quiet", "--disable-pip-version-check"),
)


def wheel(package: str, platforms: tuple[str, ...], ending: str) -> Path:
    """The wheel of an installed package's version for one of some platforms, downloaded once.

    Parameters
    ----------
    ending : of its name, before `.whl`
    """
    version = importlib.metadata.version(package)
    folder = cache_folder() / "wheels"
    pattern = f"{package.replace('-', '_')}-{version}-*{ending}.whl"
    if not list(folder.glob(pattern)):
        named = [word for platform in platforms for word in ("--platform", platform)]
        command = [sys.executable, "-m", "pip", "download", *named, *_OPTIONS]
        done = subprocess.run(
            [*command, "--dest", str(folder), f"{package}=={version}"],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            pytest.skip(f"the wheel of {package} for {ending} cannot be downloaded: {reason}")
    (path,) = folder.glob(pattern)
    return path
