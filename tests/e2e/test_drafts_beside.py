"""Rounds of guesses on several sequences of an engine: each is what it is on an engine alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.runtime import Engine, Package
from gemma4_compile.runtime.engine.generation import Generation, Generator
from gemma4_compile.runtime.engine.joint_rounds import RIDERS, JointRounds
from gemma4_compile.runtime.engine.rounds import Rounds
from gemma4_compile.runtime.engine.sequence_engine import EngineSequences
from gemma4_compile.runtime.engine.slots import Slots
from gemma4_compile.runtime.prefixes.kept import kept_prefixes
from gemma4_compile.runtime.prefixes.shelf import HostShelf
from gemma4_compile.runtime.sampling.sampling import SamplingOptions, TokenChooser, make_sampler
from gemma4_compile.runtime.server import asides
from gemma4_compile.runtime.server.scheduler import Scheduler
from gemma4_compile.runtime.server.tickets import Ticket
from gemma4_compile.runtime.speculative.draft_turns import DraftTurns, Turn
from gemma4_compile.runtime.speculative.drafter import Drafter
from tests.drafted import CONTEXT, drafted_package
from tests.several_sequences import FixedRides, in_turns

SLOTS, DRAFTS, TOKENS = 3, 3, 12


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drafted_package(tmp_path_factory, "e2b").package


def ids_of(count: int, seed: int) -> list[int]:
    return [int(one) for one in np.random.default_rng(seed).integers(107, 256, count)]


def rows_of(rounds: Rounds, token: int) -> list[bytes]:
    """Guesses of a round and the logits of all of its rows."""
    guesses, rows = rounds.advance(token, DRAFTS)
    return [str(guesses).encode(), *(rows.read(row).tobytes() for row in range(len(guesses) + 1))]


def test_rounds_of_sequences_within_each_other_are_those_of_each_alone(package: Path) -> None:
    """Guesses and logits, byte for byte, where one is accepted after the other has begun."""
    engine = Engine.open(package, sequences=2)
    assert engine.rounds is not None
    sequences = [engine.sequence, engine.sequences.add()]
    rounds = [engine.rounds, engine.rounds.beside(sequences[1])]
    prompts = [ids_of(5, 1), ids_of(CONTEXT // 2, 2)]
    for sequence, prompt in zip(sequences, prompts, strict=True):
        engine.prefill(prompt, sequence)
    found: list[list[bytes]] = [[], []]
    for step in range(4):
        for index in (0, 1):
            found[index] += rows_of(rounds[index], 110 + 10 * index + step)
        for index in (1, 0):
            rounds[index].accept(step % 3 if step else 0)
    alone = Engine.open(package)
    assert alone.rounds is not None
    for prompt, own, first in zip(prompts, found, (110, 120), strict=True):
        alone.clear()
        alone.prefill(prompt)
        expected = []
        for step in range(4):
            expected += rows_of(alone.rounds, first + step)
            alone.rounds.accept(step % 3 if step else 0)
        assert own == expected
        assert len(own) == 2 + 3 * (2 + DRAFTS), "the first round has no guesses"


class AtRandom(DraftTurns):
    """Rounds in turns or in one forward, or steps, whatever they take."""

    def __init__(self) -> None:
        super().__init__()
        self._random = np.random.default_rng(1)
        self.joined = 0

    def turn(self, replies: int, hoped_rate: float | None, *, joins: bool) -> Turn:
        del replies, hoped_rate
        turns = [Turn.STEP, Turn.ROUNDS, *[Turn.JOINT_ROUND] * (6 * joins)]
        turn = turns[int(self._random.integers(len(turns)))]
        self.joined += turn is Turn.JOINT_ROUND
        return turn


def chooser(seed: int) -> TokenChooser:
    options = SamplingOptions(temperature=[1.5, 0.0, 0.8][seed % 3], top_k=[0, 0, 30][seed % 3])
    return make_sampler(options, seed, {170: 2.0} if seed % 2 else {})


@pytest.mark.parametrize("count", [SLOTS, 2])
def test_replies_with_guesses_beside_others_are_those_of_one_alone(
    count: int, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds, joint rounds and joint steps in turns; a third of the guesses is wrong; rings wrap.

    With two slots replies are put aside for others every few tokens, too.
    """
    monkeypatch.setenv(RIDERS, "1")
    monkeypatch.setattr(asides, "QUANTUM", 3 if count == 2 else TOKENS)
    prompts = [ids_of(length, length) for length in (3, 70, 30, CONTEXT - 6, 20)]
    tokenizer = Package.open(package).load_tokenizer()
    alone = Generator(Engine.open(package, drafts=0), tokenizer, frozenset())
    expected, texts = [], []
    for seed, prompt in enumerate(prompts):
        generation = alone.start(prompt, chooser(seed), max_tokens=TOKENS, plain=True)
        list(generation)
        expected.append((generation.token_ids, generation.finish_reason))
        texts.append([*prompt, *generation.token_ids, *[5] * CONTEXT])
    assert [reason for _, reason in expected].count("context") == 1
    wrong = np.random.default_rng(2)

    def guess(drafter: Drafter, token_id: int, position: int, count: int) -> None:
        text = next(text for text in texts if text[position] == token_id)
        following = text[position + 1 : position + 1 + count]
        drafter.put([token_id, *(7 if wrong.random() < 0.33 else token for token in following)])

    monkeypatch.setattr(Drafter, "guess", guess)
    guess_together = JointRounds._guess

    def guess_of_all(
        self: JointRounds, rounds: list[Rounds], tokens: list[int], drafts: int
    ) -> list[list[int]]:
        """As many as the drafter makes, of the texts."""
        places = [one.sequence.length for one in rounds]
        found = guess_together(self, rounds, tokens, drafts)
        for own, token_id, at in zip(found, tokens, places, strict=True):
            text = next(text for text in texts if text[at] == token_id)
            following = text[at + 1 : at + 1 + len(own)]
            own[:] = [7 if wrong.random() < 0.33 else token for token in following]
        return found

    monkeypatch.setattr(JointRounds, "_guess", guess_of_all)
    engine = Engine.open(package, sequences=count, drafts=DRAFTS)
    kept = kept_prefixes(engine, 1 << 30)
    assert kept is not None
    sequences = EngineSequences(engine)
    slots = Slots(
        sequences, lambda one: Generator(one, tokenizer, frozenset()), None, HostShelf(kept)
    )

    async def serve() -> list[Ticket]:
        tickets = []
        for seed, prompt in enumerate(prompts):

            def start(generator: Generator, seed: int = seed) -> Generation:
                return generator.start(prompts[seed], chooser(seed), max_tokens=TOKENS, plain=True)

            tickets.append(Ticket(start, lambda _: None, prompt))
        turns = AtRandom()

        def prepare(scheduler: Scheduler) -> None:
            scheduler.rides, scheduler.draft_turns = FixedRides(ride=True), turns

        scheduler = in_turns(slots, tickets, prepare)
        assert scheduler.counts.steps
        assert bool(scheduler.counts.put_aside) == (count == 2)
        assert scheduler.counts.accepted_tokens
        assert scheduler.counts.ridden_tokens
        assert scheduler.counts.joint_rounds == turns.joined >= (2 if count == SLOTS else 0)
        assert scheduler.counts.joint_round_tokens >= 2 * turns.joined
        return tickets

    generations = [ticket.generation for ticket in asyncio.run(serve())]
    assert [(g.token_ids, g.finish_reason) for g in generations if g is not None] == expected
    if count == SLOTS:
        assert all(slot.generator.drafting.accepted for slot in slots.held), "in every slot"
    assert len(slots.held) == count
