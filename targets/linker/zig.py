"""zig, of the `ziglang` package: C++ compiler and linkers for every target."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gemma4_compile.errors import TargetError
from gemma4_compile.system import processes
from gemma4_compile.system.cache_folder import cache_folder
from gemma4_compile.system.log_lines import process_noted

logger = logging.getLogger(__name__)

REPORTED_LINES = 20
"""Characters of zig's output that an error shows: the first error is near the end."""
SECONDS_BETWEEN_LINES = 10.0

Waiting = Callable[[float], None]
"""Called now and then with the seconds that zig has been running."""


def find_zig() -> Path:
    """Return the zig executable of the `ziglang` package."""
    spec = importlib.util.find_spec("ziglang")
    locations = spec.submodule_search_locations if spec is not None else None
    for location in locations or ():
        for name in ("zig", "zig.exe"):
            executable = Path(location, name)
            if executable.is_file():
                return executable
    raise TargetError(
        "the `ziglang` package is not installed: it links every model library",
        hint=f"run `{sys.executable} -m pip install ziglang`",
    )


def version() -> str:
    """Return the version of zig; a later wheel of the same (`.postN`) makes the same objects."""
    return importlib.metadata.version("ziglang").partition(".post")[0]


def run(
    arguments: Sequence[str], directory: Path, cache: Path, waiting: Waiting | None = None
) -> None:
    """Run zig.

    Parameters
    ----------
    arguments : zig's command and its arguments
    directory : working directory
    cache : where zig keeps what it makes on the way. The names in there depend on where zig is
        installed, so that it is of no use to another environment: it lasts as long as a build.
    waiting : called every SECONDS_BETWEEN_LINES

    Raises
    ------
    TargetError
        If zig is missing or fails; the message ends with its last lines.
    """
    command = [str(find_zig()), *arguments]
    own = {"ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)}
    logger.debug("running %s", " ".join(command))
    begin = time.monotonic()
    try:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            **processes.OWN_GROUP,  # with the compilers that zig starts, so that all can be ended
        )
    except OSError as error:
        raise TargetError(
            f"cannot run {command[0]}: {error.strerror}", hint="reinstall ziglang"
        ) from error
    with process_noted(command[0]), process:
        try:
            while True:
                try:
                    output, errors = process.communicate(timeout=SECONDS_BETWEEN_LINES)
                    break
                except subprocess.TimeoutExpired:
                    if waiting is not None:
                        waiting(time.monotonic() - begin)
        except BaseException:
            processes.kill_group(process)
            raise
    if process.returncode != 0:
        lines = (errors or output).strip().splitlines()[-REPORTED_LINES:]
        is_full = any("NoSpaceLeft" in line or "No space left" in line for line in lines)
        raise TargetError(
            f"zig ended with exit code {process.returncode}:\n" + "\n".join(lines),
            hint=f"free some space for {directory} and {cache}"
            if is_full
            else f"if the cache may be damaged, delete {cache_folder()} and try again",
        )
