"""h11's parser in turns: a body in a million pieces neither holds the event loop nor is taken."""

from __future__ import annotations

import http
from collections.abc import Collection, Mapping

import h11

from gemma4_compile.runtime.server.api_error import ApiError

_HEAD_BYTES = 1 << 16
_PIECES_A_TURN = 256  # a hundredth of a second
_FREE_PIECES = 20_000
_BYTES_A_PIECE = 16  # of more pieces than those, on average


class TooManyPiecesError(h11.RemoteProtocolError):
    """A body in more pieces than any client has a reason for."""


class Parser(h11.Connection):
    """A server's end of a connection.

    Attributes
    ----------
    has_more : this turn has ended before what arrived did
    is_paused : the next request has arrived before the answer to this one was sent
    error : what was wrong with what arrived
    """

    def __init__(self, head_bytes: int | None = None) -> None:
        """Prepare.

        Parameters
        ----------
        head_bytes : most of a head, and of the length of a piece
        """
        super().__init__(h11.SERVER, head_bytes or _HEAD_BYTES)
        self.has_more = False
        self.is_paused = False
        self.error: h11.RemoteProtocolError | None = None
        self._pieces = self._bytes = self._turn = 0

    def begin_turn(self) -> None:
        """Let so many pieces be taken."""
        self._turn = 0
        self.has_more = False

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """As h11's; NEED_DATA at the end of a turn. TooManyPiecesError for them."""
        if self._turn >= _PIECES_A_TURN:
            self.has_more = True
            return h11.NEED_DATA
        try:
            event = super().next_event()
            if isinstance(event, h11.Data):
                self._count(len(event.data))
            if isinstance(event, h11.Request):
                _check_length(event)
        except h11.RemoteProtocolError as error:
            self.error = error
            raise
        if isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
        self.is_paused = event is h11.PAUSED
        return event

    def _count(self, length: int) -> None:
        self._turn += 1
        self._pieces += 1
        self._bytes += length
        if self._pieces > _FREE_PIECES + self._bytes / _BYTES_A_PIECE:
            raise TooManyPiecesError(
                f"the body comes in pieces of {self._bytes / self._pieces:.1f} bytes: send larger "
                "ones, or all of it with its Content-Length"
            )


def _check_length(request: h11.Request) -> None:
    """RemoteProtocolError for a body that a proxy may see another end of (RFC 9112, 6.1)."""
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" not in names:
        return
    if b"content-length" in names or request.http_version < b"1.1":
        raise h11.RemoteProtocolError("Transfer-Encoding beside a Content-Length, or in HTTP/1.0")


def allowing(origin: str, origins: Collection[str]) -> dict[str, str]:
    """Headers with which a page of an origin can read the answer, if it is among those."""
    if origin not in origins and "*" not in origins:
        return {}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": "Retry-After",
        "Vary": "Origin",
    }


def raw_response(error: ApiError, headers: Mapping[str, str] | None = None) -> bytes:
    """The answer to what was not read to its end, after which the connection is closed."""
    response = error.response()
    response.headers.update(headers or {})
    response.headers["Connection"] = "close"
    phrase = http.HTTPStatus(error.status).phrase
    head = [f"HTTP/1.1 {error.status} {phrase}".encode()]
    head += [name + b": " + value for name, value in response.raw_headers]
    return b"\r\n".join([*head, b"", bytes(response.body)])
