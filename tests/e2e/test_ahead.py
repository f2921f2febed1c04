"""The forward that a step launches before its tokens are read, on a CPU that draws and records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tokenizers import Tokenizer

from gemma4_compile.device_kinds import NATIVE_KINDS
from gemma4_compile.runtime import Engine, Sampler, SamplingOptions
from gemma4_compile.runtime.device import device
from gemma4_compile.runtime.device.cuda_runtime import Readback
from gemma4_compile.runtime.engine.generation import Generation, Generator
from gemma4_compile.runtime.engine.joint import Riders
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.engine.sequence_engine import EngineSequences, SequenceEngine
from gemma4_compile.runtime.engine.slots import Slots
from gemma4_compile.runtime.engine.token_engine import TokenEngine
from gemma4_compile.runtime.engine.turns import Turns
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.prefixes.kept import kept_prefixes
from gemma4_compile.runtime.prefixes.shelf import HostShelf
from gemma4_compile.runtime.server import asides
from gemma4_compile.runtime.server.tickets import Ticket
from tests.several_sequences import in_turns

OPTIONS = [(0.9, 0.8), (1.3, 0.95), (0.9, 0.8)]


class HostReadback(Readback):
    """As CUDA's, of tensors that the host has at once."""

    def __init__(self) -> None:
        self._event = self._memory = None
        self._found: list[int] = []

    def queue(self, tensor: tvm_ffi.Tensor, count: int = 1) -> None:
        self._found = np.from_dlpack(tensor).reshape(-1)[:count].tolist()

    def wait_all(self, count: int) -> list[int]:
        return self._found[:count]


@pytest.fixture
def engines(tiny_package: Path, monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """One whose steps launch the next one, and one whose steps do not."""
    kinds = {**NATIVE_KINDS, "cpu": replace(NATIVE_KINDS["cpu"], draws=True)}
    monkeypatch.setattr(device, "NATIVE_KINDS", kinds)
    made = [Engine.open(tiny_package, sequences=4) for _ in range(2)]
    made[0].runner.readback = HostReadback()
    return made


def ids_of(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 500, count).tolist()


def begun(engine: Engine, count: int) -> list[Sequence]:
    sequences = [engine.sequence, *(engine.sequences.add() for _ in range(count - 1))]
    for index, sequence in enumerate(sequences):
        engine.prefill(ids_of(9 + 20 * index, index), sequence)
        temperature, top_p = OPTIONS[index]
        sequence.sampler = Sampler(SamplingOptions(temperature, top_p=top_p), index)
    return sequences


def launched(engine: Engine, patch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each forward that is launched from now on, negative where ahead."""
    rows: list[int] = []
    joint = engine.joint

    def noted(where: object, name: str, rows_of: Callable[[Any], int]) -> None:
        called = getattr(where, name)

        def call(first: Any, *rest: Any) -> Any:
            rows.append(rows_of(first))
            return called(first, *rest)

        patch.setattr(where, name, call)

    noted(joint, "_add_together", len)
    noted(joint, "add_ahead", lambda sequences: -len(sequences))
    noted(engine.runner, "forward_one", lambda _: 1)
    return rows


@pytest.mark.parametrize("count", [1, 2, 3])
def test_steps_are_the_same_and_each_finds_its_forward_launched(
    engines: list[Engine], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for engine in engines:
        sequences = begun(engine, count)
        rows = launched(engine, monkeypatch)
        steps = [engine.step(sequences) for _ in range(6)]
        found.append((steps, [(one.length, one.chosen) for one in sequences]))
        of_all = [count] * 5
        assert rows == ([count, *(-count for _ in of_all)] if engine is engines[0] else of_all)
    assert found[0] == found[1]


def changes(engine: Engine) -> Iterator[object]:
    """Whatever may be done between steps, and what is seen of it."""
    first, second, third = sequences = begun(engine, 3)
    for _ in range(3):
        yield engine.step(sequences)
    yield engine.step([third, first])  # one waits
    yield engine.step([first, second, third])
    yield engine.step([second, third])
    engine.joint.add([first, engine.sequences.add()], [7, 8])  # has the place of their logits
    yield engine.step([second, third])
    yield engine.step([second, third])
    yield second.pop(3), second.length, second.room
    yield engine.decode(300, second).tobytes()
    yield engine.step(sequences)
    yield engine.step(sequences)
    yield engine.read_logits(first).tobytes(), engine.read_logits(third).tobytes()
    yield engine.step(sequences)
    engine.sequences.remove(engine.sequences.others[-1])
    child = engine.sequences.fork(second)
    child.sampler = Sampler(SamplingOptions(0.7, top_p=0.9), 9)
    yield engine.step([child])
    yield engine.step([child, second])
    yield engine.step([child, second])
    third.clear()
    engine.prefill(ids_of(12, 5), third)
    yield engine.step([child, second, third])
    yield engine.step([child, second, third])
    second.chosen = 400  # not what was drawn
    yield engine.step([child, second])
    yield engine.step([child])
    yield engine.step([child])
    child.sampler = Sampler(SamplingOptions(temperature=0.0))
    yield engine.step([child, second])
    third.sampler = Sampler(SamplingOptions(temperature=0.0))
    yield engine.step([third, second])
    if engine.joint.most_riders(2) >= 2:
        engine.clear()
        yield engine.step([child, second], Riders(first, [5, 6]))
        yield engine.step([child, second])
    yield [(one.length, one.shortest) for one in (child, second, third)]
    for one in (child, second, third):
        yield engine.decode(20, one).tobytes()


def test_whatever_is_done_between_steps_is_as_without(engines: list[Engine]) -> None:
    for number, (found, expected) in enumerate(zip(*map(changes, engines), strict=True)):
        assert found == expected, number


def test_after_an_interrupted_read_the_next_step_draws_again(
    engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    found = []
    for engine in engines:
        sequences = begun(engine, 2)
        for _ in range(3):
            engine.step(sequences)
        with monkeypatch.context() as patch:
            patch.setattr(Turns, "_read", interrupt)
            with pytest.raises(KeyboardInterrupt):
                engine.step(sequences)
        lengths = [one.length for one in sequences]
        found.append((lengths, [engine.step(sequences) for _ in range(3)]))
    assert found[0] == found[1]


def test_the_last_place_of_a_context_is_not_passed(
    tiny_package: Path, engines: list[Engine]
) -> None:
    """As many tokens as without: nothing is launched for one that does not fit."""
    engine = Engine.open(tiny_package, sequences=2, context_length=12)
    engine.runner.readback = HostReadback()
    sequences = [engine.sequence, engine.sequences.add()]
    for index, sequence in enumerate(sequences):
        engine.prefill(ids_of(8, index), sequence)
        sequence.sampler = Sampler(SamplingOptions(0.9), index)
    for _ in range(5):
        engine.step(sequences)
    assert [one.length for one in sequences] == [12, 12]


def served(engine: Engine, tokenizer: Tokenizer) -> list[tuple[list[int], str | None]]:
    """Replies of a scheduler: more than there are slots, put aside, and from kept beginnings."""
    kept = kept_prefixes(engine, 1 << 30)
    assert kept is not None

    def make(one: TokenEngine) -> Generator:
        assert isinstance(one, SequenceEngine)
        return Generator(one, tokenizer, frozenset(), beginnings=kept.of(one))

    prompts = [ids_of(length, length) for length in (3, 70, 150, 245, 20, 252)]
    prompts.append(prompts[2][:140] + ids_of(9, 1))
    sequences = EngineSequences(engine)
    sequences.most = 3
    slots = Slots(sequences, make, kept.counts, HostShelf(kept))

    async def serve() -> list[Ticket]:
        tickets = []
        for seed, prompt in enumerate(prompts):
            sampler = Sampler(SamplingOptions(0.9, top_p=(0.8, 0.95)[seed % 2]), seed)

            def start(
                generator: Generator, prompt: list[int] = prompt, sampler: Sampler = sampler
            ) -> Generation:
                return generator.start(prompt, sampler, max_tokens=12, plain=True)

            tickets.append(Ticket(start, lambda _: None, prompt))
        assert in_turns(slots, tickets).counts.steps > 12
        return tickets

    found = [ticket.generation for ticket in asyncio.run(serve())]
    return [(one.token_ids, one.finish_reason) for one in found if one is not None]


def test_a_server_s_replies_are_the_same(
    engines: list[Engine], tiny_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asides, "QUANTUM", 3)
    tokenizer = Package.open(tiny_package).load_tokenizer()
    taken = list[int]()
    accept = Sequence.accept_ahead

    def counted(self: Sequence, logits: tvm_ffi.Tensor | None) -> None:
        taken.append(self.slot)
        accept(self, logits)

    monkeypatch.setattr(Sequence, "accept_ahead", counted)
    found, expected = (served(engine, tokenizer) for engine in engines)
    assert found == expected
    assert len(found) == 7
    assert len(taken) > 20, "steps took what was launched ahead"
