from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.prompt import Message
from gemma4_compile.runtime.sampling import SamplingOptions
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.requests import (
    ANY_OBJECT,
    MAX_STOP_STRINGS,
    ChatRequest,
    read_chat_request,
    read_completion_request,
)
from gemma4_compile.runtime.tool_calls import ToolCall

DEFAULTS = SamplingOptions(temperature=0.7, top_k=64, top_p=0.95)
USER = {"role": "user", "content": "Hi"}


def chat(*messages: Any, **fields: Any) -> ChatRequest:
    return read_chat_request({"messages": list(messages) or [USER], **fields}, DEFAULTS, 10)


def test_what_a_request_does_not_set_is_the_package_s() -> None:
    request = chat()
    assert request.settings.sampling == DEFAULTS
    assert (request.settings.max_tokens, request.settings.stop) == (None, ())
    assert (request.stream, request.thinking, request.schema, request.model) == (
        False,
        None,
        None,
        None,
    )


def test_sampling_fields_are_taken() -> None:
    request = chat(temperature=0, top_p=0.5, top_k=3, seed=7, max_tokens=9, stop=["a", "b"])
    assert request.settings.sampling == SamplingOptions(0.0, 3, 0.5)
    assert request.settings.seed == 7
    assert request.settings.max_tokens == 9
    assert request.settings.stop == ("a", "b")
    assert chat(max_tokens=9, max_completion_tokens=5).settings.max_tokens == 5


def test_a_limit_of_minus_one_is_none() -> None:
    assert chat(max_tokens=-1).settings.max_tokens is None
    assert chat(max_completion_tokens=-1, max_tokens=5).settings.max_tokens is None
    body = {"prompt": "x", "max_tokens": -1}
    assert read_completion_request(body, DEFAULTS).settings.max_tokens is None


def test_sixty_four_texts_may_end_a_reply() -> None:
    texts = [f"<{index}>" for index in range(MAX_STOP_STRINGS)]
    assert chat(stop=texts).settings.stop == tuple(texts)
    assert len(texts) == 64


def test_top_p_zero_is_the_most_probable_token() -> None:
    assert 0 < chat(top_p=0).settings.sampling.top_p < 1e-6


def test_null_is_the_same_as_absent() -> None:
    assert chat(temperature=None, stop=None, tools=None, n=None, response_format=None) == chat()


def test_what_cannot_change_a_reply_is_accepted() -> None:
    assert chat(user="me", metadata={"a": "b"}, store=False, n=1, logit_bias={}) == chat()


def test_every_kind_of_message() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    request = chat(
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "assistant", "content": "done", "refusal": None, "annotations": []},
    )
    assert request.messages == (
        Message("system", "s"),
        Message("user", "ab"),
        Message("assistant", "", reasoning="hm", tool_calls=(ToolCall("f", {"a": 1}, "c1"),)),
        Message("tool", "r", tool_call_id="c1"),
        Message("assistant", "done"),
    )


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "high"}, True),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"}, False),
    ],
)
def test_thinking_is_chosen_by_request(fields: dict[str, Any], thinking: bool) -> None:
    assert chat(**fields).thinking is thinking


def test_formats_of_the_reply() -> None:
    assert chat(response_format={"type": "text"}).schema is None
    assert chat(response_format={"type": "json_object"}).schema == ANY_OBJECT
    schema = {"type": "integer"}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    assert chat(response_format=form).schema == schema


def test_declared_tools_are_left_out_where_none_may_be_called() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    declared = chat(tools=[tool]).tools
    assert declared[0]["function"] == {
        "name": "f",
        "description": "",
        "parameters": {"type": "object"},
    }
    assert chat(tools=[tool], tool_choice="none").tools == ()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "message is no object": ({"messages": ["x"]}, "messages[0]: expected an object"),
    "role": ({"messages": [{"role": "robot", "content": "x"}]}, "`messages[0].role`"),
    "no content": ({"messages": [{"role": "user"}]}, "`messages[0].content`: is missing"),
    "content": ({"messages": [{"role": "user", "content": 5}]}, "expected a list, found 5"),
    "unknown part": ({"messages": [{**USER, "mood": 1}]}, "`messages[0].mood`"),
    "stream": ({"stream": "yes"}, "expected true or false, found 'yes'"),
    "stream options": ({"stream_options": {"include_usage": True}}, "with `stream: true` only"),
    "boolean number": ({"temperature": True}, "`temperature`: expected a number"),
    "infinite number": ({"temperature": float("inf")}, "`temperature`"),
    "boolean integer": ({"seed": True}, "`seed`: expected an integer"),
    "limit": ({"max_tokens": 0}, "`max_tokens`: expected 1 to 2147483647, found 0"),
    "other limit": ({"max_tokens": -2}, "`max_tokens`: expected 1 to 2147483647, found -2"),
    "many stops": ({"stop": ["x"] * 65}, "`stop`: expected at most 64, found 65"),
    "empty stop": ({"stop": ""}, "`stop`: expected texts of 1"),
    "effort": ({"reasoning_effort": "max"}, "`reasoning_effort`"),
    "format": ({"response_format": {"type": "xml"}}, "`response_format.type`"),
    "schema": (
        {"response_format": {"type": "json_schema"}},
        "`response_format.json_schema`: is missing",
    ),
    "template option": ({"chat_template_kwargs": {"x": 1}}, "`chat_template_kwargs.x`"),
    "tool": ({"tools": [{"type": "retrieval"}]}, "only functions"),
    "tool name": (
        {"tools": [{"type": "function", "function": {"name": "a{b"}}]},
        "`tools[0].function.name`: expected 1 to 64",
    ),
    "arguments": (
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": "[1]"}}],
                }
            ]
        },
        "`messages[0].tool_calls[0].function.arguments`: expected a JSON object",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_damaged_fields_are_named(name: str) -> None:
    fields, message = BAD[name]
    with pytest.raises(ApiError) as raised:
        chat(**fields)
    assert raised.value.status == 400
    assert message in raised.value.message


@pytest.mark.parametrize("prompt", ["", [], ["a", "b"], [1, "a"], [True], 5, None, [[]]])
def test_a_completion_needs_one_prompt(prompt: Any) -> None:
    with pytest.raises(ApiError, match="expected one text"):
        read_completion_request({"prompt": prompt}, DEFAULTS)


def test_prompts_of_a_completion() -> None:
    def read(prompt: Any) -> Any:
        return read_completion_request({"prompt": prompt}, DEFAULTS).prompt

    assert (read("a"), read(["a"]), read([1, 2]), read([[1, 2]])) == ("a", "a", (1, 2), (1, 2))
