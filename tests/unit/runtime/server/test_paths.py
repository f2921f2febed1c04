"""Paths with what a client's or a proxy's settings add, and those that stay as they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

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
        ("/models.json", "/models.json"),
    ],
)
def test_a_path_is_the_one_that_it_can_be(live: Live, path: str, meant: str) -> None:
    status, _, body = live.request("GET", path)
    assert (status, body.decode()) == (200, meant)


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/", "/V1/models", "/chat", "/v1/modelsx", "/x"])
def test_other_paths_are_told_where_the_api_is(live: Live, path: str) -> None:
    status, _, body = live.request("GET", path)
    assert status == 404
    assert b"served are /v1/models, /v1/chat/completions and Ollama's /api" in body


def test_a_wrong_method_stays_one(live: Live) -> None:
    status, headers, _ = live.request("POST", "/chat/completions", {})
    assert (status, set(headers["allow"].split(", "))) == (405, {"GET", "HEAD"})
