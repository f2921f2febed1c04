"""What fails in a scheduler's turns ends the replies that it belongs to, and no other."""

from __future__ import annotations

import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.engine.generation import Generation, Generator
from gemma4_compile.runtime.engine.token_engine import TokenEngine
from gemma4_compile.runtime.sampling.sampling import (
    Float32Array,
)
from gemma4_compile.runtime.server.tickets import Ticket
from tests.scripted_engine import (
    GuessingEngine,
    ScriptedEngine,
    ScriptedSequences,
    greedy,
    scripted_generator,
)
from tests.scripted_turns import CHUNK, Served, ids, in_loop, replies, told


def test_a_chooser_that_fails_ends_its_own_reply_alone() -> None:
    async def body() -> None:
        served = Served(replies(3, length=6))
        said = 0

        def failing(logits: Float32Array) -> int:
            nonlocal said
            said += 1
            if said == 3:
                raise ValueError("the grammar's process has ended")
            return greedy(logits)

        good, bad = served.ask(ids(3, 1)), served.ask(ids(3, 2), failing)
        served.finish(good, bad)
        with pytest.raises(ValueError, match="process has ended"):
            await told(bad)
        alone = scripted_generator(replies(1, length=6)[0]).start(ids(3, 1), greedy, plain=True)
        list(alone)
        assert await told(good) == alone.text

    in_loop(body)


def test_a_step_that_fails_ends_those_that_were_in_it() -> None:
    async def body() -> None:
        served = Served(replies(3))
        written = [served.ask(ids(3, seed)) for seed in (1, 2)]
        served.turn(3)
        reading = served.ask(ids(4 * CHUNK, 3), most=2)

        def fail() -> None:
            raise RuntimeError("out of memory")

        served.sequences.before_step = fail
        served.turn()
        served.sequences.before_step = lambda: None
        assert set(served.ended) == set(written)
        for ticket in written:
            with pytest.raises(RuntimeError, match="out of memory"):
                await told(ticket)
        assert [engine.held for engine in served.sequences.engines[:2]] == [[], []]
        served.finish(reading)
        assert await told(reading)

    in_loop(body)


def test_a_starter_that_fails_frees_the_slot() -> None:
    async def body() -> None:
        served = Served(replies(1))

        def refuse(generator: Generator) -> Generation:
            raise ValueError("no")

        ticket = Ticket(refuse, lambda _: None, [1])
        served.scheduler.admit(ticket)
        served.turn()
        with pytest.raises(ValueError, match="no"):
            await told(ticket)
        assert served.scheduler.slots.free == 1

    in_loop(body)


def test_a_copy_that_fails_ends_its_own_reply_alone() -> None:
    prompt = ids(5 * CHUNK, 1)

    class NoCopies(ScriptedSequences):
        def fork(self, parent: TokenEngine, child: TokenEngine, count: int) -> bool:
            child.clear()
            raise ArtifactError("no room for a copy")

    async def body() -> None:
        served = Served(replies(2, length=6))
        served.scheduler.slots.engines = NoCopies(served.sequences.engines)
        good, bad = served.ask(prompt), served.ask(prompt)
        served.finish(good, bad)
        with pytest.raises(ArtifactError, match="no room for a copy"):
            await told(bad)
        assert await told(good)
        assert served.scheduler.slots.held[1].generator.rewind(prompt) == 0
        assert served.scheduler.slots.free == 2

    in_loop(body)


def test_what_cannot_be_taken_back_ends_its_own_reply_alone() -> None:
    class Stuck(GuessingEngine):
        def accept(self, count: int) -> None:
            raise RuntimeError("the device has an error")

    async def body() -> None:
        served = Served([Stuck([500] * 30), ScriptedEngine([500] * 6)])
        stuck = served.ask(ids(3, 1))
        served.turn(3)
        good = served.ask(ids(3, 2))
        served.finish(stuck, good)
        with pytest.raises(RuntimeError, match="device has an error"):
            await told(stuck)
        assert await told(good)
        again = served.ask(ids(3, 1))
        served.turn(3)
        again.cancel()
        served.finish(again)
        assert served.scheduler.slots.free == 2

    in_loop(body)
