"""Converts synthetic checkpoints of released sizes; appends a line each to a results file.

The checkpoint is made up as it is read, or written to disk first (`--source disk`). Next to the
conversion is the bare speed of the disk: reading as many bytes as the checkpoint has, and
writing as many as the package gets.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks.environment import environment
from benchmarks.synthetic_checkpoint import SyntheticCheckpoint, config_json, write_tensors
from gemma4_compile.checkpoint.match import match, row_reader
from gemma4_compile.checkpoint.safetensors_file import read_header
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import Parameter
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.package.shards import write_weights
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.system.limits import peak_memory_bytes
from gemma4_compile.targets import target_spec

RESULTS = Path(__file__).resolve().parent / "results" / "convert_weights.jsonl"
BLOCK_BYTES = 8 << 20
LIMIT = target_spec("webgpu").max_binding_bytes


@dataclass(frozen=True)
class Sample:
    """A model, or its first layers only: then `layers` is not None."""

    model: str
    quant: str
    layers: int | None

    def parameters(self) -> tuple[Parameter, ...]:
        """Parameters that are converted."""
        table = parameter_table(Gemma4Config.from_dict(config_json(self.model)))
        if self.layers is None:
            return table
        names = tuple(f"layers.{index}." for index in range(self.layers))
        return tuple(p for p in table if p.name.startswith(names))


@dataclass(frozen=True)
class Measurement:
    """One conversion."""

    seconds: float
    cpu_seconds: float
    peak_memory_bytes: int
    checkpoint_bytes: int
    stored_bytes: int


def convert(sample: Sample, checkpoint: Path | None, output: Path) -> Measurement:
    """Convert into `output`, from a file or from made-up rows."""
    config = Gemma4Config.from_dict(config_json(sample.model))
    parameters = sample.parameters()
    read_rows = (
        SyntheticCheckpoint(config).read_rows
        if checkpoint is None
        else row_reader(match(read_header(checkpoint), config))
    )
    plan = storage_plan(parameters, RECIPES[sample.quant], LIMIT)
    cpu, begin = time.process_time(), time.monotonic()
    written = write_weights(output, plan, read_rows, "benchmark", lambda count: None)
    seconds, cpu = time.monotonic() - begin, time.process_time() - cpu
    return Measurement(
        seconds=round(seconds, 2),
        cpu_seconds=round(cpu, 2),
        peak_memory_bytes=peak_memory_bytes() or 0,
        checkpoint_bytes=2 * sum(_elements(p) for p in parameters),
        stored_bytes=sum(shard.nbytes for shard in written.cache.shards),
    )


def _elements(parameter: Parameter) -> int:
    count = 1
    for size in parameter.shape:
        count *= size
    return count


def _write(path: Path, nbytes: int) -> None:
    block = bytes(range(256)) * (BLOCK_BYTES // 256)
    with path.open("wb") as file:
        for begin in range(0, nbytes, BLOCK_BYTES):
            file.write(block[: nbytes - begin])


def _forget(paths: Iterable[Path]) -> None:
    """Take files out of the system's cache, so that they are read from the disk."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            if sys.platform == "linux":
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(paths: Iterable[Path]) -> int:
    total = 0
    buffer = bytearray(BLOCK_BYTES)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


def plain_speed(directory: Path, checkpoint: Path | None, found: Measurement) -> dict[str, object]:
    """Read what the checkpoint has (or the shards, for a rate), write what the package has."""
    files = [checkpoint] if checkpoint else sorted(directory.glob("*.bin"))
    _forget(files)
    begin = time.monotonic()
    nbytes = _read(files)
    rate = nbytes / (time.monotonic() - begin)
    shutil.rmtree(directory)
    directory.mkdir()
    begin = time.monotonic()
    _write(directory / "plain.bin", found.stored_bytes)
    write_seconds = time.monotonic() - begin
    read_seconds = found.checkpoint_bytes / rate
    return {
        "plain_read_bytes": nbytes,
        "plain_read_bytes_per_s": round(rate),
        "plain_write_bytes_per_s": round(found.stored_bytes / write_seconds),
        "plain_seconds": round(read_seconds + write_seconds, 2),
    }


def result_line(sample: Sample, source: str, directory: Path) -> dict[str, object]:
    """Measure: what was converted, how fast, and how fast the disk is."""
    checkpoint: Path | None = None
    if source == "disk":
        checkpoint = directory / "model.safetensors"
        print(f"writing {sample.model}'s checkpoint", file=sys.stderr, flush=True)
        synthetic = SyntheticCheckpoint(Gemma4Config.from_dict(config_json(sample.model)))
        write_tensors(checkpoint, synthetic, [s for p in sample.parameters() for s in p.sources])
        _forget([checkpoint])
    output = directory / "package"
    output.mkdir()
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        found = pool.submit(convert, sample, checkpoint, output).result()
    return {
        "benchmark": "convert_weights",
        **environment(),
        **asdict(sample),
        "source": source,
        **asdict(found),
        "checkpoint_bytes_per_s": round(found.checkpoint_bytes / found.seconds),
        "stored_bytes_per_s": round(found.stored_bytes / found.seconds),
        **plain_speed(output, checkpoint, found),
    }


def main() -> None:
    """Measure, print and append."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["gemma-4-E2B-it"])
    parser.add_argument("--quant", default="q4f16")
    parser.add_argument("--source", choices=("memory", "disk"), default="memory")
    parser.add_argument("--layers", type=int, help="convert the first N layers only")
    parser.add_argument("--directory", type=Path, help="where there is space (default: TMPDIR)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    for model in options.models:
        sample = Sample(model, options.quant, options.layers)
        with tempfile.TemporaryDirectory(prefix="gemma4-bench-", dir=options.directory) as path:
            line = json.dumps(result_line(sample, options.source, Path(path)))
        print(line, flush=True)
        options.results.parent.mkdir(parents=True, exist_ok=True)
        with options.results.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
