"""Requests that were written to do harm, over real connections: a 4xx, and the server goes on."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from tokenizers import Tokenizer

from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.prompt.prompt import PromptBuilder
from gemma4_compile.runtime.reply.detokenizer import StreamingDetokenizer
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.body import Limits
from gemma4_compile.runtime.server.requests import read_completion_requests
from gemma4_compile.runtime.server.service import Service
from gemma4_compile.runtime.server.worker import Worker
from gemma4_compile.template.watch import Watch
from tests import live_server, scripted_engine
from tests.live_server import LOCAL, PATIENCE_S, TOOL_TEMPLATE, Live, serving_script
from tests.scripted_engine import ScriptedEngine, encode, tiny_tokenizer

QUESTION = [{"role": "user", "content": "Weather in Rome?"}]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving_script(ScriptedEngine(encode("yes")), TOOL_TEMPLATE) as live:
        yield live


def ask(live: Live, **fields: Any) -> tuple[int, dict[str, Any]]:
    body = {"messages": QUESTION, **fields}
    status, _, answer = live.request("POST", "/v1/chat/completions", body)
    return status, json.loads(answer)


def in_schema(schema: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    return {"response_format": form, "max_tokens": 4}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "enum": [-1e308]},
        {"type": "integer", "multipleOf": 2147483648},
        {"$ref": "#"},
        {"const": 10**400},
        {"const": "x" * 1_000_000},
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_a_schema_that_would_do_harm_is_a_bad_request(live: Live, schema: Any) -> None:
    status, answer = ask(live, **in_schema(schema))
    assert status == 400
    assert answer["error"]["param"] == "response_format"
    assert ask(live, **in_schema({"type": "boolean"}))[0] == 200


class Pulse:
    """Asks `/health` all the time; remembers the longest wait.

    In seconds of this process, which has server and clients: on a machine that is busy with other
    work they are as many.
    """

    def __init__(self, live: Live) -> None:
        self.longest_s = 0.0
        self._live = live
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            begin = time.process_time()
            assert self._live.request("GET", "/health")[0] == 200
            self.longest_s = max(self.longest_s, time.process_time() - begin)
            time.sleep(0.01)


LONG: dict[str, dict[str, Any]] = {
    "one letter": {"prompt": "a" * 8_000_000},
    "spaces": {"prompt": " " * 8_000_000},
    "ids": {"prompt": [1] * 2_700_000},
    "prompts": {"prompt": ["a"] * 1_500_000},
    "control tokens": {"messages": [{"role": "user", "content": "<channel|>" * 700_000}]},
    "many parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 2**17}]
    },
    "lists": {"messages": [[]] * 2_000_000},
    "what may stand in the context, and more": {"prompt": "<|channel>" * 1_000},
    "declarations": {
        "messages": QUESTION,
        "tools": [{"type": "function", "function": {"name": "f", "description": "x" * 6_000_000}}],
    },
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_prompt_is_refused_and_stops_nobody(live: Live, name: str) -> None:
    path = "/v1/completions" if "prompt" in LONG[name] else "/v1/chat/completions"
    body = json.dumps(LONG[name]).encode()
    statuses: list[int] = []

    def send() -> None:
        answered = live.request("POST", path, body, Content_Type="application/json")
        statuses.append(answered[0])

    threads = [threading.Thread(target=send) for _ in range(3)]
    begin = time.process_time()
    with Pulse(live) as pulse:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert statuses == [400] * 3
    assert time.process_time() - begin < 8
    assert pulse.longest_s < 2  # with the clients' and the tokenizer's; 0.2 s of its own


def test_prompts_that_are_being_built_count_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, begun = threading.Event(), threading.Semaphore(0)

    def build(*_: object) -> Prompt:
        begun.release()
        assert gate.wait(PATIENCE_S)
        return Prompt([2, 500])

    monkeypatch.setattr(Service, "chat_prompt", build)
    with serving_script(ScriptedEngine(encode("yes")), TOOL_TEMPLATE, queue=2) as live:
        answers: list[int] = []
        threads = [threading.Thread(target=lambda: answers.append(ask(live)[0])) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert begun.acquire(timeout=PATIENCE_S)
        live.until_waiting(2)
        assert not begun.acquire(blocking=False)  # one is built at a time
        status, answer = ask(live)
        assert (status, answer["error"]["code"]) == (429, "queue_full")
        assert live.request("GET", "/health")[0] == 200
        gate.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert answers == [200, 200]
        monkeypatch.undo()
        assert ask(live, temperature=0, max_tokens=1)[0] == 200


def leave(live: Live, path: str, **fields: Any) -> None:
    """Ask, and close the connection once the request waits, without waiting for an answer."""
    body = json.dumps({"messages": QUESTION, **fields}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {LOCAL}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((LOCAL, live.port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        live.until_waiting(1)


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_leave_while_they_wait_give_their_places_back(stream: bool) -> None:
    engine = ScriptedEngine(encode("yes"))
    gate, running = threading.Event(), threading.Event()

    def step() -> None:
        running.set()
        assert gate.wait(PATIENCE_S)

    engine.before_step = step
    with serving_script(engine, TOOL_TEMPLATE, queue=2) as live:
        answers: list[int] = []
        first = threading.Thread(target=lambda: answers.append(ask(live)[0]))
        first.start()
        assert running.wait(PATIENCE_S)
        for _ in range(6):
            leave(live, "/v1/chat/completions", stream=stream, n=3)
            live.until_waiting(0)
        second = threading.Thread(target=lambda: answers.append(ask(live)[0]))
        second.start()
        live.until_waiting(1)
        assert not answers  # the second waits, it was not refused
        gate.set()
        for thread in (first, second):
            thread.join(PATIENCE_S)
        assert answers == [200, 200]


def test_a_client_that_leaves_while_its_prompt_is_built_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, begun = threading.Event(), threading.Semaphore(0)

    def build(*_: object) -> Prompt:
        begun.release()
        assert gate.wait(PATIENCE_S)
        return Prompt([2, 500])

    monkeypatch.setattr(Service, "chat_prompt", build)
    with serving_script(ScriptedEngine(encode("yes")), TOOL_TEMPLATE, queue=1) as live:
        for _ in range(4):
            leave(live, "/v1/chat/completions")
            live.until_waiting(0)
        assert begun.acquire(timeout=PATIENCE_S)
        assert not begun.acquire(blocking=False)  # one is built at a time, the others have left
        answers: list[int] = []
        waits = threading.Thread(target=lambda: answers.append(ask(live)[0]))
        waits.start()
        live.until_waiting(1)
        gate.set()
        waits.join(PATIENCE_S)
        assert answers == [200]
        assert begun.acquire(blocking=False)
        assert not begun.acquire(blocking=False)


def test_a_long_name_of_a_model_is_not_repeated_in_every_chunk(live: Live) -> None:
    body = {"messages": QUESTION, "model": "x" * 1_000_000, "stream": True}
    status, _, answer = live.request("POST", "/v1/chat/completions", body)
    assert status == 200
    assert b"xxx...` does not exist" in answer
    assert len(answer) < 5_000


def test_a_request_that_comes_to_nothing_gives_its_place_back(live: Live) -> None:
    for _ in range(8):  # more than the queue holds
        assert ask(live, messages=[{"role": "user", "content": "x " * 2000}])[0] == 400
    assert ask(live)[0] == 200


def test_a_body_that_does_not_arrive_is_answered_and_the_connection_closed() -> None:
    limits = Limits(body_seconds=0.5)
    with serving_script(ScriptedEngine(encode("yes")), TOOL_TEMPLATE, limits=limits) as live:
        for length in (100, 1_000_000):
            with socket.create_connection((LOCAL, live.port)) as connection:
                connection.settimeout(20)  # less than it is given by default
                head = f"POST /v1/completions HTTP/1.1\r\nHost: {LOCAL}\r\n"
                kind = f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
                connection.sendall((head + kind).encode() + b"x" * (length - 1))
                answer = b""
                while piece := connection.recv(4096):
                    answer += piece
            assert answer.startswith(b"HTTP/1.1 408")
            assert b"body_timeout" in answer
        assert ask(live)[0] == 200


def test_half_bodies_keep_nobody_out_and_are_closed() -> None:
    limits = Limits(body_seconds=1)
    engine, connections = ScriptedEngine(encode("yes")), []
    with serving_script(engine, TOOL_TEMPLATE, limits=limits) as live, ExitStack() as stack:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {LOCAL}\r\nContent-Type: application/json"
        for _ in range(50):
            connection = stack.enter_context(socket.create_connection((LOCAL, live.port)))
            connections.append(connection)
            connection.settimeout(0.01)
            with suppress(TimeoutError):  # nobody reads so much of so many
                connection.sendall(f"{head}\r\nContent-Length: 8000000\r\n\r\n".encode())
                connection.sendall(b"x" * 1_000_000)
        assert ask(live)[0] == 200
        for connection in connections:
            connection.settimeout(20)  # less than they are given by default
            with suppress(ConnectionError):
                while connection.recv(4096):
                    pass


HALF = "\ud800"  # half of a character, which no text can hold
DAMAGED: dict[str, dict[str, Any]] = {
    "a temperature beyond numbers": {"temperature": 10**400},
    "a top_p beyond numbers": {"top_p": -(10**400)},
    "a seed beyond numbers": {"seed": 10**400},
    "half a character": {"messages": [{"role": "user", "content": HALF}]},
    "half a character in a part": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": HALF}]}]
    },
    "half a role": {"messages": [{"role": HALF, "content": "x"}]},
    "half a field": {HALF: 1},
    "half a model": {"model": HALF},
    "half a stop": {"stop": [HALF]},
    "half a user": {"user": HALF},
    "half a schema": {"response_format": {"type": "json_schema", "json_schema": {"name": HALF}}},
    "a long field": {"response_format": {"type": "json_schema", "x" * 100_000: 1}},
    "a listed tool": {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": [1]}}]
    },
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_client_s_mistake_is_a_bad_request(live: Live, name: str) -> None:
    status, answer = ask(live, **DAMAGED[name])
    assert status == 400
    assert len(answer["error"]["message"]) < 4100
    assert ask(live)[0] == 200


@pytest.mark.parametrize(
    "fields", [{"seed": -1}, {"seed": -(2**63)}, {"seed": 2**64 - 1}, {"temperature": 1e-307}]
)
def test_odd_numbers_are_served(live: Live, fields: dict[str, Any]) -> None:
    status, answer = ask(live, top_k=0, top_p=1, **fields)
    assert status == 200
    if "temperature" in fields:
        assert answer["choices"][0]["message"]["content"] == "yes"


@pytest.mark.parametrize("key", ["sesame", "sésame", "\udcff\udc80"])
def test_a_key_may_be_any_bytes(key: str) -> None:
    with serving_script(ScriptedEngine(encode("yes")), TOOL_TEMPLATE, api_key=key) as live:
        for sent, status in ((os.fsencode(key), 200), (b"\xff\xfe", 401), ("ß".encode(), 401)):
            bearer = b"Bearer " + sent
            found, _, _ = live.request("GET", "/v1/models", Authorization=bearer.decode("latin-1"))
            assert found == status
        assert ask(live)[0] == 401


def test_a_tokenizer_that_panics_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = json.loads(tiny_tokenizer().to_str())
    trap = {"type": "Replace", "pattern": {"Regex": "\\w?" * 150 + "(?<=[0-9])"}, "content": ""}
    parsed["decoder"]["decoders"].append(trap)
    hostile = Tokenizer.from_str(json.dumps(parsed))
    monkeypatch.setattr(live_server, "tiny_tokenizer", lambda: hostile)
    monkeypatch.setattr(scripted_engine, "tiny_tokenizer", lambda: hostile)
    text = "Hellotherehowareyouthisisonewordoflettersalone"
    with serving_script(ScriptedEngine(encode(text)), TOOL_TEMPLATE) as live:
        for _ in range(2):
            statuses = [ask(live, stop=["x"])[0], ask(live, max_tokens=1)[0]]
            assert set(statuses) <= {200, 500}
            assert live.request("GET", "/health")[0] == 200
        monkeypatch.setattr(StreamingDetokenizer, "push", panic)
        assert ask(live)[0] == 500
        assert live.request("GET", "/health")[0] == 200


def panic(*_: object) -> str:
    class PanicException(BaseException):
        pass

    raise PanicException("called `Result::unwrap()` on an `Err` value")


def test_a_prompt_without_tokens_is_a_bad_request(monkeypatch: pytest.MonkeyPatch) -> None:
    model = dataclasses.replace(live_server.scripted_model(TOOL_TEMPLATE), bos_id=None)
    service = Service(model, Worker(lambda: pytest.fail("loaded"), 1))
    monkeypatch.setattr(PromptBuilder, "encode_prompt", lambda *_, **__: [])
    (request,) = read_completion_requests({"prompt": "x"}, model.defaults)
    with pytest.raises(ApiError, match="makes no tokens of it") as raised:
        service.completion_prompt(request, Watch())
    assert raised.value.status == 400
