"""Several sequences of an engine on the fake CUDA: a graph belongs to a slot of the KV state."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.engine import turns
from gemma4_compile.runtime.engine.joint import Riders
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.sampling.sampling import Sampler, SamplingOptions
from tests.cuda.launches import CUDA, PROMPT, launches_of
from tests.cuda.library import Launch


def add(engine: Engine, token: int, sequence: Sequence | None = None) -> Any:
    """Logits on the device after a token."""
    return engine.runner.forward_one(sequence or engine.sequence, token)


def addresses(launches: list[Launch]) -> set[int]:
    return {value for launch in launches for value in launch.params}


def fixed_addresses(engine: Engine) -> set[int]:
    return {tensor.data_ptr() for tensor in engine.runner.params}


def several_sequences(package: Path) -> None:
    """Each slot has a graph of its own, of its own keys and values; weights are the same."""
    engine = Engine.open(package, sequences=2)
    locked = CUDA.host_bytes
    first, second = engine.sequence, engine.sequences.add()
    recorded = []
    for sequence in (first, second):
        engine.prefill(PROMPT, sequence)
        step = launches_of(lambda sequence=sequence: add(engine, 4, sequence))
        assert len(step.direct) > 50, "issued, recorded and compared"
        recorded.append(step.replayed)
    assert [a.kernel for a in recorded[0]] == [b.kernel for b in recorded[1]]
    own = [addresses(launches) - fixed_addresses(engine) for launches in recorded]
    assert own[0] - own[1], "keys and values"
    for token in (5, 6):
        for sequence, launches in zip((first, second), recorded, strict=True):
            step = launches_of(lambda sequence=sequence, token=token: add(engine, token, sequence))
            assert (step.direct, step.replayed) == ([], launches)
    first.sampler = second.sampler = Sampler(SamplingOptions(temperature=1.0), 1)
    both = [launches_of(lambda: engine.step([first, second])) for _ in range(3)]
    assert len(both[2].direct) == 4, "one draw for both, which has no graph"
    assert [first.length, second.length] == [len(PROMPT) + 3 + 2] * 2
    for _ in range(2):  # recorded, and compared
        engine.sampling.draw(add(engine, 4), 1.0, 0.9, 0.5)
    for _ in range(2):  # each in its turn: both draw from the slot's own step
        logits = add(engine, 4)
        drawn = launches_of(lambda logits=logits: engine.sampling.draw(logits, 1.0, 0.9, 0.5))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(turns, "copy", None)  # with others tokens are gathered first
            step = launches_of(lambda: engine.step([first]))
        assert (drawn.direct, step.direct) == ([], []), "a slot's draws are one graph"
        assert CUDA.downloads == 1
    engine.sequences.remove(second)
    again = engine.sequences.add()
    engine.prefill(PROMPT, again)
    step = launches_of(lambda: add(engine, 4, again))
    assert (step.direct, step.replayed) == ([], recorded[1]), "it has the slot that was free"
    assert CUDA.host_bytes == locked > 0, "no sequence takes memory of its own for its tokens"


def joint_steps(package: Path) -> None:
    """A graph for a number of rows, whatever sequences they are of; weights are read once."""
    engine = Engine.open(package, sequences=3)
    sequences = [engine.sequence, engine.sequences.add(), engine.sequences.add()]
    for sequence in sequences:
        engine.prefill(PROMPT, sequence)
    one = launches_of(lambda: add(engine, 4))
    first = launches_of(lambda: engine.joint.add(sequences[:2], [5, 6]))
    assert len(first.direct) > 50, "issued, recorded and compared"
    assert addresses(first.replayed) & fixed_addresses(engine), "weights"
    assert len(first.replayed) < 2 * len(one.replayed)
    for pair in ((0, 1), (2, 0), (1, 2)):
        chosen = [sequences[index] for index in pair]
        step = launches_of(lambda chosen=chosen: engine.joint.add(chosen, [7, 8]))
        assert (step.direct, step.replayed) == ([], first.replayed)
        assert CUDA.uploads <= 3, "tokens, places, rotary values"
    assert [one.length - len(PROMPT) for one in sequences] == [4, 3, 2]
    three = launches_of(lambda: engine.joint.add(sequences, [7, 8, 9]))
    assert three.direct, "a graph of its own"
    assert len(three.replayed) < 2 * len(one.replayed)
    alone = launches_of(lambda: engine.joint.add(sequences[:1], [7]))
    assert (alone.direct, alone.replayed) == ([], one.replayed), "the step of one"
    logits = [sequence.logits for sequence in sequences[1:]]
    assert all(one is not None for one in logits)
    assert len({one.data_ptr() for one in logits if one is not None}) == 2, "in its slot's memory"
    for sequence in sequences:
        sequence.sampler, sequence.chosen = Sampler(SamplingOptions(temperature=1.0), 1), 7
    drawn = launches_of(lambda: engine.step(sequences))
    assert drawn.replayed == 2 * three.replayed, "the next forward, too, ahead of the host"
    assert len(drawn.direct) == 4, "one draw for all rows, from where the forward wrote them"
    assert CUDA.downloads == 1
    for _ in range(2):
        drawn = launches_of(lambda: engine.step(sequences))
        assert drawn.replayed == three.replayed, "it was there: this is the one after it"
        assert (len(drawn.direct), CUDA.downloads) == (4, 1)
    recorded = launches_of(lambda: engine.step(sequences[:2], Riders(sequences[2], [7, 8])))
    assert len(recorded.direct) > 50, "issued, recorded and compared: four rows of several"
    for places in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        *writing, reading = (sequences[place] for place in places)
        for sequence in writing:
            sequence.sampler, sequence.chosen = Sampler(SamplingOptions(temperature=1.0), 1), 7
        riders = Riders(reading, [7, 8])
        step = launches_of(lambda writing=writing, riders=riders: engine.step(writing, riders))
        assert step.replayed == recorded.replayed, "whose rows they are, the state says"
        assert len(step.direct) == 4, "a draw for those that are written"
        assert CUDA.downloads == 1
        assert reading.logits is not None
    joint_ahead(engine, sequences, three.replayed)


def joint_ahead(engine: Engine, sequences: list[Sequence], forward: list[Launch]) -> None:
    """What was launched ahead is taken only while it is of these tokens, and there."""
    for sequence in sequences:
        sequence.chosen = 7
    for _ in range(2):
        engine.step(sequences)
    for sequence in sequences:
        sequence.chosen = 7  # as the device, which draws nothing here, cannot have drawn
    drawn = launches_of(lambda: engine.step(sequences))
    assert drawn.replayed == 2 * forward, "what was launched was after other tokens"
    pair, alone = sequences[1:], sequences[1:2]
    for _ in range(3):
        engine.step(alone)
    steady = launches_of(lambda: engine.step(alone))
    for _ in range(2):
        engine.step(pair)
    engine.joint.add([sequences[0], pair[1]], [7, 8])
    assert alone[0].ahead is not None
    after = launches_of(lambda: engine.step(alone))
    assert len(after.replayed) > len(steady.replayed) + 50, "its logits are another's by now"


def shared_storage(package: Path) -> None:
    """Graphs of all sizes write the same intermediate results, and each has results of its own."""
    engine = Engine.open(package, sequences=4)
    sequences = [engine.sequence, *(engine.sequences.add() for _ in range(3))]
    for sequence in sequences:
        engine.prefill(PROMPT, sequence)
    library = engine.model.library
    replayed: list[list[Launch]] = [launches_of(lambda: add(engine, 4)).replayed]
    for count in (2, 4, 3):
        ids = [5, 6, 7, 8][:count]
        step = launches_of(lambda ids=ids: engine.joint.add(sequences[: len(ids)], ids))
        replayed.append(step.replayed)
        sizes = [one.nbytes for one in library.graph_storage.shared]
        if count == 4:
            most = sum(sizes)
    assert sum(sizes) == most > 0, "steps of fewer rows need none besides"
    assert all(nbytes & (nbytes - 1) == 0 for nbytes in sizes)
    assert engine.joint.steps is not None
    assert engine.joint.steps._graphs._graphs is not None
    made = engine.joint.steps._graphs._graphs._made
    results = [{one.data_ptr() for one in graph.output or ()} for graph in made.values()]
    assert len(results) == 3
    used = [addresses(launches) for launches in replayed]
    shared = {one.address for one in library.graph_storage.shared}
    assert all(one & other & shared for one, other in combinations(used, 2))
    for index, own in enumerate(results, 1):
        writers = [place for place, one in enumerate(used) if own & one]
        assert writers == [index], "logits that another graph writes are lost"


def forked_logits(package: Path) -> None:
    """A fork has the logits that its parent had, when the parent's graph writes its next ones."""
    engine = Engine.open(package, sequences=2)
    engine.prefill(PROMPT)
    for token in (4, 5):  # the second one is the graph's
        add(engine, token)
    before = engine.sequence.logits
    assert before is not None
    child = engine.sequences.fork(engine.sequence)
    add(engine, 6)
    assert engine.sequence.logits is before, "the graph's result is always there"
    assert child.logits is not None
    assert child.logits.data_ptr() != before.data_ptr()
    assert child.logits.shape == before.shape
    child.sampler = Sampler(SamplingOptions(temperature=1.0), 1)
    drawn = launches_of(lambda: engine.step([child]))
    assert (len(drawn.direct), drawn.replayed) == (4, []), "from its own memory"
    own = {child.logits.data_ptr()}
    assert any(own & set(launch.params) for launch in drawn.direct)
