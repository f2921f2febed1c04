"""Requests of Anthropic's API, as requests of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.sampling.sampling import SamplingOptions
from gemma4_compile.runtime.server.anthropic.requests import MessagesRequest, read_messages_request
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.fields import Ignored
from gemma4_compile.runtime.server.messages import MAX_TOOLS

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOOLS = [
    {"name": "add", "description": "Adds.", "input_schema": SCHEMA},
    {"name": "stop", "input_schema": {"type": "object"}, "type": "custom"},
]
USER = {"role": "user", "content": "Hi"}
BEGUN = [USER, {"role": "assistant", "content": "I"}]


def read(ignored: Ignored | None = None, **fields: Any) -> MessagesRequest:
    body = {"messages": [USER], "max_tokens": 9, **fields}
    return read_messages_request(body, SamplingOptions(temperature=0.7), 10, ignored)


def test_settings_are_those_of_the_request_or_the_package() -> None:
    chat = read(model="m", top_k=5, top_p=0.5, stop_sequences=["\n"], stream=True).chat
    settings = chat.settings
    assert (chat.model, chat.stream, settings.max_tokens, settings.stop) == ("m", True, 9, ("\n",))
    assert (settings.sampling.temperature, settings.sampling.top_k) == (0.7, 5)
    assert settings.sampling.top_p == 0.5


def test_tools_are_declared_with_their_schemas() -> None:
    chat = read(tools=TOOLS).chat
    function: Any = chat.tools[0]["function"]
    assert function == {"name": "add", "description": "Adds.", "parameters": SCHEMA}
    assert (chat.must_call, chat.several_calls) == ((), True)


@pytest.mark.parametrize(
    ("choice", "declared", "must", "several"),
    [
        ({"type": "auto"}, 2, 0, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, 2, 0, False),
        ({"type": "any"}, 2, 2, True),
        ({"type": "any", "disable_parallel_tool_use": True}, 2, 2, False),
        ({"type": "tool", "name": "add"}, 2, 1, False),
        ({"type": "none"}, 0, 0, True),
    ],
)
def test_the_choice_of_tools(choice: Any, declared: int, must: int, several: bool) -> None:
    chat = read(tools=TOOLS, tool_choice=choice).chat
    assert (len(chat.declared), len(chat.must_call), chat.several_calls) == (
        declared,
        must,
        several,
    )


def test_tools_of_the_protocol_s_maker_are_left_out_beside_others() -> None:
    brought = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        {"type": "memory_20250818", "name": "memory"},
    ]
    ignored = Ignored()
    chat = read(ignored, tools=[brought[0], *TOOLS, brought[1]]).chat
    assert [tool["function"] for tool in chat.tools] == [
        tool["function"] for tool in read(tools=TOOLS).chat.tools
    ]
    assert ignored.note() == (
        "ignored, as they mean nothing here: `tools[] of type web_search_20250305` (1), "
        "`tools[] of type memory_20250818` (1)"
    )
    with pytest.raises(ApiError) as caught:
        read(Ignored(strict=True), tools=[*TOOLS, *brought])
    assert caught.value.param == "tools[2].type"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, (None, True)),
        ({"type": "enabled", "budget_tokens": 1024}, (True, True)),
        ({"type": "adaptive", "display": "omitted"}, (True, False)),
        ({"type": "disabled"}, (False, True)),
    ],
)
def test_thinking(config: Any, expected: tuple[bool | None, bool]) -> None:
    request = read(thinking=config)
    assert (request.chat.thinking, request.shows_thinking) == expected


def test_what_is_not_done_is_noted_once_by_name() -> None:
    ignored = Ignored()
    read(
        ignored,
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "high"},
        context_management={"edits": []},
        betas=["x"],
        metadata={"user_id": "u"},
        cache_control={"type": "ephemeral"},
    )
    assert ignored.note() == (
        "ignored, as they mean nothing here: `context_management` (1), `betas` (1), "
        "`thinking.budget_tokens` (1), `output_config.effort` (1)"
    )


@pytest.mark.parametrize("name", ["output_config", "output_format"])
def test_the_form_of_a_reply(name: str) -> None:
    form: Any = {"type": "json_schema", "schema": SCHEMA}
    given: Any = {"format": form} if name == "output_config" else form
    fields: Any = {name: given}
    assert read(**fields).chat.schema == SCHEMA


def test_a_begun_reply_leaves_no_time_to_think() -> None:
    chat = read(messages=BEGUN).chat
    assert (chat.begun, chat.thinking) == ("I", False)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": [1]}, "stop_sequences"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        (
            {"tools": [*TOOLS, {"type": "function", "function": {"name": "f"}}]},
            "tools[2].type",
        ),
        (
            {
                "tools": [*TOOLS, {"type": "web_search_20250305", "name": "web_search"}],
                "tool_choice": {"type": "tool", "name": "web_search"},
            },
            "tool_choice.name",
        ),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": TOOLS * MAX_TOOLS}, "tools"),
        ({"messages": BEGUN, "thinking": {"type": "adaptive"}}, "messages"),
        (
            {"messages": BEGUN, "output_format": {"type": "json_schema", "schema": SCHEMA}},
            "messages",
        ),
    ],
)
def test_what_cannot_be_is_named(fields: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
