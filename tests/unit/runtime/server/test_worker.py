from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.engine.generation import Generation, Generator
from gemma4_compile.runtime.engine.slots import Slots
from gemma4_compile.runtime.reply.reply import TextDelta
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.scheduler import Scheduler
from gemma4_compile.runtime.server.tickets import Ticket
from gemma4_compile.runtime.server.worker import Worker
from tests.scripted_engine import ScriptedEngine, encode, greedy, scripted_slots

PROMPT = encode("one two three")


def start(generator: Generator) -> Generation:
    return generator.start(PROMPT, greedy)


async def told(ticket: Ticket) -> str:
    return "".join([e.text async for e in ticket.events() if isinstance(e, TextDelta)])


def make(engine: ScriptedEngine, queue: int = 8) -> Worker:
    worker = Worker(lambda: scripted_slots(engine), queue)
    worker.start()
    return worker


def test_tickets_are_served_in_order_by_one_thread() -> None:
    engine = ScriptedEngine(encode("yes"))
    threads: set[int] = set()
    engine.before_step = lambda: threads.add(threading.get_ident())
    worker = make(engine)

    async def ask() -> list[str]:
        return [await told(ticket) for ticket in [worker.submit(start) for _ in range(5)]]

    assert asyncio.run(ask()) == ["yes"] * 5
    worker.stop()
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_what_loading_raises_is_raised_by_start() -> None:
    def load() -> Slots:
        raise ArtifactError("no weights")

    with pytest.raises(ArtifactError, match="no weights"):
        Worker(load, 1).start()


def test_what_a_generation_raises_reaches_its_reader_alone() -> None:
    worker = make(ScriptedEngine(encode("yes")))

    def refuse(generator: Generator) -> Generation:
        raise ValueError("no")

    async def ask() -> str:
        with pytest.raises(ValueError, match="no"):
            await told(worker.submit(refuse))
        return await told(worker.submit(start))

    assert asyncio.run(ask()) == "yes"
    worker.stop()


class Panic(BaseException):
    """As native code's: no Exception."""


def test_a_panic_ends_its_request_alone() -> None:
    worker = make(ScriptedEngine(encode("yes")))

    def panic(generator: Generator) -> Generation:
        raise Panic("index out of bounds")

    async def ask() -> str:
        with pytest.raises(Panic):
            await told(worker.submit(panic))
        return await told(worker.submit(start))

    assert asyncio.run(ask()) == "yes"
    assert worker.is_alive
    worker.stop()


def test_a_worker_that_dies_refuses_all(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ScriptedEngine(encode("yes"))
    worker = make(engine)

    def die(*_: object) -> None:
        raise Panic("whatever it may be")

    async def ask() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "turn", die)
            tickets = [worker.submit(start), worker.submit(start)]
            for ticket in tickets:
                with pytest.raises(ApiError, match="the engine has ended") as raised:
                    await told(ticket)
                assert raised.value.status == 503
        with pytest.raises(ApiError, match="the engine has ended"):
            worker.submit(start)

    asyncio.run(ask())
    assert not worker.is_alive
    worker.stop()


def test_a_place_is_given_back() -> None:
    worker = make(ScriptedEngine(encode("yes")), queue=1)

    async def ask() -> str:
        with worker.reserve(), pytest.raises(ApiError, match="1 requests wait already"):
            worker.reserve()
        return await told(worker.submit(start))

    assert asyncio.run(ask()) == "yes"
    worker.stop()


def test_a_cancelled_ticket_never_starts() -> None:
    engine = ScriptedEngine(encode("yes"))
    gate = threading.Event()
    engine.before_step = lambda: gate.wait(120)
    worker = make(engine)

    async def ask() -> tuple[str, str]:
        first, second = worker.submit(start), worker.submit(start)
        second.cancel()
        gate.set()
        texts = await told(first), await told(second)
        assert second.generation is None
        return texts

    assert asyncio.run(ask()) == ("yes", "")
    worker.stop()


def test_stopping_ends_what_runs_and_refuses_what_waits() -> None:
    engine = ScriptedEngine([500] * 400)
    gate, running = threading.Event(), threading.Event()

    def step() -> None:
        running.set()
        gate.wait(120)

    engine.before_step = step
    worker = make(engine)

    async def ask() -> None:
        first, second = worker.submit(start), worker.submit(start)
        await asyncio.to_thread(running.wait, 120)
        stopping = asyncio.create_task(asyncio.to_thread(worker.stop))
        await asyncio.sleep(0.1)
        with pytest.raises(ApiError, match="stopping"):
            worker.submit(start)
        gate.set()
        for ticket in (first, second):
            with pytest.raises(ApiError, match="stopping"):
                await told(ticket)
        await stopping
        assert first.generation is not None
        assert first.generation.finish_reason == "interrupted"

    asyncio.run(ask())


def test_the_queue_has_an_end() -> None:
    engine = ScriptedEngine(encode("yes"))
    gate = threading.Event()
    engine.before_step = lambda: gate.wait(120)
    worker = make(engine, queue=2)

    async def ask() -> list[str]:
        tickets = [worker.submit(start)]
        while worker._waiting:
            await asyncio.sleep(0.01)
        tickets += [worker.submit(start) for _ in range(2)]
        with pytest.raises(ApiError, match="2 requests wait already") as raised:
            worker.submit(start)
        assert raised.value.status == 429
        gate.set()
        return [await told(ticket) for ticket in tickets]

    assert asyncio.run(ask()) == ["yes"] * 3
    worker.stop()


def test_a_request_counts_once_however_many_replies_it_wants() -> None:
    engine = ScriptedEngine(encode("yes"))
    gate = threading.Event()
    engine.before_step = lambda: gate.wait(120)
    worker = make(engine, queue=2)

    async def ask() -> list[str]:
        tickets = worker.reserve().submit(*[start] * 5)
        while worker._waiting:
            await asyncio.sleep(0.01)
        for _ in range(2):
            tickets += worker.reserve().submit(*[start] * 5)
        with pytest.raises(ApiError, match="2 requests wait already"):
            worker.reserve()
        gate.set()
        return [await told(ticket) for ticket in tickets]

    assert asyncio.run(ask()) == ["yes"] * 15
    worker.stop()


def test_a_client_that_leaves_while_it_waits_gives_its_place_back() -> None:
    engine = ScriptedEngine(encode("yes"))
    gate = threading.Event()
    engine.before_step = lambda: gate.wait(120)
    worker = make(engine, queue=1)

    async def ask() -> list[str]:
        first = worker.submit(start)
        while worker._waiting:
            await asyncio.sleep(0.01)
        for _ in range(20):
            waiting = worker.reserve().submit(start, start)
            waiting[0].cancel()
            with pytest.raises(ApiError, match="1 requests wait already"):
                worker.reserve()
            waiting[1].cancel()
            assert [await told(ticket) for ticket in waiting] == ["", ""]
        assert not worker._queue  # nor are their prompts kept
        last = worker.submit(start)
        gate.set()
        return [await told(first), await told(last)]

    assert asyncio.run(ask()) == ["yes", "yes"]
    worker.stop()


def test_as_many_begin_at_once_as_there_are_slots() -> None:
    engines = [ScriptedEngine(encode("yes")) for _ in range(2)]
    gate = threading.Event()
    for engine in engines:
        engine.before_step = lambda: gate.wait(60)
    worker = Worker(lambda: scripted_slots(*engines), 0)
    worker.start()

    async def ask() -> list[str]:
        tickets = [worker.submit(start) for _ in range(2)]
        with pytest.raises(ApiError, match="requests wait already") as raised:
            worker.submit(start)
        assert raised.value.status == 429
        gate.set()
        return [await told(ticket) for ticket in tickets]

    assert asyncio.run(ask()) == ["yes"] * 2
    worker.stop()


def test_a_short_reply_ends_beside_one_without_end() -> None:
    endless = ScriptedEngine([500] * 10**6, context_length=10**7)
    worker = Worker(lambda: scripted_slots(endless, ScriptedEngine(encode("yes"))), 0)
    worker.start()

    async def ask() -> None:
        first = worker.submit(start)
        await anext(first.events())
        for _ in range(3):
            assert await told(worker.submit(start)) == "yes"
        assert worker.state().slots[0].doing == "writes"
        first.cancel()
        await told(first)
        assert first.generation is not None
        assert first.generation.finish_reason == "interrupted"

    asyncio.run(ask())
    worker.stop()


def test_a_request_for_many_replies_keeps_no_slots_from_others() -> None:
    engine = ScriptedEngine(encode("yes"))
    gate, running = threading.Event(), threading.Event()

    def step() -> None:
        running.set()
        gate.wait(60)

    engine.before_step = step
    worker = make(engine)
    begun: list[str] = []

    def named(name: str) -> Callable[[Generator], Generation]:
        def begin(generator: Generator) -> Generation:
            begun.append(name)
            return start(generator)

        return begin

    async def ask() -> None:
        worker.submit(start)
        await asyncio.to_thread(running.wait, 60)
        tickets = worker.reserve().submit(*[named("many")] * 3)
        tickets.append(worker.submit(named("one")))
        gate.set()
        for ticket in tickets:
            await told(ticket)

    asyncio.run(ask())
    worker.stop()
    assert begun == ["many", "many", "many", "one"]  # one slot: in their order

    gate.clear()
    running.clear()
    begun.clear()
    engines = [ScriptedEngine([500] * (3 + 30 * place)) for place in range(2)]
    for one in engines:
        one.before_step = step
    worker = Worker(lambda: scripted_slots(*engines), 8)
    worker.start()

    async def ask_two() -> None:
        tickets = worker.reserve().submit(*[named("many")] * 4)
        await asyncio.to_thread(running.wait, 60)
        tickets.append(worker.submit(named("one")))
        gate.set()
        for ticket in tickets:
            await told(ticket)

    asyncio.run(ask_two())
    worker.stop()
    assert begun.index("one") == 2  # the next slot is for who has none


def test_stopping_ends_the_replies_of_all_slots() -> None:
    engines = [ScriptedEngine([500] * 400) for _ in range(3)]
    worker = Worker(lambda: scripted_slots(*engines), 4)
    worker.start()

    async def ask() -> None:
        tickets = [worker.submit(start) for _ in range(5)]
        for ticket in tickets[:3]:
            await anext(ticket.events())  # it is being written
        worker.begin_stop()
        for ticket in tickets:
            with pytest.raises(ApiError, match="stopping"):
                await told(ticket)
        await asyncio.to_thread(worker.stop)

    asyncio.run(ask())
