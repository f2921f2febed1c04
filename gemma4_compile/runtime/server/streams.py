"""Replies on their way to a client who may leave: collected, or as the parts of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from typing import Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gemma4_compile.runtime.engine.generation import Generation
from gemma4_compile.runtime.reply.reply import Event, ReasoningDelta, TextDelta
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.api_error import ApiError, as_api_error
from gemma4_compile.runtime.server.service import Reply

_Result = TypeVar("_Result")

SERVER_SENT = "text/event-stream"
# nginx gathers an answer of a server behind it, unless the server says not to.
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class ReplyStream(StreamingResponse):
    """A stream whose replies end with it, also where the client leaves before the first event."""

    def __init__(
        self, events: AsyncIterator[str], replies: Sequence[Reply], media_type: str = SERVER_SENT
    ) -> None:
        super().__init__(events, media_type=media_type, headers=_HEADERS)
        self._replies = replies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            cancel(self._replies)


class ReplyWriter(Protocol):
    """Writes one reply in the words of a protocol; what it returns is sent as it is."""

    def begin(self) -> Iterable[str]:
        """Before the first event."""

    def push(self, event: Event) -> Iterable[str]:
        """More of the reply."""

    def pause(self) -> Iterable[str]:
        """Nothing was written for a while."""

    def end(self, generation: Generation) -> Iterable[str]:
        """The reply is whole."""

    def fail(self, error: ApiError) -> Iterable[str]:
        """It will not be."""


async def written(reply: Reply, writer: ReplyWriter) -> AsyncIterator[str]:
    """The parts of a stream, as they come."""
    silent = True
    try:
        for part in writer.begin():
            yield part
        async for item in reply.ticket.paced_events():
            if item is not None:
                for part in writer.push(item[0]):
                    silent = False
                    yield part
                continue
            if silent:
                for part in writer.pause():
                    yield part
            silent = True
        for part in writer.end(finished(reply)):
            yield part
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        for part in writer.fail(as_api_error(error)):
            yield part


class Joined:
    """Events of a reply, deltas of one kind that follow each other as one.

    Attributes
    ----------
    events : in the order in which they came
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._texts: list[str] = []  # of the last one, which is long in the making

    def add(self, event: Event) -> None:
        """Take one more."""
        last = self.events[-1] if self.events else None
        if isinstance(event, ToolCall) or type(last) is not type(event):
            self.close()
            self.events.append(event)
        if not isinstance(event, ToolCall):
            self._texts.append(event.text)

    def close(self) -> list[Event]:
        """Join what is open; return all of them."""
        if self._texts:
            last = self.events[-1]
            kind = ReasoningDelta if isinstance(last, ReasoningDelta) else TextDelta
            self.events[-1] = kind("".join(self._texts))
            self._texts = []
        return self.events


async def collected(http: HttpRequest, reply: Reply) -> list[Event]:
    """All of a reply; cancels it and raises ClientDisconnect if the client goes away."""
    joined = Joined()

    async def finish() -> None:
        async for event in reply.ticket.collected():
            joined.add(event)

    try:
        await unless_gone(http, finish())
    finally:
        cancel([reply])
    return joined.close()


async def ended(http: HttpRequest, replies: Sequence[Reply]) -> None:
    """Wait for the end of the replies; as `collected` if the client goes away."""

    async def finish() -> None:
        for reply in replies:
            async for _ in reply.ticket.collected():
                pass

    try:
        await unless_gone(http, finish())
    finally:
        cancel(replies)


async def unless_gone(http: HttpRequest, work: Coroutine[object, None, _Result]) -> _Result:
    """What `work` returns; if the client goes away first, cancel it and raise ClientDisconnect."""

    async def disconnect() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnect())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
        # An error knows this frame: it would keep itself, and with it all of the request.
        del working, gone


def finished(reply: Reply) -> Generation:
    """The generation of a reply whose events have ended without an error."""
    generation = reply.ticket.generation
    assert generation is not None, "the events have ended without an error"
    return generation


def cancel(replies: Sequence[Reply]) -> None:
    """End replies whose client is gone, or that have ended."""
    for reply in replies:
        reply.ticket.cancel()
