"""Events of a reply, joined, or written with a word in pauses."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from gemma4_compile.runtime.reply.reply import Event, ReasoningDelta, TextDelta
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.anthropic.answers import MessageAnswer
from gemma4_compile.runtime.server.ollama.answers import OllamaAnswer, of_chat
from gemma4_compile.runtime.server.openai_responses.answers import ResponseAnswer
from gemma4_compile.runtime.server.service import Reply
from gemma4_compile.runtime.server.streams import Joined, ReplyWriter, written
from gemma4_compile.runtime.server.tickets import Ticket
from tests.live_server import LOCAL, PATIENCE_S, QUESTION, TOOL_TEMPLATE, ask, serving_script
from tests.scripted_engine import ScriptedEngine, encode


def test_deltas_of_one_kind_are_one() -> None:
    call = ToolCall("f")
    events: list[Event] = [
        ReasoningDelta("a"),
        ReasoningDelta("b"),
        TextDelta("c"),
        call,
        call,
        TextDelta("d"),
        TextDelta("e"),
        ReasoningDelta("f"),
    ]
    joined = Joined()
    for event in events:
        joined.add(event)
    assert joined.close() == [
        ReasoningDelta("ab"),
        TextDelta("c"),
        call,
        call,
        TextDelta("de"),
        ReasoningDelta("f"),
    ]
    assert Joined().close() == []


class Quoting:
    """Writes what it is told; nothing for reasoning."""

    def begin(self) -> Iterable[str]:
        yield "begin"

    def push(self, event: Event) -> Iterable[str]:
        if isinstance(event, TextDelta):
            yield event.text

    def pause(self) -> Iterable[str]:
        yield "pause"

    def end(self, generation: object) -> Iterable[str]:
        yield "end"

    def fail(self, error: Exception) -> Iterable[str]:
        yield f"fail {error}"


def told(items: Iterable[Event | None], writer: ReplyWriter) -> list[str]:
    async def paced_events() -> AsyncIterator[tuple[Event, int] | None]:
        for item in items:
            yield None if item is None else (item, 1)

    ticket: Any = SimpleNamespace(paced_events=paced_events, generation=object())

    async def body() -> list[str]:
        return [part async for part in written(Reply(ticket, None), writer)]

    return asyncio.run(body())


def test_a_pause_is_told_where_nothing_was_written_since_the_one_before() -> None:
    text, thought = TextDelta("a"), ReasoningDelta("b")
    items = [None, None, text, None, None, thought, None, text, text, None]
    assert told(items, Quoting()) == [
        *("begin", "pause", "pause", "a", "pause", "pause", "a", "a", "end")
    ]


@pytest.mark.parametrize(
    ("writer", "expected"),
    [
        (MessageAnswer("m", 1), ['event: ping\ndata: {"type": "ping"}\n\n']),
        (OllamaAnswer("m", of_chat), [" "]),
    ],
)
def test_what_protocols_say_in_a_pause(writer: ReplyWriter, expected: list[str]) -> None:
    assert list(writer.pause()) == expected


def test_a_response_says_once_more_that_it_is_in_progress() -> None:
    writer = ResponseAnswer("m", {"metadata": {}}, lambda _: None)
    (_, before), (now,) = list(writer.begin()), list(writer.pause())
    assert now == before.replace('"sequence_number": 1', '"sequence_number": 2')


@pytest.mark.parametrize(
    ("path", "word", "last"),
    [
        ("/v1/chat/completions", b'"delta": {}', b"data: [DONE]"),
        ("/v1/completions", b'"text": ""', b"data: [DONE]"),
        ("/v1/messages", b"event: ping", b"event: message_stop"),
        ("/v1/responses", b"event: response.in_progress", b"event: response.completed"),
    ],
)
def test_a_stream_is_not_silent_while_its_prompt_is_read(
    path: str, word: bytes, last: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ticket, "pause_s", 0.01)
    engine, may_go_on = ScriptedEngine(encode("It is sunny.")), threading.Event()
    engine.before_step = lambda: may_go_on.wait(PATIENCE_S)
    with serving_script(engine, TOOL_TEMPLATE) as live:
        connection = http.client.HTTPConnection(LOCAL, live.port, timeout=PATIENCE_S)
        asked: dict[str, Any] = {"model": "scripted", "stream": True, "max_tokens": 20}
        if path == "/v1/responses":
            asked = {"model": "scripted", "stream": True, "input": "a"}
        elif path == "/v1/completions":
            asked["prompt"] = "a"
        else:
            asked["messages"] = QUESTION
        connection.request("POST", path, json.dumps(asked), {"Content-Type": "application/json"})
        stream = connection.getresponse()
        assert stream.getheader("X-Accel-Buffering") == "no"
        seen = 0
        while seen < 3:  # the beginning of a stream of messages, or of a response, says it once
            line = stream.readline()
            assert line, "the stream has ended"
            seen += word in line
        may_go_on.set()
        assert last in stream.read()
        connection.close()
        engine.before_step = lambda: time.sleep(0.02)
        chunks = ask(live, stream=True)  # by OpenAI's own client
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert said == "It is sunny."


def test_lines_of_ollama_begin_with_a_space_for_each_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ticket, "pause_s", 0.01)
    engine, may_go_on = ScriptedEngine(encode("It is sunny.")), threading.Event()
    engine.before_step = lambda: may_go_on.wait(PATIENCE_S)
    body = json.dumps({"model": "scripted", "messages": QUESTION})
    with serving_script(engine, TOOL_TEMPLATE) as live:
        connection = http.client.HTTPConnection(LOCAL, live.port, timeout=PATIENCE_S)
        connection.request("POST", "/api/chat", body, {"Content-Type": "application/json"})
        stream = connection.getresponse()
        assert stream.read(3) == b"   "
        may_go_on.set()
        lines = [json.loads(line) for line in stream.read().splitlines()]
        connection.close()
        assert "".join(line["message"]["content"] for line in lines) == "It is sunny."
        ollama = pytest.importorskip("ollama")
        engine.before_step = lambda: time.sleep(0.02)
        pieces = ollama.Client(f"http://{LOCAL}:{live.port}").chat(
            "scripted", QUESTION, stream=True
        )
        assert "".join(piece.message.content or "" for piece in pieces) == "It is sunny."
