"""Compiles released sizes' libraries from their configs; appends a line each to a results file.

Each compilation runs in a process of its own, so that its peak memory is its own. A first one of
`tiny` fills the cache of native objects and is not counted.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks.environment import environment
from gemma4_compile.compile.pipeline import compile_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.progress import ByteProgress
from gemma4_compile.system.limits import peak_of_children_bytes

RESULTS = Path(__file__).resolve().parent / "results" / "compile_library.jsonl"


@dataclass(frozen=True)
class Measurement:
    """One compilation."""

    seconds: float
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


def measure(model: str, target: str, quant: str) -> Measurement:
    """Compile the library of `model` into a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="gemma4-bench-") as directory:
        output = Path(directory, "package")
        request = CompileRequest(model, target, quant, output, only="library")
        summary = compile_model(request, _Silent())
        assert summary.report is not None, "a library was asked for"
        (library,) = (path for path in output.iterdir() if path.stem == "model")
        data = library.read_bytes()
        return Measurement(
            seconds=round(summary.seconds, 2),
            peak_memory_bytes=max(summary.peak_memory_bytes, peak_of_children_bytes()),
            library_bytes=len(data),
            library_gzip_bytes=len(gzip.compress(data, 9, mtime=0)),
            **asdict(summary.report),
        )


def _measure_in_new_process(model: str, target: str, quant: str) -> Measurement:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, model, target, quant).result()


def result_line(model: str, target: str, quant: str, repeats: int) -> dict[str, object]:
    """Measure one model `repeats` times: what was measured, where, and with which versions."""
    where = environment()  # before the runs: its load is the other programs'
    runs = [_measure_in_new_process(model, target, quant) for _ in range(repeats)]
    seconds = sorted(run.seconds for run in runs)
    return {
        "benchmark": "compile_library",
        **where,
        "model": model,
        "target": target,
        "quant": quant,
        "repeats": repeats,
        **asdict(runs[-1]),  # what follows replaces the fields that vary from run to run
        "seconds": {"median": statistics.median(seconds), "all": seconds},
        "peak_memory_bytes": max(run.peak_memory_bytes for run in runs),
    }


def main() -> None:
    """Measure, print and append."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["gemma-4-E2B-it", "gemma-4-E4B-it"])
    parser.add_argument("--target", default="webgpu")
    parser.add_argument("--quant", default="q4f16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    print("warm-up: tiny", file=sys.stderr, flush=True)
    _measure_in_new_process("tiny", options.target, options.quant)
    for model in options.models:
        line = json.dumps(result_line(model, options.target, options.quant, options.repeats))
        print(line, flush=True)
        options.results.parent.mkdir(parents=True, exist_ok=True)
        with options.results.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
