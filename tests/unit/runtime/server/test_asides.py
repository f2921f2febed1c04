"""Replies that are put aside for short requests, on scripted engines: turns are counted."""

from __future__ import annotations

import asyncio
import threading
from itertools import count

import numpy as np
import pytest

from gemma4_compile.runtime.engine.generation import Generation, Generator
from gemma4_compile.runtime.engine.token_engine import TokenEngine
from gemma4_compile.runtime.sampling.sampling import SamplingOptions, TokenChooser, make_sampler
from gemma4_compile.runtime.server import asides
from gemma4_compile.runtime.server.asides import QUANTUM, SHORT_CHUNKS
from gemma4_compile.runtime.server.tickets import Ticket
from gemma4_compile.runtime.server.worker import Worker
from tests.scripted_engine import (
    GuessingEngine,
    RandomEngine,
    ScriptedEngine,
    ScriptedSequences,
    ScriptedShelf,
    encode,
    greedy,
    scripted_generator,
    slots_of,
)
from tests.scripted_turns import CHUNK, Served, ids, in_loop, replies, told


@pytest.mark.parametrize("slots", [1, 8])
def test_a_short_request_is_answered_while_long_replies_have_all_slots(slots: int) -> None:
    async def body() -> None:
        served = Served(replies(slots), ScriptedShelf())
        long = [served.ask(ids(5, seed)) for seed in range(slots)]
        served.turn(QUANTUM + slots)
        chunks, tokens = 3, 20
        short = served.ask(ids(chunks * CHUNK, 99), most=tokens)
        assert served.finish(short) <= chunks + tokens
        assert served.scheduler.counts.put_aside == 1
        served.finish(*long)
        texts = [await told(ticket) for ticket in long]
        assert len(set(texts)) == 1
        assert [len(one.generation.token_ids) for one in long if one.generation] == [400] * slots

    in_loop(body)


def test_who_gets_a_slot_of_eight_waits_for_what_a_free_one_would_have() -> None:
    def body() -> None:
        served, tokens = Served(replies(8), ScriptedShelf()), 20
        for seed in range(8):
            served.ask(ids(5, seed))
        served.turn(QUANTUM + 8)
        served.log.clear()
        served.finish(served.ask(ids(CHUNK, 99), most=tokens))
        forwards = [" ".join(sorted(one.split())) for one in served.log]
        assert len(forwards) == 1 + tokens
        assert served.log[0].startswith("read")
        assert set(forwards[1:]) == {"0 1 2 3 4 5 6 7 step"}

    in_loop(body)


def test_a_reply_is_put_aside_after_a_while_and_for_what_is_short_alone() -> None:
    def body() -> None:
        served = Served(replies(1), ScriptedShelf())
        served.ask(ids(5, 0))
        while (written := served.scheduler.runs[0].written) < QUANTUM:
            assert served.offer(ids(5, 1)) is None, written
            served.turn()
        assert served.offer(ids(SHORT_CHUNKS * CHUNK + 1, 2)) is None
        assert served.offer(ids(SHORT_CHUNKS * CHUNK, 3)) is not None

    in_loop(body)


def test_two_long_replies_in_one_slot_go_on_in_turns() -> None:
    """Neither waits for the end of the other."""

    async def body() -> None:
        served = Served(replies(1), ScriptedShelf())
        first = served.ask(ids(5, 0))
        served.turn(QUANTUM + 2)
        second = served.ask(ids(5, 1))
        served.turn(QUANTUM + 2)
        (run,) = served.scheduler.runs
        assert run.ticket is first
        served.finish(first)
        assert second.generation is None or len(second.generation.token_ids) < 400
        served.finish(second)
        assert served.scheduler.counts.put_aside == 6  # three times each
        assert await told(first) == await told(second)

    in_loop(body)


def test_nobody_is_put_aside_without_room_for_a_copy() -> None:
    def body() -> None:
        served = Served(replies(2), ScriptedShelf(room=1))
        long = [served.ask(ids(5, seed)) for seed in range(2)]
        served.turn(QUANTUM + 3)
        short = served.ask(ids(5, 2), most=300)
        assert served.offer(ids(5, 3)) is None
        assert sum(not run.has_ended for run in served.scheduler.runs) == 2
        served.finish(short, *long)

    in_loop(body)


def test_a_copy_that_cannot_be_put_back_ends_its_reply_alone() -> None:
    async def body() -> None:
        shelf = ScriptedShelf()
        served = Served(replies(2), shelf)
        long = [served.ask(ids(5, seed)) for seed in range(2)]
        served.turn(QUANTUM + 3)
        short = served.ask(ids(5, 2), most=3)

        def fail() -> None:
            raise RuntimeError("the device is gone")

        shelf.before_restore = fail
        (aside,) = served.scheduler.asides.runs
        served.finish(short, *long)
        for ticket in long:
            if ticket is aside.ticket:
                with pytest.raises(RuntimeError, match="the device is gone"):
                    await told(ticket)
            else:
                await told(ticket)
                assert ticket.generation is not None
                assert len(ticket.generation.token_ids) == 400
        assert shelf.copies == 0
        assert served.scheduler.slots.free == 2

    in_loop(body)


def test_one_that_is_put_aside_can_be_cancelled() -> None:
    """Also within another one's round of guesses in its slot."""

    async def body() -> None:
        shelf = ScriptedShelf()
        reply = encode("I am tiny, a very small model. " * 60)
        served = Served([GuessingEngine(reply, context_length=2048)], shelf)
        long = served.ask(ids(5, 0))
        while served.scheduler.runs[0].written < QUANTUM:
            served.turn()
        other = served.ask(ids(5, 1), most=40)
        served.turn(4)
        long.cancel()
        served.turn()
        assert served.ended == [long]
        assert shelf.copies == 0
        served.finish(other)
        assert other.generation is not None
        assert other.generation.token_ids == reply[:40]
        drafting = other.generation.drafting
        assert drafting is not None
        assert 0 < drafting.accepted <= drafting.guessed

    in_loop(body)


def test_a_slot_that_nobody_takes_after_all_goes_back() -> None:
    def body() -> None:
        served = Served(replies(1), ScriptedShelf())
        long = served.ask(ids(5, 0))
        served.turn(QUANTUM + 2)
        assert served.scheduler.make_room()
        assert served.scheduler.slots.free == 1
        served.finish(long)
        assert long.generation is not None
        assert len(long.generation.token_ids) == 400

    in_loop(body)


def test_an_error_of_a_copy_ends_its_reply_alone() -> None:
    async def body() -> None:
        shelf = ScriptedShelf()
        served = Served(replies(2), shelf)
        long = [served.ask(ids(5, seed)) for seed in range(2)]
        served.turn(QUANTUM + 3)

        def fail(engine: TokenEngine) -> tuple[list[int], int] | None:
            raise RuntimeError("the device is gone")

        shelf.save = fail  # type: ignore[method-assign]
        assert not served.scheduler.make_room()
        served.finish(*long)
        lengths = [len(one.generation.token_ids) for one in long if one.generation]
        assert sorted(lengths)[1] == 400
        failed = long[lengths.index(min(lengths))]
        with pytest.raises(RuntimeError, match="the device is gone"):
            await told(failed)
        assert served.scheduler.slots.free == 2

    in_loop(body)


@pytest.mark.parametrize("seed", range(6))
def test_replies_are_what_they_are_alone_whoever_is_put_aside(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asides, "QUANTUM", 1 + seed % 3)
    random = np.random.default_rng(seed)
    prompts = [ids(int(random.integers(1, 60)), 100 * seed + i) for i in range(9)]
    prompts += [prompts[0], [*prompts[1], 7, 8, 9], [*prompts[2], *prompts[3]]]
    options = [
        SamplingOptions(temperature=1.5),
        SamplingOptions(temperature=0.0),
        SamplingOptions(temperature=1.0, repetition_penalty=1.3, frequency_penalty=0.4),
    ]

    def chooser(number: int) -> TokenChooser:
        return make_sampler(options[number % 3], seed=number)

    def alone(number: int) -> str:
        generation = scripted_generator(RandomEngine()).start(
            prompts[number], chooser(number), max_tokens=4 + number, plain=True
        )
        list(generation)
        return generation.text

    async def body() -> None:
        shelf = ScriptedShelf(room=3)
        served = Served([RandomEngine() for _ in range(2)], shelf)
        asked: dict[int, Ticket] = {}
        cancelled = int(random.integers(len(prompts)))
        while len(served.ended) < len(prompts):
            if len(asked) < len(prompts) and random.random() < 0.5:
                number = len(asked)
                found = served.offer(prompts[number], chooser(number), 4 + number)
                if found is not None:
                    asked[number] = found
            if cancelled in asked and random.random() < 0.1:
                asked[cancelled].cancel()
            served.turn()
        for number, ticket in asked.items():
            if number == cancelled:
                assert alone(number).startswith(await told(ticket))
            else:
                assert await told(ticket) == alone(number)
        assert served.scheduler.counts.put_aside > 5
        assert shelf.copies == 0
        assert served.scheduler.slots.free == 2

    in_loop(body)


def test_a_worker_puts_a_reply_aside_for_another_request_and_for_none_of_its_own() -> None:
    async def body() -> None:
        engine, queued = ScriptedEngine([500] * 400), threading.Event()
        answered, steps = threading.Event(), count()

        def wait_for_readers() -> None:  # steps take no time here: both ends would be read at once
            queued.wait(60)
            if next(steps) == 2 * QUANTUM:
                answered.wait(60)

        engine.before_step = wait_for_readers
        worker = Worker(lambda: slots_of(ScriptedSequences([engine]), shelf=ScriptedShelf()), 8)
        worker.start()

        def of(most: int | None) -> object:
            def start(generator: Generator) -> Generation:
                return generator.start(ids(5, most or 0), greedy, max_tokens=most, plain=True)

            return start

        ended: list[str] = []

        async def wait(name: str, ticket: Ticket) -> None:
            async for _ in ticket.events():
                pass
            ended.append(name)
            if name == "other":
                answered.set()

        long, own = worker.reserve().submit(of(None), of(3), prompt=ids(5, 0))  # type: ignore[arg-type]
        other = worker.submit(of(2))  # type: ignore[arg-type]
        queued.set()
        await asyncio.gather(wait("long", long), wait("own", own), wait("other", other))
        assert ended == ["other", "long", "own"]
        worker.stop()

    in_loop(body)
