"""Requests of every protocol that were written to do harm: a 4xx, and the server goes on."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gemma4_compile.runtime.sampling.sampling import SamplingOptions
from gemma4_compile.runtime.server.anthropic.requests import read_messages_request
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.ollama.requests import read_chat, read_generate
from gemma4_compile.runtime.server.openai_responses.requests import read_response_request
from tests.live_server import TOOL_TEMPLATE, Live, serving_script
from tests.scripted_engine import ScriptedEngine, encode

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
MESSAGES: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": 4,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "b"},
                {"type": "server_tool_use", "id": "s", "name": "web_fetch", "input": {"a": "x"}},
                {
                    "type": "web_fetch_tool_result",
                    "tool_use_id": "s",
                    "content": {
                        "type": "web_fetch_result",
                        "url": "u",
                        "content": {"type": "document", "source": {"type": "text", "data": "d"}},
                    },
                },
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": "x"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": [{"type": "text", "text": "c"}],
                    "is_error": False,
                },
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "d"},
                },
            ],
        },
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA, "strict": False}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
    "thinking": {"type": "enabled", "budget_tokens": 9, "display": "omitted"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    "stop_sequences": ["x"],
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 4,
    "seed": 3,
    "stream": False,
    "metadata": {"user_id": "u"},
}

RESPONSES: dict[str, Any] = {
    "model": "scripted",
    "instructions": "s",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "t", "name": "f", "arguments": '{"a": "x"}'},
        {"type": "function_call_output", "call_id": "t", "output": "c"},
        {"type": "custom_tool_call", "call_id": "u", "name": "c", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "u", "output": "c"},
        {"type": "mcp_call", "id": "m", "name": "g", "server_label": "n", "output": "c"},
        {"type": "shell_call", "call_id": "v", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "v", "output": [{"stdout": "c"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": SCHEMA, "strict": False},
        {"type": "custom", "name": "c", "format": {"type": "grammar", "definition": "d"}},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
    ],
    "tool_choice": {"type": "function", "name": "f"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    "include": ["message.output_text.logprobs"],
    "metadata": {"a": "b"},
    "max_output_tokens": 4,
    "top_logprobs": 2,
    "temperature": 0.5,
    "store": False,
    "stream": False,
}

OLLAMA: dict[str, Any] = {
    "model": "scripted:latest",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a", "images": []},
        {
            "role": "assistant",
            "content": "b",
            "thinking": "hm",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": "x"}}}],
        },
        {"role": "tool", "content": "c", "tool_name": "f"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
    "format": SCHEMA,
    "options": {"num_predict": 4, "temperature": 0.5, "top_k": 3, "seed": 1, "stop": ["x"]},
    "think": False,
    "keep_alive": "5m",
    "stream": False,
}
GENERATE: dict[str, Any] = {
    "model": "scripted",
    "prompt": "a",
    "system": "s",
    "images": [],
    "format": "json",
    "options": {"num_predict": 4, "repeat_penalty": 1.1},
    "think": "low",
    "raw": False,
    "stream": False,
}


def of_messages(body: Any) -> object:
    return read_messages_request(body, SamplingOptions(), 10)


def of_responses(body: Any) -> object:
    return read_response_request(body, SamplingOptions(), 10, lambda name: [name])


def of_ollama(body: Any) -> object:
    return read_chat(body, SamplingOptions(), 10)


def of_generate(body: Any) -> object:
    return read_generate(body, SamplingOptions())


REQUESTS: dict[str, tuple[str, Any, Callable[[Any], object]]] = {
    "messages": ("/v1/messages", MESSAGES, of_messages),
    "responses": ("/v1/responses", RESPONSES, of_responses),
    "ollama": ("/api/chat", OLLAMA, of_ollama),
    "generate": ("/api/generate", GENERATE, of_generate),
}
WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.5,
    10**400,
    "",
    "\u2028",
    [],
    [None],
    [[]],
    [{}],
    {},
    {"type": None},
    {"type": "text"},
    {"type": []},
)


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving_script(ScriptedEngine(encode("yes")), TOOL_TEMPLATE) as live:
        yield live


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all values of a request."""
    yield path
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def put(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(body)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return changed


@pytest.mark.parametrize("name", REQUESTS)
def test_a_value_of_any_kind_in_any_place_is_read_or_refused(name: str) -> None:
    _, body, read = REQUESTS[name]
    read(body)
    statuses = []
    for path in places(body):
        for wrong in WRONG:
            try:
                read(put(body, path, wrong))
            except ApiError as error:
                statuses.append(error.status)
    assert set(statuses) == {400}
    assert len(statuses) > 100


LONG: dict[str, Any] = {
    "a long text": {"x": "a" * 7_000_000},
    "control tokens": {"x": "<channel|>" * 700_000},
    "lists": {"x": [[]] * 2_000_000},
    "deep": None,
    "half of a character": {"x": "\ud800"},
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("harm", LONG)
def test_a_harmful_body_is_refused_and_the_next_is_served(live: Live, name: str, harm: str) -> None:
    address, body, _ = REQUESTS[name]
    field = "messages" if "messages" in body else "input" if "input" in body else "prompt"
    if harm == "deep":
        sent = json.dumps({**body, field: 0}).replace(
            f'"{field}": 0', f'"{field}": {"[" * 100_000}{"]" * 100_000}'
        )
    else:
        value = LONG[harm]["x"]
        if field == "messages" and isinstance(value, str):
            value = [{"role": "user", "content": value}]
        sent = json.dumps({**body, field: value})
    answered = live.request("POST", address, sent.encode(), Content_Type="application/json")
    assert answered[0] == 400
    assert json.loads(answered[2])["error"]
    assert live.request("GET", "/health")[0] == 200


@pytest.mark.parametrize("name", REQUESTS)
def test_a_body_of_another_type_is_refused(live: Live, name: str) -> None:
    status, _, answer = live.request("POST", REQUESTS[name][0], b"{}", Content_Type="text/plain")
    assert (status, "application/json" in str(json.loads(answer)["error"])) == (415, True)
