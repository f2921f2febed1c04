"""`gemma4-chat DIR --diagnose`: one file with what a report of a fault needs.

The file is written line by line, so that it shows how far things went where a device or a kernel
takes the whole program down. It holds no text of conversations and no names of the user's files
but the package's.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gemma4_compile import __version__
from gemma4_compile.device_kinds import WITH_LAUNCHER
from gemma4_compile.errors import Gemma4CompileError, UsageError
from gemma4_compile.runtime.check.bench import measure, table
from gemma4_compile.runtime.check.kernel_check import KernelResult, check_kernels, kernels_of
from gemma4_compile.runtime.check.launcher_check import WORDS, comparison, measured_apart
from gemma4_compile.runtime.check.shares import Yardstick
from gemma4_compile.runtime.device import metal_launcher, metal_tensors
from gemma4_compile.runtime.device.cuda_graph import SWITCH as CUDA_GRAPHS
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.device.programmatic_launch import SWITCH as PROGRAMMATIC_LAUNCH
from gemma4_compile.runtime.embedding.embedder import Embedder
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.engine.joint_rounds import RIDERS
from gemma4_compile.runtime.engine.joint_rounds import SWITCH as JOINT_ROUNDS
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.runtime.library.row_stream import SWITCH as ROW_STREAM
from gemma4_compile.runtime.package.choice import candidates, choose_library, of_library
from gemma4_compile.runtime.package.package import Package, read_provenance
from gemma4_compile.system.limits import peak_memory_bytes
from gemma4_compile.system.regular_files import open_new

_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "ziglang", "numpy", "tokenizers", "llguidance")
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    CUDA_GRAPHS,
    "GEMMA4_WARPGROUPS",  # libraries ask for it by themselves
    JOINT_ROUNDS,
    PROGRAMMATIC_LAUNCH,
    RIDERS,
    ROW_STREAM,
    metal_launcher.SWITCH,
    metal_launcher.LAUNCHES,
    "MTL_DEBUG_LAYER",
    "OMP_NUM_THREADS",
    "TVM_NUM_THREADS",
)
# TVM's numbers of what it knows of a device.
_ATTRIBUTES = {
    "name": 5,
    "compute version": 4,
    "threads per block": 1,
    "threads per warp": 2,
    "shared memory per block, bytes": 3,
    "multiprocessors": 7,
    "memory, bytes": 14,
    "memory available, bytes": 15,
    "api version": 11,
    "driver version": 12,
}
_QUESTION_TOKENS = 24  # of the greedy answer to random tokens


@dataclass
class Outcome:
    """Findings of a diagnosis."""

    kernels: int = 0
    faults: int = 0


class _Report:
    """The file, and what is shown meanwhile."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        try:
            self._file = io.TextIOWrapper(
                open_new(path), encoding="utf-8", errors="backslashreplace", write_through=True
            )
        except OSError as error:
            raise UsageError(
                f"--diagnose: cannot write `{path}`: {error.strerror}",
                hint="name a file in a directory that exists: --diagnose FILE",
            ) from error
        self._say = say

    def line(self, text: str = "") -> None:
        self._file.write(text + "\n")

    def section(self, title: str) -> None:
        self._say(title)
        self.line(f"\n== {title}")

    def values(self, values: Mapping[str, object]) -> None:
        for name, value in values.items():
            self.line(f"{name}: {value}")

    def close(self) -> None:
        self._file.close()


def diagnose(
    directory: Path, path: Path, say: Callable[[str], None], *, device: str | None = None
) -> Outcome:
    """Write the file; a part that fails is noted in it, and the next part follows.

    Parameters
    ----------
    say : is given what happens, in lines
    device : name of the library or device; by default the best that runs here

    Raises
    ------
    UsageError
        If the file cannot be written.
    """
    report, outcome = _Report(path, say), Outcome()
    try:
        report.line(f"gemma4-compile {__version__}, diagnosis of {directory.name}")
        parts: list[tuple[str, Callable[[], None]]] = [
            ("system", lambda: _system(report)),
            ("package", lambda: _package(report, directory, device)),
            ("device", lambda: _device(report, directory, device)),
            ("kernels", lambda: _kernels(report, directory, device, outcome)),
            ("model", lambda: _model(report, directory, device)),
            ("launchers", lambda: _launchers(report, directory, device)),
        ]
        for title, part in parts:
            report.section(title)
            try:
                part()
            except Gemma4CompileError as error:
                outcome.faults += 1
                report.line(f"FAULT: {error}" + (f" ({error.hint})" if error.hint else ""))
            except Exception:  # whatever it is, it belongs into the report
                outcome.faults += 1
                report.line(f"FAULT: {traceback.format_exc()}")
        report.line(f"\n{outcome.kernels} kernels checked, {outcome.faults} faults")
    finally:
        report.close()
    return outcome


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _system(report: _Report) -> None:
    report.values(
        {
            "system": platform.platform(),
            "macOS": platform.mac_ver()[0] or "no",
            "machine": platform.machine(),
            "python": sys.version.split()[0],
            "processors": os.cpu_count(),
            **{package: _version(package) for package in _PACKAGES},
            **{name: os.environ[name] for name in VARIABLES if name in os.environ},
        }
    )


def _package(report: _Report, directory: Path, named: str | None) -> None:
    provenance = read_provenance(directory)
    report.line(f"library: {provenance.library}")
    for library in provenance.libraries:
        report.line(f"has {library.name}: {json.dumps(library.to_json(), sort_keys=True)}")
    needed = provenance.files
    for one in candidates(directory, provenance):
        report.line(f"{one.library.name} ({one.library.file}): {one.lacks or 'runs here'}")
    with contextlib.suppress(Gemma4CompileError):  # the next part tells what is wrong
        chosen = choose_library(directory, provenance, named).library
        report.line(f"chosen: {chosen.name}")
        needed = of_library(provenance, chosen).files
    report.line(f"build: {json.dumps(dict(provenance.build), sort_keys=True)}")
    report.line(f"bytes: {sum(nbytes for nbytes, _ in provenance.files.values())}")
    for name, (nbytes, sha256) in sorted(provenance.files.items()):
        path = directory / name
        found = path.stat().st_size if path.is_file() else "missing"
        kind = "FAULT: found" if name in needed else "not needed here: found"
        note = "" if found == nbytes else f", {kind} {found}"
        report.line(f"file {name}: {nbytes} bytes, sha256 {sha256}{note}")


def _device(report: _Report, directory: Path, named: str | None) -> None:
    package = Package.open(directory, device=named)
    device = Device.open(package.device)
    report.line(f"library: {package.library_name}, target: {package.target}")
    if not device.is_cpu:
        for name, number in _ATTRIBUTES.items():
            report.line(f"{name}: {device.ask(number)}")
    if device.kind.is_of_macs:
        lacks = metal_tensors.without_units()
        report.line(f"tensor operations of Metal 4: {lacks or 'this GPU has units for them'}")


def _kernels(report: _Report, directory: Path, named: str | None, outcome: Outcome) -> None:
    package = Package.open(directory, device=named)
    device = Device.open(package.device)
    library = NativeLibrary(package.library_path, device)
    kernels = kernels_of(library.metadata())
    names = sorted(kernels)
    report.line(f"{len(names)} kernels with a definition; each line is written when it is done")
    report.line(f"first: {names[0]}")
    chunk = package.chat_config.prefill_chunk_size
    for index, result in enumerate(check_kernels(library, device, kernels, chunk)):
        outcome.kernels += 1
        outcome.faults += bool(result.problem)
        following = f"; next: {names[index + 1]}" if index + 1 < len(names) else ""
        report.line(_kernel_line(result) + following)
        if result.problem:
            report.line(f"    operator: {kernels[result.name]}")


def _kernel_line(result: KernelResult) -> str:
    if result.problem:
        return f"FAULT {result.name} ({result.kind}): {result.problem}"
    share = f"{100 * result.error_share:.1f} % of the allowed error"
    return f"ok {result.name} ({result.kind}): {share}, {1e3 * result.seconds:.2f} ms"


def _launchers(report: _Report, directory: Path, named: str | None) -> None:
    """Both that can drive the device; how an experiment ends is no fault of the package."""
    package = Package.open(directory, device=named)
    if package.device not in WITH_LAUNCHER or package.embeds:
        report.line("there is one way to drive this device")
        return
    found = {}
    for word in WORDS:
        report.line(f"trying {metal_launcher.SWITCH}={word}")
        found[word] = measured_apart(directory, named, word)
    for line in comparison(found):
        report.line(line)


def _encoder(report: _Report, package: Package) -> None:
    begin = time.perf_counter()
    embedder = Embedder(package)
    report.line(f"loaded in {time.perf_counter() - begin:.2f} s")
    rng = np.random.default_rng(0)
    lengths = [length for length in (1, 16, 256) if length <= embedder.max_tokens]
    texts = [rng.integers(package.chat_config.vocab_size, size=n).tolist() for n in lengths]
    begin = time.perf_counter()
    vectors = embedder.embed_tokens(texts)
    report.line(f"texts of {lengths} tokens: {1e3 * (time.perf_counter() - begin):.1f} ms")
    if not np.isfinite(vectors).all():
        report.line("FAULT: embeddings that are no numbers")
    report.line(f"first numbers: {[round(float(vector[0]), 6) for vector in vectors]}")
    report.line(f"peak memory of this process: {peak_memory_bytes()} bytes")


def _model(report: _Report, directory: Path, named: str | None) -> None:
    package = Package.open(directory, device=named)
    if package.embeds:
        _encoder(report, package)
        return
    begin = time.perf_counter()
    engine = Engine(package)
    report.line(f"loaded in {time.perf_counter() - begin:.2f} s")
    report.line(f"context: {engine.context_length}, prefill chunk: {engine.prefill_chunk}")
    ids = np.random.default_rng(0).integers(engine.vocab_size, size=16).tolist()
    logits = engine.prefill(ids)
    said: list[int] = []
    for _ in range(min(_QUESTION_TOKENS, engine.context_length - len(ids))):
        if not np.isfinite(logits).all():
            report.line(f"FAULT: logits that are no numbers after {len(said)} tokens")
            break
        said.append(int(np.argmax(logits)))
        logits = engine.decode(said[-1])
    report.line(f"greedy tokens after {ids}: {said}")
    report.line(f"largest logit: {np.nanmax(logits):.6f}")
    measured = list(measure(engine, engine.vocab_size))
    report.line(table(measured, Yardstick.of(engine)))
    report.line(f"peak memory of this process: {peak_memory_bytes()} bytes")
