"""Measures what turns pictures and sounds into rows of the decoder, in a package for CUDA.

The package may hold nothing but its library: weights are random, and only those of the towers are
distinct. One line per measurement is appended to a results file; a table by kernel goes to stderr.
What is measured: README.md next to this file.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from benchmarks.device_facts import device_name
from benchmarks.environment import environment
from benchmarks.random_weights import Filler, Weight
from benchmarks.samples import summary
from benchmarks.tower_operations import picture_operations, sound_operations
from gemma4_compile import abi
from gemma4_compile.package.artifacts import Provenance, read_artifact
from gemma4_compile.package.interface import device_of
from gemma4_compile.runtime.device.cuda_graph import NotRecordableError, Watch, record
from gemma4_compile.runtime.device.cuda_runtime import DEFAULT_STREAM, CudaRuntime
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.native_library import NativeLibrary

RESULTS = Path(__file__).resolve().parent / "results" / "native.jsonl"
TOWERS = ("vision_", "embed_vision.", "audio_")
"""Begins of the names of weights that the measured functions read."""
SAMPLE_RATE_HZ = 16_000
HOST_ONLY = ("vm.", "shape_func")
"""Begins of the names of what a virtual machine calls besides kernels."""
MOST_CALLS = 50  # in a sample
BACKLOG = 4
"""Calls before the one whose kernels are timed: the host is ahead of the device then."""

Call = Callable[[], tvm_ffi.Tensor]


class Stopwatch:
    """Milliseconds of the device between two points of its default stream."""

    def __init__(self, cuda: CudaRuntime) -> None:
        self._cuda = cuda

    def mark(self) -> ctypes.c_void_p:
        """A point after all work that the device was given so far."""
        event = self._cuda.make("cudaEventCreate")
        self._cuda.call("cudaEventRecord", event, DEFAULT_STREAM)
        return event

    def between(self, begin: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Time from one point to another, once the device has passed both; they are gone then."""
        self._cuda.call("cudaEventSynchronize", end)
        milliseconds = ctypes.c_float()
        self._cuda.call("cudaEventElapsedTime", ctypes.byref(milliseconds), begin, end)
        for event in (begin, end):
            self._cuda.call("cudaEventDestroy", event)
        return milliseconds.value


class KernelTimes:
    """Instrument of a virtual machine: marks before and after each call of a kernel."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self._active = False
        self._begin: ctypes.c_void_p | None = None
        self._calls: list[tuple[str, ctypes.c_void_p, ctypes.c_void_p]] = []

    @contextmanager
    def active(self) -> Iterator[None]:
        """Time the calls that are made meanwhile."""
        self._active = True
        try:
            yield
        finally:
            self._active = False

    def __call__(self, _function: object, name: str, before: bool, *_: object) -> int:
        """Take note of one call of the machine."""
        if self._active and not name.startswith(HOST_ONLY):
            mark = self._stopwatch.mark()
            if before:
                self._begin = mark
            elif self._begin is not None:
                self._calls.append((name, self._begin, mark))
                self._begin = None
        return 0

    def rows(self) -> list[dict[str, Any]]:
        """Launches and microseconds by kernel, the costliest first."""
        found: dict[str, list[float]] = {}
        for name, begin, end in self._calls:
            found.setdefault(name, []).append(1e3 * self._stopwatch.between(begin, end))
        total = sum(sum(times) for times in found.values())
        rows = [
            {
                "kernel": name,
                "launches": len(times),
                "microseconds": round(sum(times), 1),
                "share": round(sum(times) / total, 4),
            }
            for name, times in found.items()
        ]
        return sorted(rows, key=lambda row: -float(str(row["microseconds"])))


def parameters(metadata: Mapping[str, Any], device: Device) -> tvm_ffi.Array[tvm_ffi.Tensor]:
    """Random weights; those of the decoder share memory where shape and type are the same."""
    weights = Weight.listed(metadata)
    filler, shared = Filler(weights), {}
    tensors = []
    for weight in weights:
        key = (weight.shape, weight.dtype)
        if weight.name.startswith(TOWERS):
            data = np.concatenate(list(filler.pieces(weight)))
            tensors.append(device.place(data.view(weight.dtype).reshape(weight.shape)))
            continue
        if key not in shared:
            shared[key] = device.empty(*key)
        tensors.append(shared[key])
    return tvm_ffi.Array(tensors)


class Towers:
    """The media functions of one library."""

    def __init__(self, directory: Path, library: str, target: str) -> None:
        self.device = Device.open(target)
        self.cuda = CudaRuntime()
        self.stopwatch = Stopwatch(self.cuda)
        self._library = NativeLibrary(directory / library, self.device)
        metadata = self._library.metadata()
        self.metadata: dict[str, Any] = json.loads(metadata)
        self._params = parameters(self.metadata, self.device)
        self._random = np.random.default_rng(0)

    def picture(self, rows: int) -> Sequence[tvm_ffi.Tensor]:
        """Pixels of `rows` blocks of noise and their places, in a grid close to a square."""
        side = int(self.metadata["media"]["image"]["block_size"])
        across = next(n for n in range(1, rows + 1) if rows % n == 0 and n * n >= rows)
        pixels = self._random.random((rows, side * side * 3), np.float32)
        cells = np.array([(i % across, i // across) for i in range(rows)], np.int32)
        return self.device.place(pixels), self.device.place(cells)

    def sound(self, seconds: float) -> Sequence[tvm_ffi.Tensor]:
        """A sound of noise."""
        count = round(seconds * SAMPLE_RATE_HZ)
        samples = self._random.random(count, np.float32) / 2 - np.float32(0.25)
        return (self.device.place(samples),)

    def measure(self, name: str, inputs: Sequence[tvm_ffi.Tensor], repeats: int) -> dict[str, Any]:
        """One call of a function: on the device alone, and as the runtime issues it."""
        function = self._library.compiled_function(name)

        def embed() -> tvm_ffi.Tensor:
            return function(*inputs, self._params)

        values = self.device.read(embed()).astype(np.float64)
        kernels = self._kernels(name, inputs, embed)
        recorded, launches = self._graph(name, inputs, repeats)
        return {
            "finite": bool(np.isfinite(values).all()),
            "deviation": round(float(np.sqrt(np.mean(values**2))), 4),
            "launches": launches or sum(row["launches"] for row in kernels),
            "replayed_ms": recorded,
            "queued_ms": summary(self._timed(embed, repeats)),
            "driven_ms": summary([self._driven(embed) for _ in range(repeats)]),
            "kernels": kernels,
        }

    def _kernels(
        self, name: str, inputs: Sequence[tvm_ffi.Tensor], embed: Call
    ) -> list[dict[str, Any]]:
        times = KernelTimes(self.stopwatch)
        watched = self._library.watched(times).compiled_function(name)
        watched(*inputs, self._params)
        for _ in range(BACKLOG):
            embed()
        with times.active():
            watched(*inputs, self._params)
        return times.rows()

    def _graph(
        self, name: str, inputs: Sequence[tvm_ffi.Tensor], repeats: int
    ) -> tuple[dict[str, Any] | None, int]:
        watch = Watch()
        watched = self._library.watched(watch).compiled_function(name)
        watched(*inputs, self._params)
        self.device.wait()
        try:
            graph = record(self.cuda, self.device, watch, lambda: watched(*inputs, self._params))
        except NotRecordableError as error:
            print(f"no CUDA graph: {error}", file=sys.stderr)
            return None, 0
        return summary(self._timed(graph.launch, repeats)), graph.kernels

    def _timed(self, action: Callable[[], object], repeats: int) -> list[float]:
        """Milliseconds of the device for an action, of several calls one after the other."""
        action()
        self.device.wait()
        begin = time.perf_counter()
        action()
        self.device.wait()
        calls = min(MOST_CALLS, max(2, round(0.05 / (time.perf_counter() - begin))))
        samples = []
        for _ in range(repeats):
            action()
            first = self.stopwatch.mark()
            for _ in range(calls):
                action()
            samples.append(self.stopwatch.between(first, self.stopwatch.mark()) / calls)
        return samples

    def _driven(self, embed: Call) -> float:
        self.device.wait()
        begin = time.perf_counter()
        embed()
        self.device.wait()
        return 1e3 * (time.perf_counter() - begin)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Lines for people."""
    return "\n".join(
        f"{row['microseconds']:10.1f} us {100 * row['share']:5.1f} % {row['launches']:5d} x "
        f"{row['microseconds'] / row['launches']:8.1f} us  {row['kernel']}"
        for row in rows
    )


def jobs(towers: Towers, options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], Any]]:
    """What the package takes of what was asked for: fields of the line, and how to measure it."""
    media, params = towers.metadata.get("media") or {}, Weight.listed(towers.metadata)
    if media.get("image"):
        for rows in map(int, filter(None, options.rows.split(","))):
            if rows <= media["image"]["max_budget"]:
                operations = picture_operations(params, rows)
                fields = {"measure": "image", "rows": rows, "operations": operations}
                yield fields, (abi.EMBED_IMAGE, towers.picture(rows))
    if media.get("audio"):
        for seconds in map(float, filter(None, options.seconds.split(","))):
            operations = sound_operations(params, round(seconds * SAMPLE_RATE_HZ))
            fields = {"measure": "audio", "seconds": seconds, "operations": operations}
            yield fields, (abi.EMBED_AUDIO, towers.sound(seconds))


def main() -> None:
    """Measure, print, append."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", type=Path, required=True, help="output of gemma4-compile")
    parser.add_argument("--model", help="name in the result lines (default: the package's source)")
    parser.add_argument("--rows", default="280", help="of pictures, with commas")
    parser.add_argument("--seconds", default="30", help="of sounds, with commas")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--commit", help="of the library and of the code that runs, where this is no checkout"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    provenance = Provenance.from_json(read_artifact(options.package / abi.PROVENANCE_FILE))
    build, library = provenance.build, provenance.library
    assert library is not None, "compiled with --only library"
    where = environment(options.commit)
    towers = Towers(options.package, library, device_of(build))
    common = {
        "benchmark": "native",
        **where,
        "versions": build["versions"],
        "library": provenance.files[library][1][:12],
        "model": options.model or str(build["source"].get("id", build["source"]["kind"])),
        **{name: build[name] for name in ("target", "recipe", "limits", "activations")},
        "weights": "synthetic",
        "device": device_name(device_of(build)),
    }
    for fields, (name, inputs) in jobs(towers, options):
        found = towers.measure(name, inputs, options.repeats)
        best = statistics.median((found["replayed_ms"] or found["queued_ms"])["all"])
        rate = {"teraops": round(fields["operations"] / best / 1e9, 2)}
        line = json.dumps({**common, **fields, **found, **rate})
        print(line, flush=True)
        print(f"{name}: {best:.3f} ms, {rate}\n{table(found['kernels'])}", file=sys.stderr)
        options.results.parent.mkdir(parents=True, exist_ok=True)
        with options.results.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        if not found["finite"]:
            sys.exit("some rows are not finite")


if __name__ == "__main__":
    main()
