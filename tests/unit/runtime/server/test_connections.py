from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gemma4_compile.runtime.server.connections import ConnectionLimits
from tests.live_server import LOCAL, Live, serving

HEAD_SECONDS = 0.6
HEAD = f"GET /health HTTP/1.1\r\nHost: {LOCAL}\r\n"


async def large(_: Request) -> Response:
    return PlainTextResponse("x" * (64 << 20))


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    limits = ConnectionLimits(connections=20, head_seconds=HEAD_SECONDS, stall_seconds=0.5)
    with serving([Route("/large", large)], connections=limits) as live:
        yield live


def connect(live: Live) -> socket.socket:
    connection = socket.create_connection((LOCAL, live.port))
    connection.settimeout(5)
    return connection


def closed_after(connection: socket.socket) -> float:
    begin = time.monotonic()
    try:
        while connection.recv(1 << 20):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - begin


def sent_until_closed(connection: socket.socket, text: str) -> float:
    """Send letter by letter; seconds until that fails."""
    begin = time.monotonic()
    try:
        for letter in text:
            connection.sendall(letter.encode())
            time.sleep(0.05)
    except ConnectionError:
        return time.monotonic() - begin
    pytest.fail("the connection stays")


@pytest.mark.parametrize("sent", ["", "GET", HEAD])
def test_a_connection_without_a_request_is_closed(live: Live, sent: str) -> None:
    with connect(live) as connection:
        connection.sendall(sent.encode())
        assert HEAD_SECONDS / 2 < closed_after(connection) < 3


def test_a_head_that_comes_byte_by_byte_gets_no_more_time(live: Live) -> None:
    with connect(live) as connection:
        assert sent_until_closed(connection, HEAD * 4) < 3


def test_a_body_that_nobody_waits_for_gets_no_more_time(live: Live) -> None:
    with connect(live) as connection:
        connection.sendall(f"{HEAD}Content-Length: 100000\r\n\r\n".encode())
        assert connection.recv(12) == b"HTTP/1.1 200"
        assert sent_until_closed(connection, "x" * 100) < 3


def test_a_connection_is_kept_for_a_second_request(live: Live) -> None:
    with connect(live) as connection:
        for _ in range(3):
            connection.sendall(f"{HEAD}\r\n".encode())
            answer = b""
            while b"ok" not in answer:
                piece = connection.recv(4096)
                assert piece
                answer += piece
            time.sleep(HEAD_SECONDS / 2)


def test_where_there_are_too_many_the_oldest_that_waits_is_closed(live: Live) -> None:
    with ExitStack() as stack:
        half = [stack.enter_context(connect(live)) for _ in range(50)]
        begin = time.monotonic()
        assert live.request("GET", "/health")[0] == 200
        assert closed_after(half[0]) < HEAD_SECONDS / 2
        assert time.monotonic() - begin < 2


def test_a_client_that_does_not_read_is_left(live: Live) -> None:
    with connect(live) as connection:
        connection.sendall(f"GET /large HTTP/1.1\r\nHost: {LOCAL}\r\n\r\n".encode())
        assert connection.recv(12) == b"HTTP/1.1 200"
        time.sleep(1.5)
        received = 0
        with suppress(ConnectionError):
            while piece := connection.recv(1 << 20):
                received += len(piece)
        assert received < 64 << 20
