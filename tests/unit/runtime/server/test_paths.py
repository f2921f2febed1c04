"""Paths with what a client's or a proxy's settings add, and those that stay as they are."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gemma4_compile.runtime.server.pages import folder_routes
from gemma4_compile.runtime.server.paths import PathMender
from tests.live_server import Live, serving


async def echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.url.path)


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    own = (
        "/v1/models",
        "/v1/models/{name:path}",
        "/v1/chat/completions",
        "/api/chat",
        "/models.json",
    )
    with serving([Route(path, echo, methods=["GET"]) for path in own]) as live:
        yield live


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/models", "/v1/models"),
        ("//v1/models", "/v1/models"),
        ("/v1//chat/completions", "/v1/chat/completions"),
        ("/v1/models/", "/v1/models"),
        ("/v1/v1/models", "/v1/models"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/llm/v1/chat/completions", "/v1/chat/completions"),
        ("/api/v1/models", "/v1/models"),
        ("/v1/api/chat/", "/api/chat"),
        ("/v1/models/owner/name", "/v1/models/owner/name"),
        ("/v1/models/owner/name/", "/v1/models/owner/name"),
        ("/v1/v1/models/owner/name", "/v1/models/owner/name"),
        ("/llm/v1/models/name", "/v1/models/name"),
        ("/models/name", "/v1/models/name"),
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/models", "/v1/models"),
        ("/api/chat/completions", "/v1/chat/completions"),
        ("/api/models", "/v1/models"),
        ("/api/v0/models/name", "/v1/models/name"),
        ("/openai/deployments/name/chat/completions", "/v1/chat/completions"),
        ("/openai/deployments/name/models", "/v1/models"),
        ("/openai/models", "/v1/models"),
        ("/openai/models/name", "/v1/models/name"),
        ("/v1beta/openai/models", "/v1/models"),
        ("/openai/v1/models", "/v1/models"),
        ("/models.json", "/models.json"),
    ],
)
def test_a_path_is_the_one_that_it_can_be(live: Live, path: str, meant: str) -> None:
    status, _, body = live.request("GET", path)
    assert (status, body.decode()) == (200, meant)


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/", "/V1/models", "/chat", "/v1/modelsx", "/x", "/api", "/x/models"]
)
def test_other_paths_are_told_where_the_api_is(live: Live, path: str) -> None:
    status, _, body = live.request("GET", path)
    assert status == 404
    assert b"served are /v1/models, /v1/chat/completions and Ollama's /api" in body


def test_a_page_has_paths_of_its_own_and_hides_no_method(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    for name in ("index.html", "models/index.html", "chat"):
        (tmp_path / name).write_text(name)
    own = ("/v1/models", "/v1/models/{name:path}", "/v1/chat", "/v1/completions")
    routes = [Route(path, echo, methods=["POST"]) for path in own]
    with serving([*routes, *folder_routes(tmp_path, None)]) as live:
        assert live.request("GET", "/models/")[2] == b"models/index.html"
        assert live.request("GET", "/models/index.html")[2] == b"models/index.html"
        assert live.request("GET", "/chat")[2] == b"chat"
        assert live.request("POST", "/completions", {})[2] == b"/v1/completions"
        status, headers, _ = live.request("GET", "/v1/completions")
        assert (status, headers["allow"]) == (405, "POST")
        assert live.request("GET", "/a%00/v1/models")[0] == 405


def test_a_path_of_many_parts_takes_no_memory() -> None:
    passed: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        passed.append(scope["path"])

    async def nothing(*_: object) -> Any:
        """Neither is there more of a request, nor is anything sent."""

    path = "/v1" * 20_000
    mender = PathMender(app, [Route("/v1/models", echo)])
    tracemalloc.start()
    try:
        asyncio.run(mender({"type": "http", "path": path}, nothing, nothing))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20  # 600 MB with the rest from each part
    finally:
        tracemalloc.stop()
    assert passed == [path]


def test_a_wrong_method_stays_one(live: Live) -> None:
    status, headers, _ = live.request("POST", "/chat/completions", {})
    assert (status, set(headers["allow"].split(", "))) == (405, {"GET", "HEAD"})
