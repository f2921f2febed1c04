"""Connections with limits: how many there are, and how long each may take to ask and to read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.http_parser import (
    Parser,
    TooManyPiecesError,
    allowing,
    raw_response,
)
from gemma4_compile.system.limits import allow_open_files

_ORIGIN = re.compile(rb"\nOrigin:[ \t]*([!-~]{1,300})[ \t]*\r?\n", re.IGNORECASE)
_FEWEST_REFUSED = 16
_OTHER_DESCRIPTORS = 128  # of files, pipes and helper processes
_SECONDS_TO_FINISH = 2  # of open connections after Ctrl-C
_SECONDS_TO_ASK = 0.1  # of one that is refused: some clients take no answer before their request
_SECONDS_TO_HEAR = 2.0  # of one that is refused, whose request still arrives


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of one client.

    Attributes
    ----------
    connections : most at a time; beyond that the one is refused that waits longest without a
        request, or the new one
    refused : most that have time to hear why they are not served; more are told and closed at once
    head_seconds : for the head of a request, from the connection or from the answer before
    stall_seconds : for a client that reads nothing of its answer
    """

    connections: int = 200
    refused: int = 1024
    head_seconds: float = 10.0
    stall_seconds: float = 120.0


def connections_for(waiting: int) -> tuple[ConnectionLimits, int]:
    """Limits of a server on which so many requests may wait, each with its connection.

    Returns
    -------
    tuple
        The limits, and how many connections fewer these are, as this system allows no more.
    """
    limits = ConnectionLimits()
    wanted = limits.connections + waiting
    most = allow_open_files(wanted + limits.refused + _OTHER_DESCRIPTORS) - _OTHER_DESCRIPTORS
    connections = max(min(wanted, most - _FEWEST_REFUSED), 1)
    refused = max(min(limits.refused, most - connections), _FEWEST_REFUSED)
    return replace(limits, connections=connections, refused=refused), wanted - connections


def server_config(
    app: ASGIApp, limits: ConnectionLimits, origins: Collection[str] = (), **options: Any
) -> uvicorn.Config:
    """Options of a server whose connections have these limits; others are uvicorn's.

    Parameters
    ----------
    origins : those whose pages may read why a connection is refused
    """

    class Limited(_LimitedProtocol):
        limits_of_server = limits
        origins_of_pages = frozenset(origins)
        refused: ClassVar[set[_LimitedProtocol]] = set()

    return uvicorn.Config(
        app,
        http=Limited,
        ws="none",
        lifespan="off",  # the application has none; a second Ctrl-C would show its traceback
        timeout_graceful_shutdown=_SECONDS_TO_FINISH,
        server_header=False,
        proxy_headers=False,  # or who is on this machine could say that it is another client
        **options,
    )


class _Flow(FlowControl):
    """Lets nobody read on while what was read is still being parsed."""

    is_held = False

    def resume_reading(self) -> None:
        """Read on, or later."""
        if not self.is_held:
            super().resume_reading()


class _LimitedProtocol(H11Protocol):
    """HTTP of one connection; uvicorn itself ends only those that wait for a second request."""

    limits_of_server: ConnectionLimits
    origins_of_pages: frozenset[str]
    refused: ClassVar[set[_LimitedProtocol]]

    def __init__(self, config: uvicorn.Config, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        self.conn: Parser = Parser(config.h11_max_incomplete_event_size)
        self._waits_since: float | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._refusal: ApiError | None = None  # what is still to be said to a refused one
        self._has_answered = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, in the place of another where there are too many."""
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._wait()
        if len(self.connections) > self.limits_of_server.connections:
            waiting = [other for other in self.connections if _waits_since(other) is not None]
            oldest = min(waiting, key=lambda other: _waits_since(other) or 0.0)
            assert isinstance(oldest, _LimitedProtocol), "all protocols here are of this class"
            oldest._refuse_place()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        super().connection_lost(exc)
        self.refused.discard(self)
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Take more of a request; a head that comes byte by byte gets no more time."""
        if self in self.refused:
            self._say_refusal(data)
            return
        super().data_received(data)
        if self._is_answering():
            self._stop_waiting()

    def handle_events(self) -> None:
        """Take what has arrived, for a short while: then others have their turn."""
        if self.transport.is_closing() or self in self.refused:
            return
        self.conn.begin_turn()
        super().handle_events()
        assert isinstance(self.flow, _Flow), "since the connection was made"
        if self.conn.has_more:
            self.flow.pause_reading()
            self.flow.is_held = True
            self.loop.call_soon(self.handle_events)
        elif self.flow.is_held:
            self.flow.is_held = False
            if not self.conn.is_paused and len(self.cycle.body) <= HIGH_WATER_LIMIT:
                self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong with what arrived, unless an answer is on its way already."""
        if self._is_answering():
            if self.cycle.response_started:
                self._close()
                return
            self.cycle.disconnected = True  # for the application, which answers nothing more
            self.cycle.message_event.set()
        error = self.conn.error
        status = error.error_status_hint if error is not None else 400
        self.conn.send_failed()
        why = f"{error or msg}"
        if not isinstance(error, TooManyPiecesError):
            why = f"this is no request of HTTP: {why}"
        self._refuse(ApiError(status, why))
        self._say_refusal()

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: the request is answered, and the log's reader needs no WebSocket library."""

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._has_answered = True
        super().on_response_complete()
        if not self._is_answering():
            self._wait()

    def pause_writing(self) -> None:
        """Give the client time to read."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(
            self.limits_of_server.stall_seconds, self.transport.abort
        )

    def resume_writing(self) -> None:
        """The client has read something."""
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._stop_waiting()
        self._waits_since = self.loop.time()
        self._head_timer = self.loop.call_later(self.limits_of_server.head_seconds, self._close)

    def _stop_waiting(self) -> None:
        self._waits_since = None
        if self._head_timer is not None:
            self._head_timer.cancel()

    def _refuse_place(self) -> None:
        if self._has_answered and not self.conn.trailing_data[0]:
            self._close()  # no request was made: every client expects that between two
            return
        most = self.limits_of_server.connections
        self._refuse(
            ApiError(503, f"{most} connections are served already: try again", code="busy")
        )
        if self in self.refused:
            wait = 0.0 if self.conn.trailing_data[0] else _SECONDS_TO_ASK
            self._head_timer = self.loop.call_later(wait, self._say_refusal)

    def _refuse(self, error: ApiError) -> None:
        """Serve this connection no longer."""
        self._stop_waiting()
        self.connections.discard(self)
        if len(self.refused) >= self.limits_of_server.refused:
            self.transport.write(raw_response(error))
            self.transport.close()
            return
        self.refused.add(self)
        self._refusal = error

    def _say_refusal(self, data: bytes = b"") -> None:
        """Say why, once, and read on for a while: a client that still sends would not hear it."""
        if self._refusal is None or self.transport.is_closing():
            return
        origin = _ORIGIN.search(self.conn.trailing_data[0] + data)
        headers = allowing(origin[1].decode(), self.origins_of_pages) if origin else {}
        self.transport.write(raw_response(self._refusal, headers))
        self._refusal = None
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._head_timer = self.loop.call_later(_SECONDS_TO_HEAR, self.transport.abort)

    def _close(self) -> None:
        """End the connection; what is written already still goes out if the client reads it."""
        self._waits_since = None
        self.connections.discard(self)
        self.transport.close()


def _waits_since(protocol: object) -> float | None:
    since: float | None = getattr(protocol, "_waits_since", None)
    return since
