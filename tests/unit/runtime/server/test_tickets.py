"""A ticket between the thread that generates and the event loop that reads."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from unittest import mock

import pytest

from gemma4_compile.runtime.reply.reply import TextDelta
from gemma4_compile.runtime.server.tickets import Ticket
from tests.scripted_engine import ScriptedEngine, encode, greedy, scripted_generator


async def events(ticket: Ticket) -> list[tuple[str, int]]:
    return [(e.text, n) async for e, n in ticket.counted_events() if isinstance(e, TextDelta)]


def test_events_come_with_the_number_of_tokens_and_then_the_end() -> None:
    async def body() -> None:
        ticket = Ticket(lambda g: g.start(encode("one"), greedy), lambda _: None)
        generation = ticket.begin(scripted_generator(ScriptedEngine(encode("two three"))))
        for event in generation:
            if isinstance(event, TextDelta):
                ticket.tell(event)
        ticket.finish()
        told = await events(ticket)
        assert "".join(text for text, _ in told) == "two three"
        assert [n for _, n in told] == list(range(1, len(told) + 1))

    asyncio.run(body())


def wakes_counted() -> AbstractContextManager[mock.Mock]:
    """Count how often the loop is woken meanwhile."""
    loop = asyncio.get_running_loop()
    return mock.patch.object(loop, "call_soon_threadsafe", wraps=loop.call_soon_threadsafe)


@pytest.mark.parametrize(("is_collected", "wakes"), [(False, 5), (True, 1)])
def test_a_reader_of_the_whole_is_woken_at_its_end_alone(is_collected: bool, wakes: int) -> None:
    """Tokens come from another thread; the reader waits for each of a stream."""

    async def body() -> None:
        ticket = Ticket(lambda g: g.start(encode("one"), greedy), lambda _: None)
        ticket.begin(scripted_generator(ScriptedEngine([])))
        read: list[str] = []

        async def reader() -> None:
            events = ticket.collected() if is_collected else ticket.events()
            async for event in events:
                assert isinstance(event, TextDelta)
                read.append(event.text)

        reading = asyncio.ensure_future(reader())
        await asyncio.sleep(0)
        with wakes_counted() as wake:
            for number in range(4):
                ticket.tell(TextDelta(str(number)))
                if not is_collected:
                    while len(read) <= number:
                        await asyncio.sleep(0)
            ticket.finish()
            await reading
        assert ("".join(read), wake.call_count) == ("0123", wakes)

    asyncio.run(body())


def test_what_comes_before_the_loop_s_turn_wakes_it_once() -> None:
    async def body() -> None:
        ticket = Ticket(lambda g: g.start(encode("one"), greedy), lambda _: None)
        ticket.begin(scripted_generator(ScriptedEngine([])))
        with wakes_counted() as wake:
            for number in range(4):
                ticket.tell(TextDelta(str(number)))
            ticket.finish()
        assert wake.call_count == 1
        assert [text for text, _ in await events(ticket)] == list("0123")

    asyncio.run(body())


def test_time_is_marked_among_the_events_and_no_heap_of_marks_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ticket, "pause_s", 0.001)

    async def body() -> None:
        ticket = Ticket(lambda g: g.start(encode("one"), greedy), lambda _: None)
        generation = ticket.begin(scripted_generator(ScriptedEngine(encode("two"))))
        paced = ticket.paced_events()
        assert await anext(paced) is None
        assert await anext(paced) is None
        await asyncio.sleep(0.1)  # nobody reads meanwhile: one mark waits, and one more may come
        monkeypatch.setattr(Ticket, "pause_s", 1000)
        for event in generation:
            if isinstance(event, TextDelta):
                ticket.tell(event)
        ticket.finish()
        rest = [item async for item in paced]
        assert len([item for item in rest if item is None]) <= 2
        told = [item[0] for item in rest if item is not None]
        assert "".join(e.text for e in told if isinstance(e, TextDelta)) == "two"

    asyncio.run(body())


def test_a_cancelled_one_leaves_the_queue_and_ends_with_its_cause() -> None:
    left: list[Ticket] = []

    async def body() -> None:
        for cause in (None, ValueError("the server is stopping")):
            ticket = Ticket(lambda g: g.start([1], greedy), left.append)
            assert not ticket.is_cancelled
            ticket.cancel(cause)
            assert ticket.is_cancelled
            ticket.end()
            if cause is None:
                assert await events(ticket) == []
            else:
                with pytest.raises(ValueError, match="stopping"):
                    await events(ticket)
        assert len(left) == 2

    asyncio.run(body())


def test_nothing_is_raised_where_the_loop_has_ended() -> None:
    async def made() -> Ticket:
        return Ticket(lambda g: g.start([1], greedy), lambda _: None)

    asyncio.run(made()).fail(RuntimeError("nobody reads it"))
