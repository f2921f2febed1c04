"""A Metal of this machine's CPU for the launcher: Objective-C's runtime and the classes it uses.

It executes kernels that the emulator compiled, as late as Metal may, and ends the process at the
first thing that the launcher must not do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemma4_compile.targets.linker import runtime_objects
from tests.metal import emulator

SOURCES = Path(__file__).parent / "launcher"
LAUNCHER = runtime_objects.NATIVE / "metal"
UNITS = ("fake_objc", "fake_archive", "fake_metal")
ENDS = (".h", ".cc")
FAULT = 86


def build() -> Path:
    """The library, which a process loads so that all find its symbols."""
    sources = [SOURCES / f"{unit}.cc" for unit in UNITS]
    return _build("fake", {path.name: path.read_text() for path in sources})


def build_launcher(changes: Sequence[tuple[str, str]]) -> Path:
    """The launcher's own units behind calls in C.

    Parameters
    ----------
    changes : texts that are there once, and what stands for each. It may ask for `planted`, which
        the call `plant` sets
    """
    paths = [LAUNCHER / f"{unit}{end}" for unit in ("objc", "written", "launcher") for end in ENDS]
    texts = {path.name: path.read_text() for path in [*paths, SOURCES / "plain_calls.cc"]}
    for text, other in changes:
        holding = [name for name in texts if text in texts[name]]
        assert [texts[name].count(text) for name in holding] == [1], text
        texts[holding[0]] = texts[holding[0]].replace(text, other)
    texts["objc.h"] = "extern int planted;\n" + texts["objc.h"]
    return _build("launcher", texts)


def _build(name: str, texts: Mapping[str, str]) -> Path:
    """A library of C++ files, with headers beside them."""
    headers = [*SOURCES.glob("*.h"), emulator.NATIVE / "threadgroup.h"]
    everything = {**{path.name: path.read_text() for path in headers}, **texts}

    def make(scratch: Path, output: Path) -> None:
        for file, text in everything.items():
            (scratch / file).write_text(text)
        units = [str(scratch / file) for file in texts if file.endswith(".cc")]
        for unit in units:
            emulator._zig([*emulator.FLAGS, "-O1", "-c", unit, "-o", f"{unit}.o"])
        emulator._link([f"{unit}.o" for unit in units], output)

    return emulator._cached(name, [f"{file}\0{text}" for file, text in everything.items()], make)


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    output: str
    errors: str

    def answer(self) -> dict[str, object]:
        """What it found; a fault of its launcher is an error."""
        assert self.code == 0, self.errors
        answer: dict[str, object] = json.loads(self.output)
        return answer


def run(module: str, asked: Mapping[str, object], environment: Mapping[str, str]) -> Ended:
    """Run a module in a process of its own, whose Metal is the fake.

    It is asked in JSON, with the library's path and those of compiled kernels among it.
    """
    asked = {**asked, "fake": str(build()), "kernels": emulator.kernel_libraries}
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(asked),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    return Ended(done.returncode, done.stdout, done.stderr)
