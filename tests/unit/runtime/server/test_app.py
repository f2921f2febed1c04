from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.live_server import Live, serving

OUR_PAGE = "https://chat.example"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving([], origins=[OUR_PAGE]) as live:
        yield live


def test_health(live: Live) -> None:
    status, _, body = live.request("GET", "/health")
    assert (status, json.loads(body)) == (200, {"status": "ok"})


def test_health_of_an_engine_that_has_ended() -> None:
    with serving([], is_alive=lambda: False) as live:
        assert live.request("GET", "/health")[0] == 503


def test_pages_of_the_allowed_origin_may_ask_and_no_others(live: Live) -> None:
    asked = {"Access_Control_Request_Method": "POST"}
    status, headers, _ = live.request("OPTIONS", "/health", Origin=OUR_PAGE, **asked)
    assert (status, headers["access-control-allow-origin"]) == (200, OUR_PAGE)
    # What OpenAI's client for JavaScript sends from a page.
    wanted = ["authorization", "content-type", "x-stainless-arch", "x-stainless-retry-count"]
    status, headers, _ = live.request(
        "OPTIONS",
        "/health",
        Origin=OUR_PAGE,
        Access_Control_Request_Headers=", ".join(wanted),
        **asked,
    )
    assert status == 200
    assert set(wanted) <= set(headers["access-control-allow-headers"].split(", "))
    status, headers, _ = live.request("OPTIONS", "/health", Origin="https://x.example", **asked)
    assert status == 400
    assert "access-control-allow-origin" not in headers


def test_a_page_of_the_allowed_origin_may_reach_into_a_private_network(live: Live) -> None:
    """As Chrome asks before a page of the internet sends something to this machine."""
    asked = {
        "Access_Control_Request_Method": "POST",
        "Access_Control_Request_Private_Network": "true",
    }
    status, headers, _ = live.request("OPTIONS", "/health", Origin=OUR_PAGE, **asked)
    assert (status, headers["access-control-allow-private-network"]) == (200, "true")
    status, headers, _ = live.request("OPTIONS", "/health", Origin="https://x.example", **asked)
    assert status == 400
    assert "access-control-allow-origin" not in headers


def test_a_page_of_the_allowed_origin_can_read_why_it_is_refused(live: Live) -> None:
    """Its browser asks first, and hands it an answer only if the answer names its origin."""
    sent = {"Origin": OUR_PAGE, "Host": "pc.example"}
    asked = {"Access_Control_Request_Method": "POST"}
    assert live.request("OPTIONS", "/health", **sent, **asked)[0] == 200
    status, headers, body = live.request("POST", "/health", {}, **sent)
    assert (status, headers["access-control-allow-origin"]) == (421, OUR_PAGE)
    assert "--allow-host pc.example" in json.loads(body)["error"]["message"]
    assert headers["access-control-expose-headers"] == "Retry-After, X-Request-Id, Request-Id"
    status, headers, _ = live.request(
        "GET", "/health", Host="pc.example", Origin="https://x.example"
    )
    assert status == 421
    assert "access-control-allow-origin" not in headers


def test_errors_have_one_form(live: Live) -> None:
    status, _, body = live.request("GET", "/nowhere")
    assert status == 404
    assert json.loads(body)["error"]["message"] == "GET /nowhere: Not Found"


@pytest.mark.parametrize(
    ("path", "headers", "kind"),
    [
        ("/v1/files", {}, "openai"),
        ("/v1/files", {"Anthropic_Version": "2023-06-01"}, "anthropic"),
        ("/v1/messages/other", {}, "anthropic"),
        ("/api/web_search", {}, "ollama"),
        ("/api/v1/rerank", {}, "openai"),
    ],
)
def test_an_unknown_path_is_told_in_the_words_of_its_protocol(
    live: Live, path: str, headers: dict[str, str], kind: str
) -> None:
    status, _, body = live.request("POST", path, {}, **headers)
    answer = json.loads(body)
    error = answer["error"]
    assert status == 404
    assert (answer.get("type") == "error") == (kind == "anthropic")
    if kind == "ollama":
        assert isinstance(error, str)
    else:
        expected = "not_found_error" if kind == "anthropic" else "invalid_request_error"
        assert error["type"] == expected
    assert "Not Found" in (error if kind == "ollama" else error["message"])
