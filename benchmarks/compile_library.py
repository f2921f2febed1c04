"""Compiles released sizes' libraries from their configs; appends a line each to a results file.

Each compilation runs in a process of its own, so that its peak memory is its own. A first one of
`tiny` fills the cache of native objects and is not counted.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks.environment import environment
from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.options.libraries import ALL, libraries_of
from gemma4_compile.progress import ByteProgress
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.system.limits import peak_of_children_bytes
from gemma4_compile.targets.libraries import fitting_forms

RESULTS = Path(__file__).resolve().parent / "results" / "compile_library.jsonl"


@dataclass(frozen=True)
class Measurement:
    """One compilation."""

    seconds: float
    cpu_seconds: float
    libraries: int
    peak_memory_bytes: int
    library_bytes: int
    library_gzip_bytes: int
    kernels: int
    launches_per_token: int
    largest_binding_bytes: int


class _Silent:
    """A reporter that drops everything."""

    def stage(self, text: str) -> None:
        """Ignore it."""

    @contextmanager
    def progress(self, text: str, total_bytes: int) -> Iterator[ByteProgress]:
        """Ignore it."""
        yield lambda count: None


@dataclass(frozen=True)
class Case:
    """What is compiled; without names of libraries the one of the target's default limits."""

    model: str
    target: str
    quant: str
    names: tuple[str, ...]


def measure(case: Case) -> Measurement:
    """Compile the libraries of a case into a temporary directory."""
    recipe = RECIPES[case.quant]
    forms = fitting_forms(case.names, has_float16=recipe.has_float16, takes_int8=recipe.takes_int8)
    before = sum(os.times()[:4])  # of this process, and of those that it has waited for
    with tempfile.TemporaryDirectory(prefix="gemma4-bench-") as directory:
        output = Path(directory, "package")
        request = CompileRequest(
            case.model, case.target, case.quant, output, only="library", libraries=forms
        )
        summary = compile_model(request, _Silent())
        assert summary.report is not None, "a library was asked for"
        (library,) = (path for path in output.iterdir() if path.stem == "model")
        data = library.read_bytes()
        return Measurement(
            seconds=round(summary.seconds, 2),
            cpu_seconds=round(sum(os.times()[:4]) - before, 2),
            libraries=len(summary.libraries),
            peak_memory_bytes=max(summary.peak_memory_bytes, peak_of_children_bytes()),
            library_bytes=len(data),
            library_gzip_bytes=len(gzip.compress(data, 9, mtime=0)),
            **asdict(summary.report),
        )


def _measure_in_new_process(case: Case) -> Measurement:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, case).result()


def result_line(case: Case, repeats: int) -> dict[str, object]:
    """Measure one case `repeats` times: what was measured, where, and with which versions."""
    where = environment()  # before the runs: its load is the other programs'
    runs = [_measure_in_new_process(case) for _ in range(repeats)]
    return {
        "benchmark": "compile_library",
        **where,
        "model": case.model,
        "target": case.target,
        "quant": case.quant,
        "repeats": repeats,
        **asdict(runs[-1]),  # what follows replaces the fields that vary from run to run
        "seconds": _median([run.seconds for run in runs]),
        "cpu_seconds": _median([run.cpu_seconds for run in runs]),
        "peak_memory_bytes": max(run.peak_memory_bytes for run in runs),
    }


def _median(values: Sequence[float]) -> dict[str, object]:
    return {"median": statistics.median(values), "all": sorted(values)}


def main() -> None:
    """Measure, print and append."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["gemma-4-E2B-it", "gemma-4-E4B-it"])
    parser.add_argument("--target", default="webgpu")
    parser.add_argument("--quant", default="q4f16")
    parser.add_argument("--libraries", help="with commas, or `all`; without it, the default's")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    names: tuple[str, ...] = tuple(options.libraries.split(",")) if options.libraries else ()
    if options.libraries == ALL:
        names = libraries_of((options.target,), (ALL,))
    print("warm-up: tiny", file=sys.stderr, flush=True)
    _measure_in_new_process(Case("tiny", options.target, options.quant, ()))
    for model in options.models:
        case = Case(model, options.target, options.quant, names)
        line = json.dumps(result_line(case, options.repeats))
        print(line, flush=True)
        options.results.parent.mkdir(parents=True, exist_ok=True)
        with options.results.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
