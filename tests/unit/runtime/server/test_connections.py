from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gemma4_compile.runtime.server.connections import (
    ConnectionLimits,
    connections_for,
)
from tests.live_server import LOCAL, PATIENCE_S, Live, serving

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
    connection.settimeout(PATIENCE_S)
    return connection


def closed_after(connection: socket.socket) -> float:
    """Wait until the server closes a connection; how many seconds that was."""
    begin = time.monotonic()
    try:
        while connection.recv(1 << 20):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - begin


def send_until_closed(connection: socket.socket, text: str) -> None:
    """Send letter by letter, which would take longer than there is time."""
    try:
        for letter in text:
            connection.sendall(letter.encode())
            time.sleep(0.05)
    except ConnectionError:
        return
    pytest.fail("the connection stays")


@pytest.mark.parametrize("sent", ["", "GET", HEAD])
def test_a_connection_without_a_request_is_closed(live: Live, sent: str) -> None:
    with connect(live) as connection:
        connection.sendall(sent.encode())
        assert HEAD_SECONDS / 2 < closed_after(connection) < ConnectionLimits().head_seconds


def test_a_head_that_comes_byte_by_byte_gets_no_more_time(live: Live) -> None:
    with connect(live) as connection:
        send_until_closed(connection, HEAD * 4)


def test_a_body_that_nobody_waits_for_gets_no_more_time(live: Live) -> None:
    with connect(live) as connection:
        connection.sendall(f"{HEAD}Content-Length: 100000\r\n\r\n".encode())
        assert connection.recv(12) == b"HTTP/1.1 200"
        send_until_closed(connection, "x" * 100)


def test_a_connection_is_kept_for_a_second_request() -> None:
    limits = ConnectionLimits(head_seconds=6)
    with serving([], connections=limits) as live, connect(live) as connection:
        for turn in range(3):
            connection.sendall(f"{HEAD}\r\n".encode())
            answer = b""
            while b"ok" not in answer:
                piece = connection.recv(4096)
                assert piece
                answer += piece
            if turn < 2:  # more than it has in all, if answers gave it no time
                time.sleep(3.2)


def test_where_there_are_too_many_the_oldest_that_waits_is_closed() -> None:
    limits = ConnectionLimits(connections=20, head_seconds=2 * PATIENCE_S)
    with serving([], connections=limits) as live, ExitStack() as stack:
        half = [stack.enter_context(connect(live)) for _ in range(50)]
        assert live.request("GET", "/health")[0] == 200
        assert closed_after(half[0]) < PATIENCE_S


def test_a_client_that_does_not_read_is_left(live: Live) -> None:
    with connect(live) as connection:
        connection.sendall(f"GET /large HTTP/1.1\r\nHost: {LOCAL}\r\n\r\n".encode())
        assert connection.recv(12) == b"HTTP/1.1 200"
        time.sleep(5)  # ten times what it has: nothing tells when it is left
        received = 0
        with suppress(ConnectionError):
            while piece := connection.recv(1 << 20):
                received += len(piece)
        assert received < 64 << 20


def answer_to(connection: socket.socket) -> bytes:
    """All that comes, to the end of the connection."""
    answer = b""
    while piece := connection.recv(1 << 16):
        answer += piece
    return answer


def test_more_connections_than_are_served_hear_why() -> None:
    gate, begun = threading.Event(), threading.Semaphore(0)

    async def wait(_: Request) -> Response:
        begun.release()
        await asyncio.to_thread(gate.wait, PATIENCE_S)
        return PlainTextResponse("served")

    limits = ConnectionLimits(connections=5)
    post = f"POST /wait HTTP/1.1\r\nHost: {LOCAL}\r\nContent-Length: 200000\r\n\r\n".encode()
    with (
        serving([Route("/wait", wait, methods=["POST"])], connections=limits) as live,
        ExitStack() as stack,
    ):
        served = [stack.enter_context(connect(live)) for _ in range(5)]
        for connection in served:
            connection.sendall(post + b"x" * 200_000)
        assert all(begun.acquire(timeout=PATIENCE_S) for _ in served)
        for _ in range(10):  # one sends its request at once, another begins to
            with connect(live) as sends, connect(live) as begins:
                sends.sendall(post + b"x" * 200_000)
                begins.sendall(post[:20])
                for each in (sends, begins):
                    head, _, body = answer_to(each).partition(b"\r\n\r\n")
                    lines = head.lower().split(b"\r\n")
                    assert lines[0] == b"http/1.1 503 service unavailable"
                    assert {b"retry-after: 5", b"content-type: application/json"} <= set(lines)
                    assert json.loads(body)["error"]["code"] == "busy"
        gate.set()
        for connection in served:
            assert connection.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize(
    ("origin", "may"), [("https://ours.example", True), ("https://x.example", False)]
)
def test_a_page_of_an_allowed_origin_can_read_why_its_connection_is_refused(
    origin: str, may: bool
) -> None:
    limits = ConnectionLimits(connections=1)
    head = f"POST / HTTP/1.1\r\nHost: {LOCAL}\r\norigin: {origin}\r\n"
    with (
        serving([], connections=limits, origins=["https://ours.example"]) as live,
        connect(live) as waits,
    ):
        waits.sendall(head.encode())
        time.sleep(2)  # until it is read, which nothing tells
        with connect(live):
            lines = answer_to(waits).lower().split(b"\r\n")
    assert lines[0].startswith(b"http/1.1 503 ")
    assert (f"access-control-allow-origin: {origin}".encode() in lines) == may
    assert (b"access-control-expose-headers: retry-after" in lines) == may


def test_more_refused_than_have_time_to_hear_are_told_at_once() -> None:
    limits = ConnectionLimits(connections=1, refused=1)
    with serving([], connections=limits) as live, ExitStack() as stack:
        waiting = [stack.enter_context(connect(live)) for _ in range(8)]
        told = [answer_to(each) for each in waiting[:-1]]
    assert all(each.startswith(b"HTTP/1.1 503 ") for each in told)
    assert all(b"connections are served already" in each for each in told)


async def length(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


POST = f"POST /length HTTP/1.1\r\nHost: {LOCAL}\r\nConnection: close\r\n".encode()
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def in_chunks(body: bytes, size: int) -> bytes:
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize(("count", "size"), [(10_000, 1), (300_000, 16), (5_000_000, 3000)])
def test_a_body_in_pieces_is_taken(count: int, size: int) -> None:
    with serving([Route("/length", length, methods=["POST"])]) as live, connect(live) as connection:
        connection.sendall(CHUNKED + in_chunks(b"x" * count, size))
        assert answer_to(connection).endswith(b"\r\n\r\n%d" % count)


def test_a_body_in_a_million_pieces_holds_nobody_and_is_refused() -> None:
    longest = 0.0
    answers = []

    def send(server: Live) -> None:
        with connect(server) as connection:
            with suppress(ConnectionError):  # it is refused long before its end
                connection.sendall(CHUNKED + in_chunks(b"x" * 1_000_000, 1))
            answers.append(answer_to(connection))

    with serving([Route("/length", length, methods=["POST"])]) as server:
        threads = [threading.Thread(target=send, args=(server,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            begin = time.process_time()
            assert server.request("GET", "/health")[0] == 200
            longest = max(longest, time.process_time() - begin)
    # In seconds of this process, which has the clients, too; it was as long as all bodies take.
    assert longest < 2
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 400 Bad Request")
        assert b'"message":"the body comes in pieces of 1.0 bytes' in answer


def test_requests_one_after_another_in_one_piece_are_all_answered() -> None:
    body = in_chunks(b"x" * 2000, 1)
    first = CHUNKED.replace(b"Connection: close\r\n", b"") + body
    with serving([Route("/length", length, methods=["POST"])]) as live, connect(live) as connection:
        connection.sendall(first * 5 + CHUNKED + body)
        assert answer_to(connection).count(b"\r\n\r\n2000") == 6


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000, 431),
        (CHUNKED + b"no length\r\n", 400),
    ],
)
def test_what_is_no_request_hears_why_in_json(live: Live, sent: bytes, status: int) -> None:
    with connect(live) as connection:
        connection.sendall(sent)
        head, _, body = answer_to(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(body)["error"]["message"].startswith("this is no request of HTTP: ")


@pytest.fixture
def descriptors() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_long_queue_has_connections_and_descriptors_for_all(
    descriptors: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = min(512, descriptors[0])
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, descriptors[1]))
    limits, lacking = connections_for(16)
    assert (limits.connections, lacking) == (216, 0)
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert limits.connections + limits.refused < allowed
    for most, connections in ((1500, 1200), (1000, None)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, most=most: (most, most))
        monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
        limits, lacking = connections_for(1000)
        assert limits.connections + lacking == 1200
        assert limits.connections + limits.refused < most
        assert connections in (None, limits.connections)


def test_a_websocket_is_answered_as_http_and_asks_for_no_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "warning", said.append)
    asked = CHUNKED.replace(b"Connection: close", b"Connection: Upgrade\r\nUpgrade: websocket")
    with serving([Route("/length", length, methods=["POST"])]) as live, connect(live) as connection:
        connection.sendall(asked + in_chunks(b"x", 1) + CHUNKED + in_chunks(b"x", 1))
        assert answer_to(connection).count(b"\r\n\r\n1") == 2
    assert said == []


def test_what_a_proxy_may_take_for_a_body_is_no_request() -> None:
    hidden = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    body = b"0\r\n\r\n" + hidden
    head = CHUNKED.replace(b"Connection: close", b"Content-Length: %d" % len(body))
    with serving([Route("/length", length, methods=["POST"])]) as live, connect(live) as connection:
        connection.sendall(head + body)
        answer = answer_to(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
