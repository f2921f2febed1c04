"""What tests do on the fake CUDA: `tests.cuda.forks` runs each in a process of its own."""

from __future__ import annotations

import gc
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime import ContextFullError, Engine, Package
from gemma4_compile.runtime.check.profile import profile
from gemma4_compile.runtime.device.cuda_runtime import CudaError, CudaRuntime, Readback
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.device.kernel_clock import EventClock
from gemma4_compile.runtime.engine.next_token import DrawnOnDevice, Held
from gemma4_compile.runtime.library import steps
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.runtime.sampling.sampling import Sampler, SamplingOptions
from tests.cuda import (
    expert_cache,
    experts,
    few_rows,
    loading,
    row_stream,
    rows_on_host,
    sequences,
    virtual_pages,
)
from tests.cuda import rounds as of_guesses
from tests.cuda.launches import CUDA, PROMPT, Step, half, intermediates, launches_of, missing
from tests.cuda.rounds import DRAWS, begin_rounds, drawn_round, following, read_four, rounds_of
from tests.cuda.sequences import add, addresses, fixed_addresses

several_sequences = sequences.several_sequences
forked_logits = sequences.forked_logits
joint_steps = sequences.joint_steps
shared_storage = sequences.shared_storage
shared_rounds = of_guesses.shared_rounds
rounds_refused, plain_rounds = of_guesses.rounds_refused, of_guesses.plain_rounds
host_steps, host_waits = rows_on_host.host_steps, rows_on_host.host_waits
host_rounds = rows_on_host.host_rounds
streamed_weights = loading.streamed_weights
refused_by_room = loading.refused_by_room
page_locked = experts.page_locked
rows_by_layer = row_stream.rows_by_layer
rows_at_once = row_stream.rows_at_once
rows_for_others = row_stream.rows_for_others
rows_after_errors = row_stream.rows_after_errors
rows_after_an_interrupt = row_stream.rows_after_an_interrupt
rows_are_held = row_stream.rows_are_held
nothing_left = row_stream.nothing_left
shares = experts.shares
by_room = experts.by_room
experts_refused = experts.experts_refused
pages_move = virtual_pages.pages_move
same_logits = expert_cache.same_logits
recorded_choices = expert_cache.recorded_choices
cache_refused = expert_cache.cache_refused
cache_by_room = expert_cache.cache_by_room
cache_stays = expert_cache.cache_stays


def replay(package: Path) -> None:
    """The first step is issued, recorded and compared; later ones are the graph alone."""
    engine = Engine.open(package)
    engine.prefill(PROMPT)
    first = launches_of(lambda: add(engine, 4))
    count = len(first.direct)
    assert count > 50
    elsewhere = intermediates(first.direct, first.replayed)
    assert elsewhere
    assert elsewhere.isdisjoint(fixed_addresses(engine)), "weights stay where they are"
    assert addresses(first.replayed) & fixed_addresses(engine)
    assert engine.runner.steps.kernels == (count, 0)
    for token in (5, 5, 6):
        step = launches_of(lambda token=token: add(engine, token))
        assert (len(step.direct), step.replayed) == (0, first.replayed)
    assert engine.length == len(PROMPT) + 4
    assert CUDA.uploads <= 3, "token, position, rotary values"
    # Logits of a prefill, and of a step that was not replayed, lie in TVM's pool.
    engine.clear()
    logits = engine.runner.forward(engine.sequence, PROMPT)
    drawn = launches_of(lambda: engine.sampling.draw(logits, 1.0, 0.9, 0.5))
    assert (len(drawn.direct), len(drawn.replayed)) == (4, 0)
    logits = add(engine, 4)
    drawn = launches_of(lambda: engine.sampling.draw(logits, 1.0, 0.9, 0.5))
    assert drawn.direct[0].params != drawn.replayed[0].params
    assert [a.kernel for a in drawn.direct] == [b.kernel for b in drawn.replayed]
    drawn = launches_of(lambda: engine.sampling.draw(add(engine, 4), 1.0, 0.9, 0.6))
    assert (len(drawn.direct), len(drawn.replayed)) == (0, count + 4)
    assert CUDA.uploads == 4 - (1), "of the draw only the random number is new, and no token"


def own_memory(package: Path) -> None:
    """What a graph writes is nobody else's, whatever other engines and prompts allocate."""
    engine, other = Engine.open(package), Engine.open(package, graphs=False)
    for one in (engine, other):
        one.prefill(PROMPT)
    step = launches_of(lambda: add(engine, 4))
    logits = add(engine, 4)
    draw = launches_of(lambda: engine.sampling.draw(logits, 1.0, 0.9, 0.5))
    own = intermediates(step.direct, step.replayed) | intermediates(draw.direct, draw.replayed)
    assert len(own) > 10

    def work() -> None:
        for one in (engine, other):
            one.sampling.draw(one.runner.forward(one.sequence, PROMPT * 5), 1.0, 0.9, 0.5)
        other.sampling.draw(add(other, 4), 1.0, 0.9, 0.5)

    assert own.isdisjoint(addresses(launches_of(work).direct))


def allocation(package: Path) -> None:
    """Memory that is allocated and freed while a step is recorded ends no capture."""
    engine = Engine.open(package)
    engine.prefill(PROMPT)
    graphs = engine.runner.steps
    assert isinstance(graphs, steps.GraphSteps)
    replayed = graphs._of(engine.sequence.slot).forward
    watched = replayed._watched

    def allocating(ids: Any) -> Any:
        engine.device.empty((123_457,), "uint8")
        return watched(ids)

    replayed._watched = allocating
    add(engine, 4)
    assert len(launches_of(lambda: add(engine, 4)).replayed) > 50


def several_engines(package: Path) -> None:
    """Engines take turns, and each has graphs of its own; they go with their engine."""
    engines = [Engine.open(package) for _ in range(3)]
    for engine in engines:
        engine.prefill(PROMPT)
        engine.decode(4)
    seen = []
    for _ in range(3):
        for engine in engines:
            step = launches_of(lambda engine=engine: engine.decode(4))
            assert not step.direct
            seen.append(step.replayed)
    assert seen[0] == seen[3] == seen[6] != seen[1]
    alive = CUDA.alive
    del engines[1], engine
    gc.collect()
    assert CUDA.alive == alive - 2, "a graph, and an event"
    step = launches_of(lambda: engines[1].decode(4))
    assert step.replayed == seen[2]
    engines.clear()
    gc.collect()
    assert CUDA.alive == 0


def refused(package: Path, function: str) -> None:
    """Whatever refuses, the host issues the launches, nothing stays behind, and it is logged."""
    engine = Engine.open(package)
    alive = CUDA.alive
    engine.prefill(PROMPT)
    CUDA.fail(function)
    for _ in range(3):
        step = launches_of(lambda: add(engine, 4))
        assert len(step.direct) > 50
        assert not step.replayed
    CUDA.fail("")
    assert not launches_of(lambda: add(engine, 4)).replayed, "it is not tried again"
    assert engine.runner.steps.kernels == (0, 0)
    assert engine.length == len(PROMPT) + 4
    assert (CUDA.capturing, CUDA.alive) == (False, alive)
    engine.clear()
    engine.prefill(PROMPT)


def refused_later(package: Path) -> None:
    """A graph that can be launched no more: the step is done in the plain way."""
    engine = Engine.open(package)
    alive = CUDA.alive
    engine.prefill(PROMPT)
    add(engine, 4)
    assert len(launches_of(lambda: add(engine, 4)).replayed) > 50
    CUDA.fail("cudaGraphLaunch")
    step = launches_of(lambda: add(engine, 4))
    assert len(step.direct) > 50
    assert not step.replayed
    assert engine.length == len(PROMPT) + 3
    gc.collect()
    assert CUDA.alive == alive


def programmatic(package: Path, generation: str, expected: str) -> None:
    """Kernels of graphs begin early on Hopper, and nowhere else."""
    CUDA.set_generation(int(generation))
    engine = Engine.open(package)
    engine.prefill(PROMPT)
    assert not any(launch.begins_early for launch in launches_of(lambda: add(engine, 4)).direct)
    step = launches_of(lambda: add(engine, 4))
    early = [launch.begins_early for launch in step.replayed]
    assert len(early) > 50
    assert early == [False] + [bool(int(expected))] * (len(early) - 1)


def wrong_values(package: Path) -> None:
    """A graph whose logits differ in a bit is not used."""
    engine = Engine.open(package)
    engine.prefill(PROMPT)
    CUDA.corrupt(True)
    add(engine, 4)
    step = launches_of(lambda: add(engine, 4))
    assert len(step.direct) > 50
    assert not step.replayed


def switched_off(package: Path) -> None:
    """By the environment, or by the constructor, which comes first."""
    engine = Engine.open(package)
    engine.prefill(PROMPT)
    for _ in range(2):
        assert not launches_of(lambda: add(engine, 4)).replayed
    engine = Engine.open(package, graphs=True)
    engine.prefill(PROMPT)
    assert launches_of(lambda: add(engine, 4)).replayed


def ahead(package: Path) -> None:
    """The step behind a token is launched before the token is read, and taken back at the end."""
    engine = Engine.open(package)
    engine.prefill(PROMPT)
    engine.decode(4)
    held = engine.length
    with closing(engine.sampling.sampled(1.0, 0.9, half)) as tokens:
        read_four(engine, tokens, held)
    assert engine.length == held + 3, "the token that was read last was not asked to stay"
    with pytest.raises(UsageError, match="no logits"):
        next(engine.sampling.sampled(1.0, 0.9, half))
    engine.decode(4)
    room = engine.context_length - engine.length
    with closing(engine.sampling.sampled(1.0, 0.9, half)) as tokens:
        for _ in range(room + 1):
            next(tokens)
        assert engine.length == engine.context_length
        with pytest.raises(ContextFullError):
            next(tokens)
    assert engine.length == engine.context_length


def rounds(package: Path) -> None:
    """The first round is issued and recorded; later ones are graphs and draws, and one wait."""
    engine = begin_rounds(package, sequences=2)
    first = drawn_round(engine, 3, 1)
    recorded = first.direct[:-DRAWS]
    guesses, rows = rounds_of(engine).drafter.calls.kernels
    for graph in (slice(guesses), slice(guesses, None)):  # which have the same memory in turns
        own = intermediates(recorded[graph], first.replayed[graph])
        assert own.isdisjoint(fixed_addresses(engine))
    assert guesses % 3 == 0
    assert guesses + rows == len(recorded)
    assert len({launch.kernel[0] for launch in first.direct[-DRAWS:]}) == DRAWS
    for accepted in (0, 3, 2):
        step = drawn_round(engine, 3, accepted)
        assert CUDA.downloads == 1
        assert (len(step.direct), step.replayed) == (DRAWS, first.replayed)
    assert engine.length == len(PROMPT) + 1 + 2 + 1 + 4 + 3
    # Rounds whose logits the host reads wait for the ids, and then only copy.
    CUDA.clear()
    _, logits = rounds_of(engine).advance(5, 3)
    assert CUDA.downloads == 1
    for row in range(4):
        assert logits.read(row).shape == (engine.vocab_size,)
    assert all(launch.from_graph for launch in CUDA.launches())
    rounds_of(engine).accept(0)
    _rounds_beside(engine, first)


def _rounds_beside(engine: Engine, first: Step) -> None:
    """Another sequence's are graphs, too, of its own slot; those of the first stay."""
    other = engine.sequences.add()
    engine.prefill(PROMPT, other)
    beside = rounds_of(engine).beside(other)
    beside.advance(4, 0)
    beside.accept(0)
    recorded = drawn_round(engine, 3, 1, beside).replayed
    assert [one.kernel for one in recorded] == [one.kernel for one in first.replayed]
    assert addresses(recorded) - addresses(first.replayed), "keys and values"
    for accepted in (2, 3):
        for of, launches in ((None, first.replayed), (beside, recorded)):
            step = drawn_round(engine, 3, accepted, of)
            assert (len(step.direct), step.replayed) == (DRAWS, launches)
    assert other.length == len(PROMPT) + 1 + 2 + 3 + 4


def rounds_of_many_sizes(package: Path) -> None:
    """Graphs of every number of guesses live beside each other, and go with their engine."""
    engine = begin_rounds(package)
    seen = {drafts: drawn_round(engine, drafts, 0).replayed for drafts in range(9)}
    for drafts in reversed(range(9)):
        step = drawn_round(engine, drafts, 0)
        assert (len(step.direct), step.replayed) == (DRAWS, seen[drafts])
    engine.decode(4)
    del engine
    gc.collect()
    assert CUDA.alive == 0


def pauses(package: Path) -> None:
    """While guesses pause, a step is launched before the token before it is read; then rounds."""
    engine = begin_rounds(package)
    sampler = Sampler(SamplingOptions(temperature=1.0, top_p=0.9), seed=1)
    held = engine.length
    with closing(DrawnOnDevice(engine.sampling, Held(), sampler, (1.0, 0.9))) as way:
        read_four(engine, following(way, 5), held + 1)  # the token before them is there as well
    assert engine.length == held + 4, "what was launched for the token read last is taken back"
    rounds = rounds_of(engine)
    guesses, _ = rounds.advance(5, 3)
    assert guesses == [], "a round for the state"
    rounds.accept(0)
    assert len(rounds.advance(5, 3)[0]) == 3
    rounds.accept(3)
    assert engine.length == held + 4 + 1 + 4


def few_rows_by_number(library: Path) -> None:
    """One or two rows of a large matrix have another kernel than three to nine."""
    gpu = Device.open("cuda")
    functions = NativeLibrary(library, gpu)
    kernels, blocks = [], []
    for index, case in enumerate(few_rows.cases()):
        tensors = [gpu.place(array) for array in case.arrays]
        step = launches_of(partial(functions.compiled_function(f"case_{index}"), *tensors))
        (launch,) = step.direct
        kernels.append(launch.kernel[0])
        blocks.append(launch.kernel[1])
    few, many = kernels[0], kernels[-1]
    assert few != many
    assert kernels == 2 * [few] + 7 * [many]
    assert blocks == 8 * [1] + [2], "a product takes eight rows, the other kernel both"


def profiled(package: Path) -> None:
    """Each launch has two events; none is left, and launches are no graph."""
    for found in profile(Package.open(package), context_length=12):
        assert found.how == EventClock.how
        assert {one.operator for one in found.kernels} >= {"embedding", "linear"}
        for one in found.kernels:
            assert one.seconds == pytest.approx(one.calls / 1000)
    step = launches_of(partial(list, profile(Package.open(package), context_length=12)))
    assert step.direct
    assert not step.replayed
    gc.collect()
    assert CUDA.alive == 0


def errors_are_named(package: Path) -> None:
    """CUDA's own words, and no handle is left."""
    del package
    CUDA.fail("cudaEventCreateWithFlags")
    with pytest.raises(CudaError, match=r"^cudaEventCreateWithFlags: refused by the fake CUDA \(f"):
        Readback(CudaRuntime())
    CUDA.fail("cudaMallocHost")
    with pytest.raises(CudaError, match="cudaMallocHost"):
        Readback(CudaRuntime())
    CUDA.fail("")
    gc.collect()
    assert CUDA.alive == 0


def without_readback(package: Path) -> None:
    """Where the host has no memory to write to meanwhile, a token is read before the next step."""
    CUDA.fail("cudaMallocHost")
    engine = Engine.open(package)
    CUDA.fail("")
    engine.prefill(PROMPT)
    with closing(engine.sampling.sampled(1.0, 0.9, half)) as tokens:
        for number in range(3):
            next(tokens)
            assert engine.length == len(PROMPT) + number
    assert engine.length == len(PROMPT) + 2


def without_runtime(package: Path) -> None:
    """Where CUDA's runtime is not found by its name, launches are issued as before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "CudaRuntime", missing)
        engine = Engine.open(package)
        engine.prefill(PROMPT)
        for _ in range(2):
            assert not launches_of(lambda: add(engine, 4)).replayed
        assert engine.runner.steps.kernels == (0, 0)
