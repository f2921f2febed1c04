"""A server on a free port of this machine, over a scripted engine."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai
import uvicorn
from starlette.routing import BaseRoute

from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.engine.generation import Generator
from gemma4_compile.runtime.engine.sequence_engine import EngineSequences
from gemma4_compile.runtime.engine.slots import Slots
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.protocols import api_routes, refuse
from gemma4_compile.runtime.sampling.sampling import SamplingOptions
from gemma4_compile.runtime.server.app import create_app
from gemma4_compile.runtime.server.body import Limits
from gemma4_compile.runtime.server.connections import ConnectionLimits, server_config
from gemma4_compile.runtime.server.service import Model, Service
from gemma4_compile.runtime.server.worker import Worker
from gemma4_compile.template.chat_template import ChatTemplate
from tests.scripted_engine import (
    END_OF_TURN,
    VOCABULARY,
    ScriptedEngine,
    scripted_slots,
    tiny_tokenizer,
)

LOCAL = "127.0.0.1"
PATIENCE_S = 120  # for what is sure to come, on a machine that is busy with other work


TOOL_TEMPLATE = Path(__file__).with_name("tool_template.jinja").read_text("utf-8")
QUESTION: list[Any] = [{"role": "user", "content": "Weather in Rome?"}]


def until(condition: Callable[[], bool], said: str) -> None:
    """Wait for what is sure to come."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"expected: {said}"
        time.sleep(0.01)


@dataclass(frozen=True)
class Live:
    """A running server; `waiting` is how many requests wait for their turn."""

    port: int
    waiting: Callable[[], int] = lambda: 0

    @property
    def url(self) -> str:
        return f"http://{LOCAL}:{self.port}/v1"

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, timeout=PATIENCE_S)

    def until_waiting(self, count: int) -> None:
        """Wait until the server has heard of all that came before, and so many requests wait."""
        assert self.request("GET", "/health")[0] == 200
        until(lambda: self.waiting() == count, f"{count} requests wait")

    def request(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of one request; a body that is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection(LOCAL, self.port, timeout=PATIENCE_S)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, answer


def ask(live: Live, **options: Any) -> Any:
    """Ask `QUESTION` by the `openai` client."""
    options = {"model": "scripted", "messages": QUESTION, **options}
    return live.client().chat.completions.create(**options)


@contextmanager
def serving(
    routes: Sequence[BaseRoute], *, connections: ConnectionLimits | None = None, **options: Any
) -> Iterator[Live]:
    """Run an application of these routes; other options are those of `create_app`."""
    app = create_app(routes, **{"refuse": refuse, **options})
    config = server_config(
        app,
        connections or ConnectionLimits(),
        options.get("origins", ()),
        host=LOCAL,
        port=0,
        log_level="critical",
    )
    socket = config.bind_socket()
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([socket],), daemon=True)
    thread.start()
    try:
        end = time.monotonic() + PATIENCE_S
        while not server.started:
            assert time.monotonic() < end, "the server does not start"
            time.sleep(0.01)
        yield Live(socket.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        socket.close()


@contextmanager
def serving_package(package: Package, name: str, sequences: int = 1) -> Iterator[Live]:
    """Run the API over a package, with so many slots."""
    model = Model.of(package, name, None)
    engine = EngineSequences(Engine(package, sequences=sequences))
    slots = Slots(engine, lambda one: Generator(one, model.tokenizer, package.stop_token_ids))
    worker = Worker(lambda: slots, 4)
    worker.start()
    try:
        routes = api_routes(Service(model, worker), Limits(), None)
        with serving(routes, is_alive=lambda: worker.is_alive) as live:
            yield live
    finally:
        worker.stop()


def scripted_model(template: str | None) -> Model:
    """A model whose tokenizer is that of `tiny`, under a chat template or without one."""
    return Model(
        name="scripted",
        tokenizer=tiny_tokenizer(),
        template=None if template is None else ChatTemplate(template, {"bos_token": "<bos>"}),
        defaults=SamplingOptions(temperature=0.0),
        context_length=512,
        vocab_size=VOCABULARY,
        stop_ids=frozenset({1, END_OF_TURN}),
        bos_id=2,
    )


@contextmanager
def serving_script(
    engine: ScriptedEngine,
    template: str | None,
    *,
    queue: int = 4,
    limits: Limits | None = None,
    api_key: str | None = None,
    strict_model: bool = False,
    strict_request: bool = False,
    media: MediaSettings | None = None,
    media_hosts: Sequence[str] = (),
) -> Iterator[Live]:
    """Run the API over a scripted engine."""
    worker = Worker(lambda: scripted_slots(engine, media=media), queue)
    worker.start()
    model = replace(
        scripted_model(template),
        media=media or MediaSettings(),
        context_length=engine.context_length,
    )
    service = Service(
        model,
        worker,
        strict_model=strict_model,
        strict_request=strict_request,
        media_hosts=media_hosts,
    )
    try:
        routes = api_routes(service, limits or Limits(), api_key)
        with serving(routes, is_alive=lambda: worker.is_alive) as live:
            yield replace(live, waiting=lambda: worker._waiting)
    finally:
        worker.stop()
