"""Every kernel of a package's library, on this device, against what its definition answers.

The library names the operator that each of its kernels computes. Random arguments and right answers
come from the compiler, in a process of its own: `gemma4_compile.device_check.expected_outputs`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from gemma4_compile.errors import ArtifactError, Gemma4CompileError
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.system.files import scratch_folder
from gemma4_compile.system.log_lines import process_noted
from gemma4_compile.types import Array, JsonObject

_MODULE = "gemma4_compile.device_check.expected_outputs"
_COMPARED_BYTES = 2**26  # of arguments that a kernel must leave alone
_FEWER = 2
"""Rows that a function of a few is tried with, too: it may have another kernel for as few."""
_HAS_FEWER = ("linear", "split_attention")
CHUNK_ROWS = (7, 19, 40, 100, 200)
"""Rows that a chunk's matmul is tried with where the host chooses among kernels by their number."""
EXPERT_ROWS = 9
"""Rows for each expert, on average, that experts are tried with there, too."""


class CompilerMissingError(Gemma4CompileError):
    """The compiler, which the right answers come from, does not start."""


@dataclass(frozen=True)
class KernelResult:
    """Result of one kernel.

    Attributes
    ----------
    name : the kernel's name in the library
    kind : its operator's kind
    problem : what is wrong, or "" for a kernel that answers as its definition
    error_share : the largest error as a share of what is allowed; 0 where nothing differs
    seconds : of the kernel's run, the first of its kind on this device
    """

    name: str
    kind: str
    problem: str
    error_share: float
    seconds: float


class _ExpectedOutputs:
    """The process that knows the right answers."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, log: IO[str]) -> None:
        self._process, self._folder, self._log = process, folder, log

    def ask(self, request: JsonObject) -> JsonObject:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            self._log.seek(0)
            last = (self._log.read().strip().splitlines() or ["it said nothing"])[-1]
            raise CompilerMissingError(
                f"`{_MODULE}` ended with status {self._process.returncode}: {last}",
                hint="reinstall gemma4-compile, which brings the compiler",
            )
        answer: JsonObject = json.loads(line)
        return answer

    def load(self, file: str) -> Array:
        """An array of the answer, at an address that kernels can take; writing leaves the file."""
        array: Array = np.load(self._folder / file, mmap_mode="c")
        return array


@contextmanager
def _expected_outputs() -> Iterator[_ExpectedOutputs]:
    with (
        scratch_folder(prefix="gemma4-") as folder,
        tempfile.TemporaryFile("w+", encoding="utf-8") as log,
        process_noted(_MODULE),
        subprocess.Popen(
            [sys.executable, "-m", _MODULE, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
        ) as process,
    ):
        try:
            yield _ExpectedOutputs(process, Path(folder), log)
        finally:
            process.kill()


def kernels_of(metadata: str) -> Mapping[str, str]:
    """Names and operators of a library's kernels.

    Raises
    ------
    ArtifactError
        If the library does not list them.
    """
    kernels = json.loads(metadata).get("kernels")
    if not isinstance(kernels, dict) or not kernels:
        raise ArtifactError(
            "the library does not list its kernels",
            hint="it was compiled by an older version of gemma4-compile: compile it again",
        )
    return kernels


def check_kernels(
    library: NativeLibrary, device: Device, kernels: Mapping[str, str], chunk: int
) -> Iterator[KernelResult]:
    """Run and compare one kernel after the other.

    Parameters
    ----------
    kernels : as from `kernels_of`
    chunk : the package's longest prefill chunk

    Raises
    ------
    CompilerMissingError
        If the right answers cannot be computed here.
    ArtifactError
        If an operator is one of another version.
    """
    with _expected_outputs() as plain:
        for seed, (name, operator) in enumerate(sorted(kernels.items())):
            kind = json.loads(operator)["kind"]
            results = []
            for sizes in _sizes(json.loads(operator), device, chunk):
                answer = plain.ask({"operator": operator, "seed": seed, **sizes})
                if "unknown" in answer:
                    raise ArtifactError(
                        f"operator `{kind}` of kernel `{name}` is unknown to this gemma4-compile",
                        hint="another version compiled the package: compile it again, or check it "
                        "with that version",
                    )
                results.append(_check(library, device, name, kind, answer, plain))
            yield max(results, key=lambda result: (bool(result.problem), result.error_share))


def _check(
    library: NativeLibrary,
    device: Device,
    name: str,
    kind: str,
    answer: JsonObject,
    plain: _ExpectedOutputs,
) -> KernelResult:
    try:
        function = library.linked_function(name)
        args = [plain.load(arg) if isinstance(arg, str) else arg for arg in answer["args"]]
        placed = [device.place(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        begin = time.perf_counter()
        function(*placed)
        device.wait()
        seconds = time.perf_counter() - begin
        problems, share = [], 0.0
        for index, arg in enumerate(answer["args"]):
            if not isinstance(arg, str):
                continue
            change = answer["changed"].get(str(index))
            before = plain.load(arg)
            if change is not None:
                wrong, worst = _compare(device.read(placed[index]), change, plain)
                share = max(share, worst)
            elif before.nbytes <= _COMPARED_BYTES:
                same = np.array_equal(device.read(placed[index]), before, equal_nan=True)
                wrong = "" if same else "it must be left alone, and was written to"
            else:
                continue
            if wrong:
                problems.append(f"argument {index}: {wrong}")
        return KernelResult(name, kind, "; ".join(problems), share, seconds)
    except (Gemma4CompileError, RuntimeError, ValueError, TypeError) as error:
        text = " ".join(str(error).split())[-300:]
        return KernelResult(name, kind, f"it failed: {text}", float("inf"), 0.0)


def _compare(found: Array, change: JsonObject, plain: _ExpectedOutputs) -> tuple[str, float]:
    """Problem of a result, and its largest error as a share of the allowed one."""
    expected, allowed = plain.load(change["expected"]), plain.load(change["allowed"])
    if change["packed"]:
        moved = np.abs(found.view(np.int8).astype(np.int64) - expected.view(np.int8))
        share = max(float(moved.max()), float(moved.mean()) / change["packed"])
        return ("" if share <= 1 else f"{moved.sum()} of {moved.size} values are off"), share
    error = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    error[found == expected] = 0  # infinities, too
    wrong = ~(error <= allowed)  # a NaN is not, either
    floor = np.finfo(np.float64).tiny
    share = float(np.nan_to_num(error / np.maximum(allowed, floor), nan=np.inf).max(initial=0.0))
    if not wrong.any():
        return "", share
    at = tuple(int(axis) for axis in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size} values are off by up to {np.nanmax(error):.3g} "
        f"(at {at}: expected {expected[at]}, found {found[at]})",
        share,
    )


def _sizes(operator: JsonObject, device: Device, chunk: int) -> list[JsonObject]:
    """What is asked of an operator: of a few rows also the fewest, of a chunk on CUDA several."""
    kind, rows = operator["kind"], operator.get("rows", {})
    if kind in _HAS_FEWER and "most" in rows:
        return [{"chunk": least} for least in sorted({chunk, min(chunk, _FEWER)})]
    usual: JsonObject = {"chunk": chunk}
    if device.kind.has_driver and rows == {"form": "chunk"}:
        if kind == "linear":
            return [
                {**usual, "rows": own} for own in sorted({min(own, chunk) for own in CHUNK_ROWS})
            ]
        if kind == "expert_linear":
            pairs = EXPERT_ROWS * operator["experts"]
            takes_pairs = operator["epilogue"] != "gelu_pairs"
            many = pairs if takes_pairs else min(-(-pairs // operator["top_k"]), chunk)
            return [usual, {**usual, "rows": many}]
    return [usual]
