"""A build of several libraries that ends early leaves no file and no process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gemma4_compile.system.processes import OWN_GROUP
from tests.endless_libraries import NOTES

FILES = ("model.wasm", "model-f16.wasm")
SECONDS = 120


@dataclass(frozen=True)
class Build:
    """A build in the middle of two libraries."""

    command: subprocess.Popen[str]
    worker: int
    linkers: tuple[int, int]  # of the command, and of the worker


def eventually(is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + SECONDS
    while not is_so() and time.monotonic() < end:
        time.sleep(0.05)
    return is_so()


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@contextlib.contextmanager
def begun(folder: Path, output: Path) -> Iterator[Build]:
    notes = [folder / name for name in FILES]
    options = ["--only", "library", "--libraries", "default,f16", "-o", str(output)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.endless_libraries", "tiny", *options],
        env={**os.environ, NOTES: str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        **OWN_GROUP,
    ) as command:
        groups = [command.pid]
        try:
            assert eventually(lambda: all(map(Path.exists, notes)) or command.poll() is not None)
            (own, own_linker), (worker, linker) = (
                map(int, note.read_text().split()) for note in notes
            )
            groups += [own_linker, linker]
            assert own == command.pid
            yield Build(command, worker, (own_linker, linker))
        finally:
            for group in groups:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)


@pytest.mark.slow
def test_an_interruption_ends_all(tmp_path: Path) -> None:
    output = tmp_path / "packages" / "tiny"
    with begun(tmp_path, output) as build:
        os.killpg(build.command.pid, signal.SIGINT)  # as a terminal does
        assert build.command.wait(SECONDS) == 130
        assert eventually(lambda: all(map(has_ended, (build.worker, *build.linkers))))
    assert not output.parent.exists()


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_build(tmp_path: Path) -> None:
    output = tmp_path / "packages" / "tiny"
    with begun(tmp_path, output) as build:
        os.kill(build.worker, signal.SIGKILL)
        os.kill(build.linkers[0], signal.SIGTERM)  # the library of this process is done
        assert build.command.stderr is not None
        said = build.command.stderr.read()
        assert build.command.wait(SECONDS) == 1
    assert "a process that compiles libraries ended with exit code -9" in said
    assert not output.parent.exists()
