"""Steps of several sequences of one engine, which share a forward (native.py)."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from typing import Any

from benchmarks.samples import summary, timed
from gemma4_compile.runtime import Engine, Sampler, SamplingOptions

TEMPERATURE, TOP_P = 0.8, 0.95


def shared_steps(
    engine: Engine, ids: Listed[int], context: int, count: int, tokens: int, repeats: int
) -> dict[str, Any]:
    """A token of each of `count` sequences after `context` others; milliseconds a step.

    Sampled ones are drawn on the device where that is faster, and read before the next step.
    """
    while len(engine.sequences) < count:
        engine.sequences.add()
    sequences = [engine.sequence, *engine.sequences.others][:count]

    def begin() -> None:
        for index, sequence in enumerate(sequences):
            sequence.clear()
            engine.prefill(ids[index : index + context], sequence)
            sequence.sampler = Sampler(SamplingOptions(TEMPERATURE, top_p=TOP_P), index)
        engine.step(sequences)

    def launched() -> None:
        for index in range(tokens):
            engine.joint.add(sequences, ids[index : index + count])
        engine.device.wait()

    def sampled() -> None:
        for _ in range(tokens):
            engine.step(sequences)

    result: dict[str, Any] = {"context": context, "sequences": count}
    for name, action in (("launched_ms", launched), ("sampled_ms", sampled)):
        samples = []
        for _ in range(repeats + 1):
            begin()
            samples.append(timed(action) / tokens)
        result[name] = summary(samples[1:])
    result["tokens_per_second"] = round(1e3 * count / result["sampled_ms"]["median"], 1)
    result["launches_in_graph"] = 0 if engine.joint.steps is None else engine.joint.steps.kernels
    return result
