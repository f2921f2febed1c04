"""Replies on several sequences of one engine at a time: each is what it is on an engine alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.engine.generation import Generation, Generator
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.engine.sequence_engine import EngineSequences, SequenceEngine
from gemma4_compile.runtime.engine.slot_room import default_slots
from gemma4_compile.runtime.engine.slots import Slots
from gemma4_compile.runtime.engine.token_engine import TokenEngine
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.package.room import Placement
from gemma4_compile.runtime.prefixes.kept import kept_prefixes
from gemma4_compile.runtime.prefixes.shelf import HostShelf
from gemma4_compile.runtime.sampling.sampling import SamplingOptions, TokenChooser, make_sampler
from gemma4_compile.runtime.server import asides
from gemma4_compile.runtime.server.scheduler import Scheduler
from gemma4_compile.runtime.server.tickets import Ticket
from tests.several_sequences import emptied, in_turns

SLOTS = 3


@pytest.fixture(scope="module")
def package(tiny_package: Path) -> Package:
    return Package.open(tiny_package)


@pytest.fixture(scope="module")
def engine(package: Package) -> Engine:
    return Engine(package, sequences=SLOTS)


@pytest.fixture(scope="module")
def tokenizer(package: Package) -> Tokenizer:
    return package.load_tokenizer()


@pytest.fixture
def slots(engine: Engine, tokenizer: Tokenizer) -> Slots:
    """Slots on an engine that holds nothing."""
    return Slots(
        EngineSequences(emptied(engine)), lambda one: Generator(one, tokenizer, frozenset())
    )


def random_ids(count: int, seed: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(300, 1000, count)]


def chooser(seed: int) -> TokenChooser:
    options = SamplingOptions(temperature=[1.5, 0.0, 0.8][seed % 3], top_k=[0, 0, 30][seed % 3])
    return make_sampler(options, seed, {700: 2.0} if seed % 2 else {})


def test_replies_beside_others_are_those_of_one_alone(
    package: Package, slots: Slots, tokenizer: Tokenizer
) -> None:
    # rings of 64 rows wrap; the context of 256 ends two of them
    prompts = [random_ids(length, length) for length in (3, 70, 150, 250, 20, 252)]
    prompts.append(prompts[2])  # and one that begins as another that is being read
    alone = Generator(Engine(package), tokenizer, frozenset())
    expected = []
    for seed, prompt in enumerate(prompts):
        generation = alone.start(prompt, chooser(seed), max_tokens=8, plain=True)
        list(generation)
        expected.append((generation.token_ids, generation.finish_reason))
    assert [reason for _, reason in expected].count("context") == 2

    async def serve() -> list[Ticket]:
        waiting = []
        for seed, prompt in enumerate(prompts):

            def start(generator: Generator, seed: int = seed) -> Generation:
                return generator.start(prompts[seed], chooser(seed), max_tokens=8, plain=True)

            waiting.append(Ticket(start, lambda _: None, prompt))
        tickets, ended = list(waiting), set[Ticket]()
        scheduler = Scheduler(slots, ended.add)
        while len(ended) < len(tickets):
            while waiting and slots.has_room():
                scheduler.admit(waiting.pop(0))
            scheduler.turn()
        return tickets

    generations = [ticket.generation for ticket in asyncio.run(serve())]
    assert [(g.token_ids, g.finish_reason) for g in generations if g is not None] == expected
    assert len(slots.held) == SLOTS


def test_replies_that_are_put_aside_are_those_of_one_alone(
    package: Package, engine: Engine, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every three tokens, from rings that wrapped and from full ones, at the context's end."""
    monkeypatch.setattr(asides, "QUANTUM", 3)
    prompts = [random_ids(length, length) for length in (3, 70, 150, 245, 20)]
    alone = Generator(Engine(package), tokenizer, frozenset())
    expected = []
    for seed, prompt in enumerate(prompts):
        generation = alone.start(prompt, chooser(seed), max_tokens=13, plain=True)
        list(generation)
        expected.append((generation.token_ids, generation.finish_reason))
    kept = kept_prefixes(emptied(engine), 1 << 30)
    assert kept is not None

    def make(one: TokenEngine) -> Generator:
        assert isinstance(one, SequenceEngine)
        return Generator(one, tokenizer, frozenset(), beginnings=kept.of(one))

    sequences = EngineSequences(engine)
    sequences.most = 2
    slots = Slots(sequences, make, kept.counts, HostShelf(kept))

    async def serve() -> tuple[list[Ticket], Scheduler]:
        tickets = []
        for seed, prompt in enumerate(prompts):

            def start(generator: Generator, seed: int = seed) -> Generation:
                return generator.start(prompts[seed], chooser(seed), max_tokens=13, plain=True)

            tickets.append(Ticket(start, lambda _: None, prompt))
        return tickets, in_turns(slots, tickets)

    tickets, scheduler = asyncio.run(serve())
    found = [ticket.generation for ticket in tickets]
    assert [(g.token_ids, g.finish_reason) for g in found if g is not None] == expected
    assert scheduler.counts.put_aside > len(prompts)
    assert kept.memory.budget == 1 << 30, "what was lent is back"


def test_a_fork_is_made_where_the_rings_reach_and_never_into_the_engines_own(
    engine: Engine, slots: Slots
) -> None:
    prompt = random_ids(120, 1)
    parent = slots.take(prompt)
    assert slots.has_room()
    child = slots.take(prompt)
    child.generator.rewind(prompt)
    child.generator.prefill(Prompt.of(prompt[:100]))
    assert (parent.number, child.number, child.generator.engine.length) == (0, 1, 100)
    assert not slots.engines.can_fork(child.generator.engine, parent.generator.engine, 90)
    assert slots.engines.fork(child.generator.engine, parent.generator.engine, 90) is False
    assert slots.has_room()
    third = slots.take(prompt)
    assert slots.fork(third, prompt)
    assert third.generator.rewind(prompt) == 100
    engines = child.generator.engine, third.generator.engine
    reached = [slots.engines.can_fork(*engines, count) for count in (0, 5, 90, 100)]
    assert reached == [True, False, True, True]
    assert not slots.engines.fork(*engines, 5)
    assert third.generator.engine.length == 0
    assert len(engine.sequences) == SLOTS


def test_slots_by_default_are_those_that_memory_is_left_for(package: Package) -> None:
    assert default_slots(package, None, False, Placement()) == 4
