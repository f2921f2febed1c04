"""What tools show a package that does not take it, over the API."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gemma4_compile.runtime.prompt.known_pieces import Encode, KnownPieces
from gemma4_compile.runtime.server import api
from gemma4_compile.runtime.server.anthropic import endpoints as anthropic_endpoints
from gemma4_compile.runtime.server.ollama import endpoints as ollama_endpoints
from gemma4_compile.runtime.server.openai_responses import endpoints as responses_endpoints
from gemma4_compile.tiny.checkpoint import shipped_file
from tests.live_server import serving_script
from tests.scripted_engine import ScriptedEngine, tiny_tokenizer
from tests.unit.runtime.server.test_media import audio, image, text

TEMPLATE = shipped_file("chat_template.jinja").decode()


def shown_by_a_tool(*parts: Any) -> list[Any]:
    call = {"id": "c", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": list(parts)},
    ]


def test_what_a_tool_shows_and_the_package_does_not_take_is_told_in_words() -> None:
    """Agents send it in every request from then on: Codex' `view_image`, Claude Code's `Read`."""
    engine = ScriptedEngine([500])
    body = {"messages": shown_by_a_tool(text("Here:"), image(b"x"), audio(b"x"), text("So."))}
    with serving_script(engine, TEMPLATE) as live:
        status, _, answer = live.request("POST", "/v1/chat/completions", body)
    assert status == 200, answer
    held = tiny_tokenizer().decode(engine.held, skip_special_tokens=False)
    words = "Here:\n(A picture, which you cannot see.)\n(A sound, which you cannot hear.)\nSo."
    assert words in held
    note = json.loads(answer)["note"]
    assert "pictures of tools" in note
    assert "sounds of tools" in note


def test_of_a_strict_request_it_is_refused() -> None:
    body = {"messages": shown_by_a_tool(image(b"x"))}
    with serving_script(ScriptedEngine([]), TEMPLATE, strict_request=True) as live:
        status, _, answer = live.request("POST", "/v1/chat/completions", body)
    assert (status, b"takes no pictures" in answer) == (400, True)


def nested(values: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(values):
        found = {"type": "object", "properties": {"a": found}}
    return found


def test_what_is_nested_too_deep_for_the_template_is_a_bad_request() -> None:
    """Jinja's macros are functions of Python's, which call each other up to a limit."""
    call, *result = shown_by_a_tool(text("So."))[1:]
    call["tool_calls"][0]["function"]["arguments"] = json.dumps(nested(80))
    body = {"messages": [SHORT[0], call, *result]}
    with serving_script(ScriptedEngine([]), TEMPLATE) as live:
        status, _, answer = live.request("POST", "/v1/chat/completions", body)
    assert status == 400, answer
    message = json.loads(answer)["error"]["message"]
    assert "nested too deep" in message
    assert "fewer levels of lists and objects" in message, "what to do"


def test_each_key_and_salt_has_known_pieces_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the time of a request would tell what others asked."""
    tenants = list[str]()
    ids = KnownPieces.ids

    def record(self: KnownPieces, text: str, encode: Encode, tenant: str = "") -> list[int]:
        tenants.append(tenant)
        return ids(self, text, encode, tenant)

    monkeypatch.setattr(KnownPieces, "ids", record)
    words = "One and two are three.\n" * 100
    chat = {"messages": [{"role": "user", "content": words}]}
    with serving_script(ScriptedEngine([500] * 4, context_length=4096), TEMPLATE) as live:
        for path, body in (("chat/completions", chat), ("completions", {"prompt": words})):
            for headers, salt in (({}, ""), ({"x_api_key": "k"}, ""), ({}, "s")):
                asked = body | {"cache_salt": salt, "max_tokens": 1} if salt else body
                status, _, answer = live.request("POST", f"/v1/{path}", asked, **headers)
                assert status == 200, answer
    assert tenants == ["", "1 k", "0 s"] * 2


LONG = [{"role": "user", "content": "Hi. " * 20_000}]
READERS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "/v1/chat/completions": (api, "read_chat_request", {"messages": LONG}),
    "/v1/messages": (
        anthropic_endpoints,
        "read_messages_request",
        {"messages": LONG, "max_tokens": 9},
    ),
    "/v1/responses": (responses_endpoints, "read_response_request", {"input": LONG}),
    "/api/chat": (ollama_endpoints, "read_chat", {"messages": LONG, "model": "tiny"}),
}


SHORT = [{"role": "user", "content": "Hi."}]


@pytest.mark.parametrize("long", ["its text", "its tools"])
@pytest.mark.parametrize("path", READERS)
def test_others_are_answered_while_a_long_request_is_understood(
    path: str, long: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools of 3 KiB are long: their references put in what is 20,000 values."""
    module, name, body = READERS[path]
    if long == "its tools":
        body = {**body, "input" if "input" in body else "messages": SHORT, "tools": [{}]}
    read: Callable[..., Any] = getattr(module, name)
    begun, others_heard, was_in_time = threading.Event(), threading.Event(), list[bool]()

    def slow(*given: Any, **named: Any) -> Any:
        begun.set()
        was_in_time.append(others_heard.wait(10))
        return read(*given, **named)

    monkeypatch.setattr(module, name, slow)
    with serving_script(ScriptedEngine([500]), TEMPLATE) as live:
        asking = threading.Thread(target=live.request, args=("POST", path, body))
        asking.start()
        assert begun.wait(20)
        assert live.request("GET", "/health")[0] == 200
        others_heard.set()
        asking.join()
    assert was_in_time == [True]
