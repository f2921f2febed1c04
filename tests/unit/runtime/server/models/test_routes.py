"""Requests of every protocol, to the model that each names."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.routing import Router
from starlette.types import ASGIApp

from gemma4_compile.runtime.protocols import api_routes
from gemma4_compile.runtime.server.body import Limits
from gemma4_compile.runtime.server.models.offered import OfferedModel
from gemma4_compile.runtime.server.models.pool import ModelPool
from gemma4_compile.runtime.server.models.routes import model_routes, models_health
from gemma4_compile.runtime.server.openai_responses.store import ResponseStore
from gemma4_compile.runtime.server.service import Service
from gemma4_compile.runtime.server.worker import Worker, WorkerState
from tests.live_server import QUESTION, TOOL_TEMPLATE, Live, scripted_model, serving, until
from tests.marks import slow_unless
from tests.scripted_engine import Float32Array, ScriptedEngine, encode, scripted_slots

KEY = "secret"
BEARER = {"Authorization": f"Bearer {KEY}"}
NAMES = ("first", "second")


class Scripted:
    """A model that says its own name."""

    nbytes = 1

    def __init__(self, model: OfferedModel, limits: Limits, store: ResponseStore) -> None:
        name = model.card.name
        self._worker = Worker(lambda: scripted_slots(ScriptedEngine(encode(f"I am {name}."))), 4)
        self._worker.start()
        service = Service(replace(scripted_model(TOOL_TEMPLATE), name=name), self._worker)
        self.app: ASGIApp = Router(api_routes(service, limits, KEY, store))

    @property
    def is_alive(self) -> bool:
        return self._worker.is_alive

    def state(self) -> WorkerState:
        return self._worker.state()

    def begin_stop(self) -> None:
        self._worker.begin_stop()

    def close(self) -> None:
        self._worker.stop()


@pytest.fixture
def live() -> Iterator[Live]:
    """Two models, of which one at a time has room."""
    limits, store = Limits(body_bytes=1 << 16), ResponseStore()
    card = scripted_model(TOOL_TEMPLATE).card
    models = [OfferedModel(replace(card, name=name), "cpu", 1) for name in NAMES]
    pool = ModelPool(
        models,
        lambda model, _: Scripted(model, limits, store),
        memory=1,
        free=lambda _: None,
        idle_s=3600,
        queue=4,
    )
    try:
        routes = model_routes(pool, limits, KEY, store, strict_request=True)
        with serving(routes, health=models_health(pool, KEY)) as live:
            yield live
    finally:
        pool.close()


def asked(live: Live, path: str, body: Any = None, method: str = "POST") -> tuple[int, Any]:
    status, _, answer = live.request(method, path, body, **BEARER)
    return status, json.loads(answer)


def statuses(live: Live) -> dict[str, str]:
    found = asked(live, "/v1/models", method="GET")[1]["data"]
    return {one["id"]: one["status"]["value"] for one in found}


def test_a_packed_body_is_unpacked_once(live: Live) -> None:
    body = gzip.compress(json.dumps({"model": "second", "messages": QUESTION}).encode())
    headers = {"Content_Encoding": "gzip", "Content_Type": "application/json", **BEARER}
    status, _, answer = live.request("POST", "/v1/chat/completions", body, **headers)
    assert (status, json.loads(answer)["model"]) == (200, "second")


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": QUESTION},
    "/v1/completions": {"prompt": "Who?", "max_tokens": 4},
    "/v1/responses": {"input": "Who?"},
    "/v1/messages": {"messages": QUESTION, "max_tokens": 20},
    "/api/chat": {"messages": QUESTION, "stream": False},
    "/api/generate": {"prompt": "Who?", "stream": False},
}


@pytest.mark.parametrize("path", slow_unless(lambda path: "/chat" in path, BODIES))
def test_each_request_goes_to_the_model_that_it_names(live: Live, path: str) -> None:
    for name in ("second", "first", "second:latest"):
        status, answer = asked(live, path, {"model": name, **BODIES[path]})
        assert status == 200
        assert answer["model"] == name.partition(":")[0]
        assert f"I am {name[:4]}" in json.dumps(answer)
        assert statuses(live)[name.partition(":")[0]] == "loaded"
    assert sorted(statuses(live).values()) == ["loaded", "unloaded"]


def test_without_a_name_the_first_one_answers(live: Live) -> None:
    status, answer = asked(live, "/v1/chat/completions", {"messages": QUESTION})
    assert (status, answer["model"]) == (200, "first")


def test_streams_end_before_their_model_leaves(live: Live) -> None:
    client = live.client(KEY)
    stream = client.chat.completions.create(model="first", messages=QUESTION, stream=True)
    begun = next(iter(stream))
    assert begun.model == "first"
    words = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert words == "I am first."
    other = client.chat.completions.create(model="second", messages=QUESTION)
    assert other.choices[0].message.content == "I am second."


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/chat/completions", lambda answer: answer["error"]["message"]),
        ("/v1/messages", lambda answer: answer["error"]["message"]),
        ("/api/chat", lambda answer: answer["error"]),
    ],
)
def test_an_unknown_name_is_refused_in_the_protocols_form(
    live: Live, path: str, message: Any
) -> None:
    status, answer = asked(live, path, {"model": "third" * 50, **BODIES[path]})
    assert status == 404
    assert "this server has `first`, `second`" in message(answer)
    assert len(message(answer)) < 300
    assert statuses(live) == {"first": "unloaded", "second": "unloaded"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[1]", 400),
        (b'{"model": 7}', 400),
        (b'{"model": "first"}', 400),
        (b" " * (1 << 17), 413),
    ],
)
def test_bad_bodies_are_refused(live: Live, body: bytes, status: int) -> None:
    headers = {**BEARER, "Content-Type": "application/json"}
    found, _, answer = live.request("POST", "/v1/chat/completions", body, **headers)
    assert found == status
    assert json.loads(answer)["error"]["message"]


def test_nobody_without_the_key_learns_or_loads_anything(live: Live) -> None:
    for method, path in (
        ("GET", "/v1/models"),
        ("GET", "/slots"),
        ("GET", "/metrics"),
        ("GET", "/api/tags"),
        ("POST", "/v1/chat/completions"),
    ):
        assert live.request(method, path, {"model": "first", "messages": QUESTION})[0] == 401
    assert statuses(live) == {"first": "unloaded", "second": "unloaded"}


def test_a_response_is_gone_on_from_by_another_model(live: Live) -> None:
    _, first = asked(live, "/v1/responses", {"model": "first", "input": "Who?"})
    more = {"model": "second", "input": "And you?", "previous_response_id": first["id"]}
    assert asked(live, "/v1/responses", more)[1]["model"] == "second"
    path = f"/v1/responses/{first['id']}"
    assert asked(live, path, method="GET")[1]["model"] == "first"
    assert asked(live, path, method="DELETE")[1]["deleted"]
    assert asked(live, path, method="GET")[0] == 404


def test_lists_of_every_protocol_have_all_models(live: Live) -> None:
    asked(live, "/v1/chat/completions", {"model": "second", "messages": QUESTION})
    assert statuses(live) == {"first": "unloaded", "second": "loaded"}
    assert asked(live, "/v1/models/second", method="GET")[1]["id"] == "second"
    assert asked(live, "/v1/models/third", method="GET")[0] == 404
    tags = asked(live, "/api/tags", method="GET")[1]["models"]
    assert [one["name"] for one in tags] == ["first:latest", "second:latest"]
    running = asked(live, "/api/ps", method="GET")[1]["models"]
    assert [one["name"] for one in running] == ["second:latest"]
    assert running[0]["expires_at"] < "9999"
    shown = asked(live, "/api/show", {"model": "first"})[1]
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert statuses(live)["first"] == "unloaded"
    slots = asked(live, "/slots", method="GET")[1]["models"]
    assert slots["first"] == {"status": "unloaded"}
    assert slots["second"]["slots"][0]["doing"] == "free"
    metrics = live.request("GET", "/metrics", **BEARER)[2].decode()
    assert 'gemma4_replies_total{end="stop",model="second"} 1.0' in metrics
    assert 'gemma4_model_loaded{model="first"} 0.0' in metrics
    assert 'gemma4_model_loads_total{model="second"} 1.0' in metrics


def test_health_names_the_models_to_who_brings_the_key(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, decode = threading.Event(), ScriptedEngine.decode

    def gated(self: ScriptedEngine, token_id: int) -> Float32Array:
        answered.wait(60)
        return decode(self, token_id)

    monkeypatch.setattr(ScriptedEngine, "decode", gated)
    status, _, answer = live.request("GET", "/health")
    assert (status, json.loads(answer)) == (200, {"status": "ok"})
    unloaded = {"status": "unloaded"}
    assert asked(live, "/health", method="GET") == (
        200,
        {"status": "ok", "models": {"first": unloaded, "second": unloaded}},
    )
    stream = live.client(KEY).chat.completions.create(
        model="second", messages=QUESTION, stream=True
    )
    next(iter(stream))
    answer = asked(live, "/health", method="GET")[1]
    assert answer["models"]["second"] == {"status": "loaded", "idle": False}
    answered.set()
    assert sum(1 for _ in stream) > 0
    # The client has read its end before the server has done with it.
    while not (answer := asked(live, "/health", method="GET")[1])["models"]["second"]["idle"]:
        time.sleep(0.01)
    assert answer["models"] == {"first": unloaded, "second": {"status": "loaded", "idle": True}}


def test_show_refuses_what_it_does_not_know_where_requests_are_strict(live: Live) -> None:
    assert asked(live, "/api/show", {"model": "first", "verbose": True})[0] == 200
    status, answer = asked(live, "/api/show", {"model": "first", "colour": "blue"})
    assert status == 400
    assert "colour" in answer["error"]


def test_ollamas_clients_let_a_model_go(live: Live) -> None:
    asked(live, "/api/generate", {"model": "first"})
    assert statuses(live)["first"] == "loaded"
    status, answer = asked(live, "/api/generate", {"model": "first", "keep_alive": 0})
    assert (status, answer["done_reason"]) == (200, "unload")
    assert statuses(live)["first"] == "unloaded"


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_model_goes_once_it_has_answered(live: Live, path: str) -> None:
    status, answer = asked(live, path, {"model": "first", "keep_alive": 0, **BODIES[path]})
    assert (status, answer["done"], answer["done_reason"]) == (200, True, "stop")
    until(lambda: statuses(live)["first"] == "unloaded", "it goes after its answer")


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/embeddings", 400), ("/v1/messages/batches", 404), ("/api/pull", 400)]
)
def test_what_no_model_does_is_refused_without_one(live: Live, path: str, status: int) -> None:
    found, answer = asked(live, path, {"model": "first", "input": "a"})
    assert found == status
    assert answer["error"]
    assert statuses(live) == {"first": "unloaded", "second": "unloaded"}
