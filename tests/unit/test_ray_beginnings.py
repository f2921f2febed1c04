"""What the example for Ray Serve routes requests by."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray-serve" / "beginnings.py"
BEGINNINGS = runpy.run_path(str(EXAMPLE))
beginning_of: Callable[[str, str, bytes], str] = BEGINNINGS["beginning_of"]
client_of: Callable[[Mapping[str, str]], str] = BEGINNINGS["client_of"]

CHAT = "/v1/chat/completions"
LONG = "You answer questions about this document. " * 20
SYSTEM = {"role": "system", "content": LONG}
SHORT = {"role": "system", "content": "Be brief."}
TOOL = {"type": "function", "function": {"name": "add", "description": LONG}}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def beginning(*messages: Any, path: str = CHAT, key: str = "", **fields: Any) -> str:
    return beginning_of(path, key, json.dumps({"messages": messages, **fields}).encode())


@pytest.mark.parametrize("leading", [{}, {"tools": [TOOL]}], ids=["prompt", "tools"])
def test_conversations_over_one_document_begin_alike(leading: dict[str, Any]) -> None:
    first = beginning(SYSTEM, user("Who?"), temperature=0, **leading)
    later = beginning(SYSTEM, user("When?"), {"role": "assistant"}, user("Why?"), **leading)
    assert first == later


def test_a_conversation_without_one_stays_where_it_began() -> None:
    turns = [user("Who?"), {"role": "assistant", "content": "They."}, user("When?")]
    assert beginning(SHORT, *turns[:1]) == beginning(SHORT, *turns)
    assert beginning(*turns[:1]) == beginning(*turns)
    assert beginning(SHORT, user("Who?")) != beginning(SHORT, user("What?"))


def test_protocols_with_fields_of_their_own_begin_alike_too() -> None:
    messages = [
        beginning(user(text), path="/v1/messages", system=LONG) for text in ("Who?", "When?")
    ]
    responses = [
        beginning_of(
            "/v1/responses", "", json.dumps({"instructions": LONG, "input": [user(text)]}).encode()
        )
        for text in ("Who?", "When?")
    ]
    assert messages[0] == messages[1]
    assert responses[0] == responses[1]
    assert messages[0] != responses[0]


def test_another_document_tool_key_or_model_is_another_beginning() -> None:
    found = {
        beginning(SYSTEM, user("Who?")),
        beginning({**SYSTEM, "content": LONG + "."}, user("Who?")),
        beginning(SYSTEM, user("Who?"), tools=[TOOL]),
        beginning(SYSTEM, user("Who?"), key="Bearer a"),
        beginning(SYSTEM, user("Who?"), model="other"),
    }
    assert len(found) == 5


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 5000),
        *(b'{"messages": 3}', b'{"messages": [1, null]}', b'{"messages": {"role": 1}}'),
        *(b'{"input": null}', b'{"prompt": [1, 2]}'),
        b'{"messages": [' + b"[" * 700 + b"]" * 700 + b"]}",
    ],
)
def test_what_no_server_takes_has_one_as_well(body: bytes) -> None:
    name = beginning_of(CHAT, "", body)
    assert name == beginning_of(CHAT, "", body)
    assert len(name) == 32


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "api-key"])
def test_clients_are_told_apart_by_each_header_of_keys(header: str) -> None:
    first, second = (client_of({header: key, "accept": "a"}) for key in ("one", "two"))
    assert first != second
    assert client_of({"accept": "b"}) == client_of({})
    assert client_of({"x-api-key": "one"}) != client_of({"api-key": "one"})
