"""A table on the host: what lies in its window on the fake CUDA in steps, turns and rounds."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.sampling.sampling import Sampler, SamplingOptions
from tests.cuda.launches import CUDA, PROMPT, half, launches_of
from tests.cuda.rounds import begin_rounds, rounds_of
from tests.cuda.sequences import add, addresses

TENSORS = ("embed_tokens_per_layer.q_weight", "embed_tokens_per_layer.q_scale")


def held(engine: Engine, count: int) -> list[bytes]:
    """The first rows of the window on the device."""
    window = engine.runner.window
    assert window is not None
    found = [engine.device.read(window.stand_ins[name]) for name in TENSORS]
    return [one[:count].tobytes() for one in found]


def stored(package: Path, ids: list[int]) -> list[bytes]:
    weights = Package.open(package).map_weight
    return [np.ascontiguousarray(weights(name)[ids]).tobytes() for name in TENSORS]


def host_steps(package: Path) -> None:
    """A step is its graph and two uploads more; the window keeps its place, the table is away."""
    begin = CUDA.bytes
    whole = Engine.open(package, ple="gpu", sequences=2)
    middle = CUDA.bytes
    engine = Engine.open(package, ple="host", sequences=2)
    sizes = middle - begin, CUDA.bytes - middle
    assert whole.runner.window is None
    table = sum(map(len, stored(package, list(range(engine.vocab_size)))))
    assert engine.runner.window is not None
    window = sum(map(len, held(engine, engine.vocab_size)))
    assert sizes[0] - sizes[1] == table - window
    engine.prefill(PROMPT)
    assert held(engine, len(PROMPT)) == stored(package, PROMPT)
    first = launches_of(lambda: add(engine, 4))
    own = {one.data_ptr() for one in engine.runner.window.stand_ins.values()}
    assert own <= addresses(first.replayed), "the graph reads the window"
    for token in (5, 5, 6):
        step = launches_of(lambda token=token: add(engine, token))
        assert (step.direct, step.replayed) == ([], first.replayed)
        assert held(engine, 1) == stored(package, [token])
        assert CUDA.uploads <= 5, "token, position, rotary values, words and scales"
    other = engine.sequences.add()
    engine.prefill(PROMPT[:2], other)
    for number, one in enumerate((engine.sequence, other)):
        one.sampler = Sampler(SamplingOptions(temperature=1.0), number)
    engine.step([engine.sequence, other])
    chosen = other.chosen
    engine.step([engine.sequence, other])
    assert chosen is not None
    assert held(engine, 1) == stored(package, [chosen]), "of the sequence that came last"


def host_waits(package: Path) -> None:
    """No step runs ahead of a token that the device has drawn; its row is there when it runs."""
    engine = Engine.open(package, ple="host")
    engine.prefill(PROMPT)
    before = engine.length
    with closing(engine.sampling.sampled(1.0, 0.9, half)) as tokens:
        for number in range(4):
            token = next(tokens)
            assert engine.length == before + number, "the token that was read last is not there"
        next(tokens)
        assert held(engine, 1) == stored(package, [token])
    assert engine.length == before + 4


def host_rounds(package: Path) -> None:
    """The rows of guesses are there before the model runs on them: one more wait."""
    engine = begin_rounds(package, ple="host")
    for accepted in (0, 3, 1):
        CUDA.clear()
        guesses, drawn = rounds_of(engine).advance_drawn(
            5, 3, (1.0, 0.9), lambda rows: [0.5] * rows
        )
        assert len(drawn) == 4
        assert CUDA.downloads <= 2 or not accepted, "later rounds record nothing"
        assert held(engine, 4) == stored(package, [5, *guesses])
        rounds_of(engine).accept(accepted)
