"""Requests of the Responses API, as requests of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gemma4_compile.runtime.sampling.sampling import SamplingOptions
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.fields import Ignored
from gemma4_compile.runtime.server.messages import MAX_TOOLS
from gemma4_compile.runtime.server.openai_responses.reasoning import ReasoningForm
from gemma4_compile.runtime.server.openai_responses.requests import (
    ResponseRequest,
    read_response_request,
)

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOOLS = [
    {"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA},
    {"type": "function", "name": "stop", "parameters": None, "strict": None},
]
BEFORE = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def previous(name: str) -> Sequence[object]:
    assert name == "resp_1"
    return BEFORE


def read(ignored: Ignored | None = None, **fields: Any) -> ResponseRequest:
    defaults = SamplingOptions(temperature=0.7)
    return read_response_request({"input": "Hi", **fields}, defaults, 4, previous, ignored)


def test_what_to_cut_asks_for_nothing_where_all_fits() -> None:
    assert read(truncation="auto").chat == read().chat
    with pytest.raises(ApiError, match="refused, not cut"):
        read(truncation="start")


def test_a_conversation_goes_on_from_a_response() -> None:
    request = read(previous_response_id="resp_1", store=False)
    assert [message.content for message in request.chat.messages] == ["a", "b", "Hi"]
    last = {"type": "message", "role": "user", "content": "Hi"}
    assert request.items == (*BEFORE, last)
    assert not request.stored
    assert request.echoed["previous_response_id"] == "resp_1"


def test_one_item_may_stand_in_place_of_a_list() -> None:
    item = {"role": "user", "content": "Hi"}
    assert read(input=item).chat == read().chat
    assert read(input=item).items == (item,)
    with pytest.raises(ApiError, match="`input`: expected a list"):
        read(Ignored(strict=True), input=item)


def test_no_response_and_no_tools_of_a_server_ask_for_nothing() -> None:
    assert read(previous_response_id="", max_tool_calls=3).chat == read().chat


def test_items_that_are_referred_to_are_read_in_their_places() -> None:
    kept = {"role": "assistant", "content": "b", "id": "msg_1"}

    def referred(name: str, param: str) -> object:
        assert (name, param) == ("msg_1", "input[1].id")
        return kept

    reference = {"type": "item_reference", "id": "msg_1"}
    items: list[Any] = [BEFORE[0], reference, {"role": "user", "content": "c"}]
    request = read_response_request(
        {"input": items}, SamplingOptions(), 4, previous, referred=referred
    )
    assert [message.content for message in request.chat.messages] == ["a", "b", "c"]
    assert request.items == (items[0], kept, items[2])
    for wrong in ([items[0], reference, reference], [{"type": "item_reference"}]):
        with pytest.raises(ApiError) as caught:
            read_response_request({"input": wrong}, SamplingOptions(), 4, previous, None, referred)
        assert (caught.value.status, str(caught.value.param)[-2:]) == (400, "id")


def test_settings_and_tools() -> None:
    chat = read(max_output_tokens=7, top_p=0.5, tools=TOOLS, parallel_tool_calls=False).chat
    assert (chat.settings.max_tokens, chat.settings.sampling.top_p) == (7, 0.5)
    assert chat.settings.sampling.temperature == 0.7
    function: Any = chat.tools[0]["function"]
    assert function == {"name": "add", "description": "Adds.", "parameters": SCHEMA}
    assert (chat.several_calls, chat.must_call) == (False, ())


@pytest.mark.parametrize(
    ("choice", "declared", "must"),
    [
        ("auto", 2, 0),
        ("none", 0, 0),
        ("required", 2, 2),
        ({"type": "function", "name": "add"}, 2, 1),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "add"}],
            },
            1,
            0,
        ),
    ],
)
def test_the_choice_of_tools(choice: Any, declared: int, must: int) -> None:
    chat = read(tools=TOOLS, tool_choice=choice).chat
    assert (len(chat.declared), len(chat.must_call)) == (declared, must)


def test_a_custom_tool_may_be_chosen_and_others_tools_are_left_out_of_those_allowed() -> None:
    tools = [{"type": "custom", "name": "patch"}, {"type": "web_search"}, *TOOLS]
    chat = read(tools=tools, tool_choice={"type": "custom", "name": "patch"}).chat
    assert [tool["function"]["name"] for tool in chat.must_call] == ["patch"]  # type: ignore[index]
    ignored, listed = Ignored(), [{"type": "web_search"}, {"type": "custom", "name": "patch"}]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": listed}
    chat = read(ignored, tools=tools, tool_choice=allowed).chat
    assert [tool["function"]["name"] for tool in chat.declared] == ["patch"]  # type: ignore[index]
    assert "`tool_choice.tools[] of type web_search` (1)" in str(ignored.note())
    for wrong in ({"type": "web_search"}, {**allowed, "tools": listed[:1]}):
        with pytest.raises(
            ApiError, match=r"only functions and custom tools are served|one or more of `tools`"
        ):
            read(tools=tools, tool_choice=wrong)


@pytest.mark.parametrize(
    ("effort", "expected"), [(None, None), ("none", False), ("minimal", True), ("high", True)]
)
def test_reasoning(effort: str | None, expected: bool | None) -> None:
    assert read(reasoning={"effort": effort}).chat.thinking is expected


def test_what_is_not_done_is_noted() -> None:
    ignored = Ignored()
    read(ignored, mood="glad", user="u", service_tier="flex")
    assert ignored.note() == "ignored, as they mean nothing here: `mood` (1)"


@pytest.mark.parametrize(
    ("fields", "in_summary", "sealed"),
    [
        ({}, False, False),
        ({"reasoning": {"summary": "auto"}}, True, False),
        ({"reasoning": {"summary": "none"}}, False, False),
        ({"reasoning": {"generate_summary": "concise"}}, True, False),
        ({"include": ["reasoning.encrypted_content"]}, False, True),
    ],
)
def test_how_reasoning_is_given_out(fields: Any, in_summary: bool, sealed: bool) -> None:
    assert read(**fields).reasoning == ReasoningForm(in_summary, sealed)


def test_the_form_of_a_reply() -> None:
    form = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    assert read(text={"format": form}).chat.schema == SCHEMA
    assert read(text={"format": {"type": "text"}, "verbosity": "medium"}).chat.schema is None


def test_tools_of_the_protocol_s_maker_are_left_out_beside_others() -> None:
    brought = [
        {"type": "web_search", "external_web_access": False},
        {"type": "local_shell"},
        {"type": "tool_search"},
    ]
    ignored = Ignored()
    request = read(ignored, tools=[*brought, *TOOLS], text={"verbosity": "low"})
    assert [tool["function"] for tool in request.chat.tools] == [
        tool["function"] for tool in read(tools=TOOLS).chat.tools
    ]
    assert ignored.note() == (
        "ignored, as they mean nothing here: `tools[] of type web_search` (1), "
        "`tools[] of type local_shell` (1), `tools[] of type tool_search` (1), `text.verbosity` (1)"
    )
    with pytest.raises(ApiError) as caught:
        read(Ignored(strict=True), tools=[*TOOLS, brought[0]])
    assert caught.value.param == "tools[2].type"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"include": ["reasoning.encrypted_content"]}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"top_logprobs": 3}, 3),
    ],
)
def test_log_probabilities(fields: Any, expected: int | None) -> None:
    assert read(**fields).chat.settings.logprobs == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [BEFORE[0]] * 5}, "input"),
        ({"input": [BEFORE[0]] * 3, "previous_response_id": "resp_1"}, "input"),
        ({"include": ["x"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [*TOOLS, {"type": "mcp", "parameters": {}}]}, "tools[2].type"),
        (
            {"tools": [*TOOLS, {"type": "web_search"}], "tool_choice": {"type": "web_search"}},
            "tool_choice.type",
        ),
        ({"text": {"verbosity": 3}}, "text.verbosity"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tools": TOOLS * MAX_TOOLS}, "tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"reasoning": {"effort": "x"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    ],
)
def test_what_cannot_be_is_named(fields: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
