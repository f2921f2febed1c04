from __future__ import annotations

import json

import h11
import pytest

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.http_parser import Parser, raw_response

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


def taken(parser: Parser) -> list[object]:
    """The events of one turn."""
    parser.begin_turn()
    events: list[object] = []
    while (event := parser.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
        events.append(event)
    return events


def test_a_turn_has_an_end_and_the_next_goes_on() -> None:
    parser = Parser()
    parser.receive_data(HEAD + b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n")
    turns = [taken(parser)]
    while parser.has_more:
        turns.append(taken(parser))
    assert len(turns) == 4
    events = [event for turn in turns for event in turn]
    assert sum(isinstance(event, h11.Data) for event in events) == 1000
    assert isinstance(events[-1], h11.EndOfMessage)


def test_pieces_are_counted_for_each_request() -> None:
    parser = Parser()
    for _ in range(2):
        parser.receive_data(HEAD)
        for _ in range(60):
            parser.receive_data(b"1\r\nx\r\n" * 250)
            taken(parser)
        parser.receive_data(b"0\r\n\r\n")
        taken(parser)
        parser.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
        parser.send(h11.EndOfMessage())
        parser.start_next_cycle()
    parser.receive_data(HEAD + b"1\r\nx\r\n" * 22_000)
    for _ in range(80):
        taken(parser)
    with pytest.raises(h11.RemoteProtocolError, match=r"pieces of 1\.0 bytes"):
        [taken(parser) for _ in range(10)]
    assert parser.error is not None


def test_an_answer_without_the_application_is_whole() -> None:
    error = ApiError(503, "try again", code="busy")
    head, _, body = raw_response(error).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert b"connection: close" in head.lower()
    assert json.loads(body) == error.body()


@pytest.mark.parametrize("more", [b"Content-Length: 5\r\n", b""], ids=["two lengths", "HTTP/1.0"])
def test_a_body_whose_end_a_proxy_may_see_elsewhere_is_refused(more: bytes) -> None:
    parser = Parser()
    head = HEAD if more else HEAD.replace(b"HTTP/1.1", b"HTTP/1.0")
    parser.receive_data(head[:-2] + more + b"\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\n\r\n")
    with pytest.raises(h11.RemoteProtocolError, match="Transfer-Encoding"):
        taken(parser)
    assert parser.error is not None
