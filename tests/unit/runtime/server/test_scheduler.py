"""Turns of a scheduler on scripted engines: what runs in which, counted; no clock is looked at."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.runtime.engine.token_engine import TokenEngine
from gemma4_compile.runtime.sampling.sampling import (
    SamplingOptions,
    TokenChooser,
    make_sampler,
)
from gemma4_compile.runtime.server.tickets import Ticket
from gemma4_compile.runtime.speculative.draft_turns import DraftTurns, Turn
from tests.scripted_engine import (
    GuessingEngine,
    RandomEngine,
    ScriptedEngine,
    ScriptedSequences,
    encode,
    scripted_generator,
)
from tests.scripted_turns import CHUNK, Served, ids, in_loop, replies, told


def test_one_alone_takes_no_joint_step() -> None:
    def body() -> None:
        served = Served(replies(2, length=3))
        served.finish(served.ask(ids(20, 0)))
        assert served.log == ["read 0", "read 0", "alone 0", "alone 0", "alone 0"]

    in_loop(body)


def test_replies_wait_for_one_chunk_at_a_time() -> None:
    def body() -> None:
        served = Served(replies(3))
        for seed in (1, 2):
            served.ask(ids(5, seed))
        served.turn(3)
        served.log.clear()
        served.ask(ids(10 * CHUNK, 3))
        served.turn(10)
        assert served.log[:-2] == ["read 2", "step 0 1"] * 9
        assert served.log[-2:] == ["read 2", "step 0 1 2"]

    in_loop(body)


def test_a_short_request_among_long_ones_takes_its_tokens_and_chunks() -> None:
    def body() -> None:
        served = Served(replies(8))
        for seed in range(7):
            served.ask(ids(5, seed))
        served.turn(10)
        chunks, tokens = 3, 20
        assert served.finish(served.ask(ids(chunks * CHUNK, 9), most=tokens)) <= chunks + tokens

    in_loop(body)


def test_chunks_go_to_the_oldest_and_to_the_shortest_in_turns() -> None:
    def body() -> None:
        served = Served(replies(4))
        long = served.ask(ids(20 * CHUNK, 0), most=1)
        shorts: list[tuple[int, Ticket]] = []

        def ask(number: int) -> None:
            shorts.append((served.turns, served.ask(ids(CHUNK, number), most=1)))

        ask(1)
        while long not in served.ended:
            served.turn()
            if shorts[-1][1] in served.ended:  # there is always a short one
                assert served.turns - shorts[-1][0] <= 2
                ask(len(shorts) + 1)
        assert served.turns <= 2 * 20
        assert len(shorts) > 15

    in_loop(body)


@pytest.mark.parametrize("seed", range(6))
def test_replies_are_what_they_are_alone_whatever_runs_beside(seed: int) -> None:
    random = np.random.default_rng(seed)
    prompts = [ids(int(random.integers(1, 60)), 100 * seed + i) for i in range(9)]
    prompts += [prompts[0], [*prompts[1], 7, 8, 9], [*prompts[2], *prompts[3]]]
    options = [
        SamplingOptions(temperature=1.5),
        SamplingOptions(temperature=0.7, top_k=20, top_p=0.8),
        SamplingOptions(temperature=0.0),
        SamplingOptions(temperature=1.0, repetition_penalty=1.3, frequency_penalty=0.4),
    ]

    def chooser(number: int) -> TokenChooser:
        return make_sampler(options[number % 4], seed=number)

    def alone(number: int) -> str:
        generator = scripted_generator(RandomEngine())
        generation = generator.start(
            prompts[number], chooser(number), max_tokens=4 + number, plain=True
        )
        list(generation)
        return generation.text

    async def body() -> None:
        served = Served([RandomEngine() for _ in range(3)])
        asked: dict[int, Ticket] = {}
        cancelled = int(random.integers(len(prompts)))
        while len(served.ended) < len(prompts):
            if len(asked) < len(prompts) and served.scheduler.slots.free and random.random() < 0.4:
                number = len(asked)
                asked[number] = served.ask(prompts[number], chooser(number), 4 + number)
            if cancelled in asked and random.random() < 0.2:
                asked[cancelled].cancel()
            served.turn()
        for number, ticket in asked.items():
            if number == cancelled:
                assert alone(number).startswith(await told(ticket))
            else:
                assert await told(ticket) == alone(number)

    in_loop(body)


def test_a_cancelled_reply_frees_its_slot_in_the_next_turn() -> None:
    async def body() -> None:
        served = Served(replies(2))
        reading, writing = served.ask(ids(10 * CHUNK, 1)), served.ask(ids(3, 2))
        served.turn(4)
        for ticket in (writing, reading):
            assert not served.scheduler.slots.has_room() or ticket is reading
            ticket.cancel()
            served.turn()
            assert ticket in served.ended
            await told(ticket)
        assert served.scheduler.slots.free == 2
        assert not served.scheduler.runs

    in_loop(body)


def test_replies_to_one_prompt_read_it_once() -> None:
    prompt = ids(5 * CHUNK, 1)

    async def body() -> None:
        served = Served([RandomEngine() for _ in range(3)])
        tickets = [
            served.ask(prompt, make_sampler(SamplingOptions(), seed), most=9) for seed in range(3)
        ]
        served.finish(*tickets)
        assert served.log.count("read 0") == 5
        # all but the last token, whose logits each needs, are copied
        assert sorted(served.sequences.forks) == [(0, 1, 79), (0, 2, 79)]
        assert [served.log.count(f"read {number}") for number in (1, 2)] == [1, 1]
        for seed, ticket in enumerate(tickets):
            sampler = make_sampler(SamplingOptions(), seed)
            alone = scripted_generator(RandomEngine()).start(
                prompt, sampler, max_tokens=9, plain=True
            )
            list(alone)
            assert await told(ticket) == alone.text

    in_loop(body)


@pytest.mark.parametrize("turns", [0, 1])
def test_what_slots_held_before_is_no_part_of_a_prompt_that_is_read(turns: int) -> None:
    prompt = ids(3 * CHUNK, 1)

    def body() -> None:
        served = Served(replies(3))
        served.finish(*[served.ask(ids(10 * CHUNK, seed), most=1) for seed in (2, 3, 4)])
        for _ in range(turns):  # so that it is the oldest one's turn, or the shortest one's
            served.finish(served.ask([*ids(10 * CHUNK, 4), 5], most=1))
        served.log.clear()
        served.finish(*[served.ask(prompt, most=1) for _ in range(3)])
        assert sum(entry.startswith("read") for entry in served.log) == 3 + 2
        assert len(served.sequences.forks) == 2

    in_loop(body)


def test_replies_to_one_prompt_are_no_copies_in_a_slot_that_takes_none() -> None:
    class NoneIntoTheFirst(ScriptedSequences):
        def can_fork(self, parent: TokenEngine, child: TokenEngine, count: int) -> bool:
            return child is not self.engines[0]

    def body() -> None:
        served = Served(replies(3))
        served.scheduler.slots.engines = sequences = NoneIntoTheFirst(served.sequences.engines)
        sequences.added = 1
        served.finish(*[served.ask(ids(3 * CHUNK, seed), most=1) for seed in (2, 3, 4)])
        for seed in (2, 4):  # so that the second one's use is longest ago, then the first one's
            served.finish(served.ask([*ids(3 * CHUNK, seed), 5], most=1))
        served.finish(*[served.ask(ids(6 * CHUNK, 6), most=1) for _ in range(2)])
        assert sequences.forks == [(1, 2, 6 * CHUNK - 1)]

    in_loop(body)


def test_who_waits_for_a_prompt_lends_it_its_turns() -> None:
    def body() -> None:
        served = Served(replies(3))
        served.ask(ids(30 * CHUNK, 1))
        long = ids(30 * CHUNK, 2)
        served.ask(long)
        served.turn()
        short = served.ask([*long[:40], *ids(5, 3)], most=1)
        # of every two turns one is the oldest's; 3 chunks of the other long one, then a copy
        assert served.finish(short) <= 2 * 4
        assert served.sequences.forks == [(1, 2, 40)]

    in_loop(body)


def test_a_copy_is_made_before_the_other_reads_on() -> None:
    prompt = ids(10 * CHUNK, 1)

    def body() -> None:
        served = Served(replies(3))
        served.ask(prompt)
        for seed in (2, 3):
            served.ask([*prompt[: 3 * CHUNK], *ids(20, seed)])
        held = served.sequences.engines[0]
        while not served.sequences.forks:
            served.turn()
        assert served.sequences.forks == [(0, 1, 3 * CHUNK), (0, 2, 3 * CHUNK)]
        assert len(held.held) == 3 * CHUNK

    in_loop(body)


def test_who_waits_for_a_prompt_reads_it_itself_where_that_ends() -> None:
    prompt = ids(10 * CHUNK, 1)

    async def body() -> None:
        served = Served([RandomEngine() for _ in range(2)])
        first, second = served.ask(prompt, most=2), served.ask(prompt, most=2)
        served.turn(4)
        first.cancel()
        served.finish(second)
        assert served.sequences.forks == [(0, 1, 4 * CHUNK)]
        assert served.log.count("read 1") == 6
        assert len(await told(second)) > 0

    in_loop(body)


def test_guesses_are_made_while_one_is_alone() -> None:
    async def body() -> None:
        text = " ".join(["one two three four five six seven eight nine ten"] * 3)
        served = Served([GuessingEngine(encode(text)), ScriptedEngine([500] * 6)])
        first = served.ask(ids(3, 1))
        served.turn(3)
        drafting = served.scheduler.slots.held[0].generator.drafting
        second = served.ask(ids(3, 2))  # what was guessed ahead is taken back
        counted = drafting.guessed
        served.finish(second)
        assert 0 < counted == drafting.guessed
        served.finish(first)
        assert drafting.guessed > counted
        assert await told(first) == text

    in_loop(body)


def test_guesses_are_made_beside_others_where_they_pay() -> None:
    """A round of one, to its end, then of the other; a step of both where they do not."""

    async def body() -> None:
        text = " ".join(["one two three four five six seven eight nine ten"] * 3)
        served = Served([GuessingEngine(encode(text)) for _ in range(2)])
        turns = served.scheduler.draft_turns = Told()
        tickets = [served.ask(ids(3, seed)) for seed in (1, 2)]
        served.turn(2)
        served.log.clear()
        served.turn()
        assert served.log == [*["alone 0"] * 5, *["alone 1"] * 5], "a token and four guesses"
        turns.pay = False
        served.turn(2)
        assert served.log[10:] == ["step 0 1"] * 2
        turns.pay = True
        served.finish(*tickets)
        assert [await told(ticket) for ticket in tickets] == [text, text]
        held = served.scheduler.slots.held
        assert held[0].generator.pace is held[1].generator.pace, "times are those of the engine"
        counts = served.scheduler.counts
        rounds = counts.turn_rounds, counts.turn_tokens
        assert rounds == (len(turns.rounds), sum(tokens for _, tokens in turns.rounds))
        assert turns.rounds[:5] == [(0, 1), (4, 5), (0, 1), (4, 5), (4, 5)], "guesses, tokens"

    in_loop(body)


def test_guesses_of_several_replies_are_checked_in_one_forward() -> None:
    """Each then takes its own round to its end; a step of all where that is faster."""

    async def body() -> None:
        text = " ".join(["one two three four five six seven eight nine ten"] * 3)
        served = Served([GuessingEngine(encode(text)) for _ in range(2)])
        served.sequences.joint_guesses = 3
        turns = served.scheduler.draft_turns = Joined()
        tickets = [served.ask(ids(3, seed)) for seed in (1, 2)]
        served.turn(2)  # a chunk of each prompt, and their first tokens, which have no round
        assert not any(entry.startswith("round") for entry in served.log)
        served.log.clear()
        served.turn(2)
        turns.taken = Turn.STEP
        served.turn()
        assert served.log == ["round 0 1", "round 0 1", "step 0 1"]
        turns.taken = Turn.JOINT_ROUND
        served.finish(*tickets)
        assert [await told(ticket) for ticket in tickets] == [text, text]
        counts, rounds = served.scheduler.counts, len(turns.rounds)
        assert counts.joint_rounds == rounds > 2
        assert counts.joint_round_tokens == sum(tokens for *_, tokens in turns.rounds)
        assert turns.rounds[:2] == [(2, 6, 8)] * 2, "replies, guesses, tokens"

    in_loop(body)


def test_a_forward_of_guesses_that_fails_ends_all_of_its_replies() -> None:
    async def body() -> None:
        served = Served([GuessingEngine([500] * 30) for _ in range(3)])
        served.sequences.joint_guesses = 1
        served.scheduler.draft_turns = Joined()
        failing = [served.ask(ids(3, seed)) for seed in (1, 2)]
        served.turn(4)

        def fail() -> None:
            raise RuntimeError("the device has an error")

        served.sequences.before_step = fail
        served.turn()
        assert not served.scheduler.runs
        for ticket in failing:
            with pytest.raises(RuntimeError, match="device has an error"):
                await told(ticket)
        served.sequences.before_step = lambda: None
        again = [served.ask(ids(3, seed), most=4) for seed in (1, 2)]
        served.finish(*again)
        assert [await told(ticket) for ticket in again], "the slots are free, and begin anew"

    in_loop(body)


def test_a_reply_that_is_cancelled_takes_no_round_with_it() -> None:
    """Between the forward and its own part of it: the next reply in its slot begins with none."""

    async def body() -> None:
        text = " ".join(["one two three"] * 5)
        served = Served([GuessingEngine(encode(text)) for _ in range(2)])
        served.sequences.joint_guesses = 3
        served.scheduler.draft_turns = Joined()
        first, second = served.ask(ids(3, 1)), served.ask(ids(3, 2))
        served.turn(3)
        served.sequences.before_step = second.cancel
        served.turn()
        served.sequences.before_step = lambda: None
        third = served.ask(ids(3, 3))
        served.finish(first, third)
        assert [await told(ticket) for ticket in (first, third)] == [text, text]

    in_loop(body)


class Joined(DraftTurns):
    """One forward for the guesses of all, where there can be one and a test does not say else."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = Turn.JOINT_ROUND
        self.rounds: list[tuple[int, int, int]] = []

    def turn(self, replies: int, hoped_rate: float | None, *, joins: bool) -> Turn:
        return self.taken if joins else Turn.STEP

    def note_joint_round(self, replies: int, guesses: int, tokens: int, seconds: float) -> None:
        self.rounds.append((replies, guesses, tokens))


class Told(DraftTurns):
    """Rounds pay where a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.pay = True
        self.rounds: list[tuple[int, int]] = []

    def pays(self, replies: int, hoped_rate: float | None = None) -> bool:
        return self.pay

    def note_round(self, guesses: int, tokens: int, seconds: float) -> None:
        self.rounds.append((guesses, tokens))
