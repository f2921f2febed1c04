"""Ids of requests, as official clients read them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import anthropic
import openai
import pytest

from tests.live_server import QUESTION, TOOL_TEMPLATE, Live, serving_script
from tests.scripted_engine import ScriptedEngine, encode


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving_script(ScriptedEngine(encode("Sunny.")), TOOL_TEMPLATE) as live:
        yield live


def test_openai_s_client_knows_the_id_of_an_answer_and_of_an_error(live: Live) -> None:
    chats = live.client().chat.completions
    first, second = (chats.create(model="scripted", messages=QUESTION) for _ in range(2))
    assert first._request_id is not None
    assert first._request_id.startswith("req_")
    assert first._request_id != second._request_id
    with pytest.raises(openai.BadRequestError) as caught:
        chats.create(model="scripted", messages=[])
    assert (caught.value.request_id or "").startswith("req_")


def test_anthropic_s_client_does_so_and_finds_it_in_the_error(live: Live) -> None:
    client = anthropic.Anthropic(base_url=live.url[:-3], api_key="none", max_retries=0)
    message = client.messages.create(model="scripted", max_tokens=9, messages=QUESTION)
    assert (message._request_id or "").startswith("req_")
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model="scripted", max_tokens=9, messages=[])
    body = caught.value.body
    assert isinstance(body, dict)
    assert body["request_id"] == caught.value.request_id
    assert caught.value.request_id is not None


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [("a-1.b:2/c", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("", False)],
)
def test_an_id_that_came_with_a_request_stays(live: Live, given: str, is_kept: bool) -> None:
    body = {"messages": QUESTION, "stream": True}
    for method, path, sent in (
        ("POST", "/v1/chat/completions", body),
        ("GET", "/v1/models", None),
        ("GET", "/v1/none", None),
        ("GET", "/api/version", None),
    ):
        headers = live.request(method, path, sent, X_Request_Id=given)[1]
        assert headers["x-request-id"] == headers["request-id"]
        assert (headers["x-request-id"] == given) == is_kept
    error = live.request("POST", "/v1/messages", {}, X_Request_Id=given)
    assert json.loads(error[2])["request_id"] == error[1]["request-id"]
