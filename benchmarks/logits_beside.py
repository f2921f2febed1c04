"""Compares the logits of libraries of one model over the same random weights; appends result lines.

What a kernel computes its definition's test says; this says what another order of its sums becomes
in a whole model, whose logits no reference has. Chunks of several lengths at several places, a
token after one of each, and steps of several sequences.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.device_facts import device_name
from benchmarks.environment import append_line, environment
from benchmarks.native_options import RESULTS
from benchmarks.synthetic_package import synthetic_package
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.package.package import Package

Logits = npt.NDArray[np.float64]
PLACES, ROWS, DECODED_AFTER = (0, 1000, 4096, 19456), (10, 32, 100, 256), 100
SEQUENCES, STEP_TOKENS, MORE_TOKENS = (2, 4, 8), 200, 150
ROOM = 1024


def logits_of(package: Package, places: list[int]) -> Iterator[tuple[str, Logits]]:
    """Yield the last logits of each case, and its name."""
    engine = Engine(package, context_length=max(places) + ROOM, sequences=max(SEQUENCES))
    ids = np.random.default_rng(1).integers(3, engine.vocab_size, max(places) + ROOM).tolist()

    def begin(place: int) -> None:
        engine.clear()
        if place:
            engine.prefill(ids[:place])

    for place in places:
        for rows in ROWS:
            begin(place)
            yield f"{rows} at {place}", _float64(engine.prefill(ids[place : place + rows]))
            if rows == DECODED_AFTER:
                yield f"one after {place + rows}", _float64(engine.decode(ids[place + rows]))
    while len(engine.sequences) < max(SEQUENCES):
        engine.sequences.add()
    sequences = [engine.sequence, *engine.sequences.others]
    for index, sequence in enumerate(sequences):
        sequence.clear()
        engine.prefill(ids[index : index + STEP_TOKENS + MORE_TOKENS * index], sequence)
    for count in SEQUENCES:
        engine.joint.add(sequences[:count], ids[:count])
        for index, sequence in enumerate(sequences[:count]):
            yield f"{index} of {count}", _float64(engine.read_logits(sequence))


def _float64(logits: npt.NDArray[np.float32]) -> Logits:
    return logits.reshape(-1).astype(np.float64)


def beside(found: Logits, expected: Logits) -> tuple[float, float, bool]:
    """The mean and the largest difference by the deviation, and whether the first token is one."""
    difference, deviation = found - expected, float(expected.std())
    mean = float(np.sqrt(np.mean(difference**2))) / deviation
    largest = float(np.abs(difference).max()) / deviation
    return mean, largest, bool(found.argmax() == expected.argmax())


def main() -> None:
    """Measure, print, append."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", type=Path, nargs="+", help="packages; their libraries do")
    parser.add_argument("--model", required=True, help="name in the result lines")
    parser.add_argument("--places", default=",".join(map(str, PLACES)))
    parser.add_argument("--commit", help="of the code that runs, where this is no checkout")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    places = [int(place) for place in options.places.split(",")]
    about = environment(options.commit)
    with tempfile.TemporaryDirectory() as folder:
        package = synthetic_package(options.libraries[0], Path(folder))
        first = dict(logits_of(package, places))
        for library in options.libraries[1:]:
            gc.collect()  # the engine before
            other = replace(package, library_path=library / package.library_path.name)
            cases = {k: beside(found, first[k]) for k, found in logits_of(other, places)}
            means, largest, same = zip(*cases.values(), strict=True)
            line = {
                "benchmark": "native",
                **about,
                "model": options.model,
                "target": package.device,
                "weights": "synthetic",
                "quantization": package.chat_config.quantization,
                "device": device_name(package.device),
                "measure": "logits beside",
                "library": library.name,
                "of": options.libraries[0].name,
                "mean_by_deviation": {k: round(case[0], 6) for k, case in cases.items()},
                "most_by_deviation": round(max(largest), 6),
                "same_first_token": sum(same),
                "least_mean": round(min(means), 6),
                "most_mean": round(max(means), 6),
            }
            append_line(line, options.results)


if __name__ == "__main__":
    main()
