"""Connections with limits: how many there are, and how long each may take to ask and to read."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

_SECONDS_TO_FINISH = 2  # of open connections after Ctrl-C
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: 21\r\nConnection: close\r\nRetry-After: 5\r\n\r\ntoo many connections\n"
)


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of one client.

    Attributes
    ----------
    connections : most at a time; beyond that the one is closed that waits longest without a request
    head_seconds : for the head of a request, from the connection or from the answer before
    stall_seconds : for a client that reads nothing of its answer
    """

    connections: int = 200
    head_seconds: float = 10.0
    stall_seconds: float = 120.0


def server_config(app: ASGIApp, limits: ConnectionLimits, **options: Any) -> uvicorn.Config:
    """Options of a server whose connections have these limits; others are uvicorn's."""

    class Limited(_LimitedProtocol):
        limits_of_server = limits

    return uvicorn.Config(
        app,
        http=Limited,
        ws="none",
        timeout_graceful_shutdown=_SECONDS_TO_FINISH,
        server_header=False,
        **options,
    )


class _LimitedProtocol(H11Protocol):
    """HTTP of one connection; uvicorn itself ends only those that wait for a second request."""

    limits_of_server: ConnectionLimits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, in the place of another where there are too many."""
        super().connection_made(transport)
        self._waits_since: float | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._wait()
        if len(self.connections) > self.limits_of_server.connections:
            waiting = [other for other in self.connections if _waits_since(other) is not None]
            oldest = min(waiting, key=lambda other: _waits_since(other) or 0.0)
            if oldest is self:
                transport.write(_FULL)
                self._close()
            else:
                assert isinstance(oldest, _LimitedProtocol), "all protocols here are of this class"
                oldest._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        super().connection_lost(exc)
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Take more of a request; a head that comes byte by byte gets no more time."""
        super().data_received(data)
        if self._is_answering():
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
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

    def _close(self) -> None:
        """End the connection; what is written already still goes out if the client reads it."""
        self._waits_since = None
        self.connections.discard(self)
        self.transport.close()


def _waits_since(protocol: object) -> float | None:
    since: float | None = getattr(protocol, "_waits_since", None)
    return since
