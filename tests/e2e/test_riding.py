"""Last rows of a prompt in steps of other sequences: who rides beside whom changes no logits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime import ContextFullError, Engine, Package
from gemma4_compile.runtime.engine.generation import Generation, Generator
from gemma4_compile.runtime.engine.joint import Riders
from gemma4_compile.runtime.engine.joint_rounds import RIDERS, SWITCH
from gemma4_compile.runtime.engine.sequence_engine import EngineSequences, SequenceEngine
from gemma4_compile.runtime.engine.slots import Slots
from gemma4_compile.runtime.engine.token_engine import TokenEngine
from gemma4_compile.runtime.prefixes.kept import kept_prefixes
from gemma4_compile.runtime.sampling.sampling import Sampler, SamplingOptions, make_sampler
from gemma4_compile.runtime.server.scheduler import Scheduler
from gemma4_compile.runtime.server.tickets import Ticket
from tests.several_sequences import FixedRides, emptied, ids_of

CONTEXT, RINGS = 256, 64


@pytest.fixture(scope="module")
def shared(tiny_package: Path) -> Engine:
    return Engine.open(tiny_package, sequences=4)


@pytest.fixture
def engine(shared: Engine) -> Engine:
    return emptied(shared)


def test_rows_that_ride_are_those_of_one_token_after_another(
    engine: Engine, tiny_package: Path
) -> None:
    """Byte for byte, beside any others, where rings wrap, and so are the others' tokens."""
    alone = Engine.open(tiny_package)
    prompts = [ids_of(9, 1), ids_of(RINGS + 3, 2), ids_of(150, 3)]
    sequences = [engine.sequence, engine.sequences.add(), engine.sequences.add()]
    question, tokens = ids_of(5, 4), [301, 302, 303]
    for place, reader in enumerate(sequences):
        expected = {}
        for at, prompt in enumerate(prompts):
            alone.clear()
            logits = alone.prefill(prompt)
            for token in question if at == place else tokens[at : at + 1]:
                logits = alone.decode(token)
            expected[at] = logits
        others = [at for at in range(3) if at != place]
        for beside in ([others[0]], others, others[::-1]):
            for sequence, prompt in zip(sequences, prompts, strict=True):
                sequence.clear()
                engine.prefill(prompt, sequence)
            writers, own = [sequences[at] for at in beside], [tokens[at] for at in beside]
            rows = engine.joint.add_beside(writers, own, Riders(reader, question))
            rows.keep(0, len(writers))
            for at in (*beside, place):
                np.testing.assert_array_equal(engine.read_logits(sequences[at]), expected[at])
            assert reader.length == len(prompts[place]) + len(question)


def test_riders_that_do_not_fit_are_refused_and_add_nothing(
    engine: Engine, tiny_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader, full = engine.sequence, engine.sequences.add(), engine.sequences.add()
    engine.prefill(ids_of(9, 1), writer)
    engine.prefill(ids_of(CONTEXT - 1, 2), full)
    writer.sampler, writer.chosen = Sampler(SamplingOptions(temperature=0.0)), 300
    assert [engine.joint.most_riders(count) for count in (0, 1, 2, 7, 8, 9)] == [0, 7, 6, 1, 0, 0]
    wrong: list[tuple[Riders, type[Exception], str]] = [
        (Riders(reader, ids_of(8, 1)), UsageError, "beside 1 tokens expected at most 7 rows"),
        (Riders(reader, []), UsageError, "no tokens to add"),
        (Riders(reader, [-1]), UsageError, "token id: expected 0 to"),
        (Riders(writer, [300]), UsageError, "a sequence is named twice"),
        (Riders(full, [300, 301]), ContextFullError, "the context is full"),
    ]
    for riders, error, message in wrong:
        with pytest.raises(error, match=message):
            engine.step([writer], riders)
    with pytest.raises(UsageError, match="no logits of the last token"):
        engine.read_logits(reader)
    assert [one.length for one in (writer, reader, full)] == [9, 0, CONTEXT - 1]
    engine.step([writer], Riders(reader, [300, 301], ends=False))
    assert reader.logits is None, "nobody asked for them"
    kept = engine.read_logits(reader)  # and now somebody does
    np.testing.assert_array_equal(kept, engine.read_logits(reader))
    assert [one.length for one in (writer, reader)] == [10, 2]
    monkeypatch.setenv(SWITCH, "0")
    assert Engine.open(tiny_package, sequences=2).joint.most_riders(1) == 0


def test_rows_ride_where_that_changes_no_bit_unless_it_is_forbidden(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a library of before they would change the last ones: there it has to be asked for."""
    sequences = EngineSequences(engine)
    before = replace(engine.model, rows_as_chunks=False)
    for model, unasked in ((engine.model, 7), (before, 0)):
        monkeypatch.setattr(engine, "model", model)
        for asked, rows in ((None, unasked), ("0", 0), ("1", 7)):
            if asked is None:
                monkeypatch.delenv(RIDERS, raising=False)
            else:
                monkeypatch.setenv(RIDERS, asked)
            assert sequences.most_riding(1) == rows


def test_replies_whose_prompts_ride_are_those_of_one_alone(
    engine: Engine, tiny_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the begin of a context and at its end, after kept prefixes, which are the same ones."""
    monkeypatch.setenv(RIDERS, "1")
    package = Package.open(tiny_package)
    tokenizer = package.load_tokenizer()
    system = ids_of(60, 5)
    prompts = [ids_of(20, 1), [*system, *ids_of(9, 2)], ids_of(3, 3), [*system, *ids_of(10, 4)]]
    prompts.append(ids_of(CONTEXT - 3, 6))
    alone = Generator(Engine(package), tokenizer, frozenset())
    expected = []
    for seed, prompt in enumerate(prompts):
        sampler = make_sampler(SamplingOptions(temperature=0.8 * (seed % 2)), seed)
        generation = alone.start(prompt, sampler, max_tokens=9 + seed, plain=True)
        list(generation)
        expected.append((generation.token_ids, generation.finish_reason))
    assert expected[-1][1] == "context"

    async def serve(ride: bool) -> tuple[list[object], int, tuple[int, int]]:
        kept = kept_prefixes(emptied(engine), 1 << 30)
        assert kept is not None

        def make(one: TokenEngine) -> Generator:
            assert isinstance(one, SequenceEngine)
            return Generator(one, tokenizer, frozenset(), beginnings=kept.of(one))

        scheduler = Scheduler(Slots(EngineSequences(engine), make, kept.counts), lambda _: None)
        scheduler.rides = FixedRides(ride=ride)
        tickets = []
        for seed, prompt in enumerate(prompts):

            def start(generator: Generator, seed: int = seed) -> Generation:
                sampler = make_sampler(SamplingOptions(temperature=0.8 * (seed % 2)), seed)
                return generator.start(prompts[seed], sampler, max_tokens=9 + seed, plain=True)

            while not scheduler.slots.has_room():
                scheduler.turn()
            tickets.append(Ticket(start, lambda _: None, prompt))
            scheduler.admit(tickets[-1])
        while scheduler.runs:
            scheduler.turn()
        found = [one.generation for one in tickets]
        counts = kept.counts()
        told: list[object] = [(g.token_ids, g.finish_reason) for g in found if g is not None]
        return told, scheduler.counts.ridden_tokens, (counts.prefixes, counts.saved)

    told, ridden, prefixes = asyncio.run(serve(ride=True))
    assert told == expected
    assert prefixes[1] >= 2, "chunks end where they are kept, whoever reads what follows"
    assert ridden >= 3 + 10, "a whole prompt, and at least a question after a kept one"
    assert asyncio.run(serve(ride=False)) == (expected, 0, prefixes)
