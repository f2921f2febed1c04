from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.sampling.sampling import SamplingOptions
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.fields import Ignored
from gemma4_compile.runtime.server.requests import (
    MAX_STOP_STRINGS,
    ChatRequest,
    read_chat_request,
    read_completion_requests,
)

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
    assert read_completion_requests(body, DEFAULTS)[0].settings.max_tokens is None


def test_sixty_four_texts_may_end_a_reply() -> None:
    texts = [f"<{index}>" for index in range(MAX_STOP_STRINGS)]
    assert chat(stop=texts).settings.stop == tuple(texts)
    assert len(texts) == 64


def test_top_p_zero_is_the_most_probable_token() -> None:
    assert 0 < chat(top_p=0).settings.sampling.top_p < 1e-6


def test_null_is_the_same_as_absent() -> None:
    assert chat(modalities=[], reasoning_effort="", response_format={}) == chat()
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


def test_what_means_nothing_is_ignored_and_counted() -> None:
    ignored = Ignored()
    body = {
        "messages": [{**USER, "id": 7}, {"role": "assistant", "content": "x", "id": 8}],
        "mirostat_tau": 5,
        "mystery": {"a": 1},
        "empty": [],
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"colour": "red"},
    }
    request = read_chat_request(body, DEFAULTS, 10, ignored)
    plain = chat(USER, {"role": "assistant", "content": "x"})
    assert replace(request, template_options=(), include_usage=False) == plain
    assert request.template_options == ("colour",)
    assert ignored.note() == (
        "ignored, as they mean nothing here: `mirostat_tau` (1), `mystery` (1), "
        "`messages[].id` (2), `chat_template_kwargs.colour` (1), `stream_options` (1)"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"mystery": 1},
        {"mystery": None},
        {"typical_p": 1},
        {"max_new_tokens": 5},
        {"think": True},
        {"stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"mystery": 1}},
        {"messages": [{**USER, "mystery": 1}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "id": 1}]}]},
        {"tools": [{"type": "function", "function": {"name": "f", "return": {}}}]},
        {"chat_template_kwargs": {"mystery": 1}},
    ],
)
def test_a_strict_request_has_no_unknown_fields(fields: dict[str, Any]) -> None:
    body = {"messages": [USER], **fields}
    with pytest.raises(ApiError, match=r"is not a field|with `stream: true` only"):
        read_chat_request(body, DEFAULTS, 10, Ignored(strict=True))
    read_chat_request(body, DEFAULTS, 10)


def test_what_openai_s_own_clients_send_is_strict() -> None:
    reply = {"role": "assistant", "content": "x", "audio": None, "function_call": None}
    body: dict[str, Any] = {"messages": [USER, {**reply, "refusal": None, "annotations": []}, USER]}
    body["prediction"] = {"type": "content", "content": "a long text that is changed a little"}
    body["prompt_cache_options"] = {"mode": "implicit"}
    ignored = Ignored(strict=True)
    read_chat_request(body, DEFAULTS, 10, ignored)
    assert ignored.note() is None


def test_other_servers_words_mean_the_same() -> None:
    other = chat(max_new_tokens=9, repeat_penalty=1.5, stop_sequences=["a"], random_seed=3)
    assert other == chat(max_tokens=9, repetition_penalty=1.5, stop=["a"], seed=3)
    assert chat(n_predict=-1, max_tokens=None) == chat()
    assert chat(top_k=-1) == chat(top_k=0)
    assert chat(seed=4, random_seed=4) == chat(seed=4)
    with pytest.raises(ApiError, match="`random_seed`: is another word for `seed`"):
        chat(seed=4, random_seed=5)


def test_of_several_limits_all_hold() -> None:
    assert chat(max_tokens=4, num_predict=5) == chat(max_tokens=4)
    assert chat(max_tokens=9, max_new_tokens=5, n_predict=-1) == chat(max_tokens=5)
    body = {"prompt": "x", "max_tokens": 9, "n_predict": 3}
    assert read_completion_requests(body, DEFAULTS)[0].settings.max_tokens == 3
    with pytest.raises(ApiError, match="`n_predict`: expected 1 to"):
        chat(n_predict=-3)


def test_an_empty_text_ends_nothing() -> None:
    assert chat(stop="") == chat(stop=[]) == chat()
    assert chat(stop=["", "a"]) == chat(stop=["a"])


def test_a_window_of_penalties_matters_where_there_are_some() -> None:
    assert chat(repeat_last_n=64, min_p=0.1) == chat(min_p=0.1)
    assert chat(repeat_last_n=-1, repeat_penalty=1.1) == chat(repeat_penalty=1.1)
    with pytest.raises(ApiError, match="`repeat_last_n`: penalties look at the whole"):
        chat(repeat_last_n=64, repeat_penalty=1.1)


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
    "asking part": ({"messages": [{**USER, "images": ["x"]}]}, "`messages[0].images`"),
    "stream": ({"stream": "yes"}, "expected true or false, found 'yes'"),
    "boolean number": ({"temperature": True}, "`temperature`: expected a number"),
    "infinite number": ({"temperature": float("inf")}, "`temperature`"),
    "boolean integer": ({"seed": True}, "`seed`: expected an integer"),
    "limit": ({"max_tokens": 0}, "`max_tokens`: expected 1 to 2147483647, found 0"),
    "other limit": ({"max_tokens": -2}, "`max_tokens`: expected 1 to 2147483647, found -2"),
    "many stops": ({"stop": ["x"] * 65}, "`stop`: expected at most 64, found 65"),
    "long stop": ({"stop": "x" * 257}, "`stop`: expected texts of 1"),
    "effort": ({"reasoning_effort": "much"}, "`reasoning_effort`"),
    "format": ({"response_format": {"type": "xml"}}, "`response_format.type`"),
    "schema": (
        {"response_format": {"type": "json_schema"}},
        "`response_format.json_schema`: is missing",
    ),
    "template option": (
        {"chat_template_kwargs": {"add_generation_prompt": False}},
        "`chat_template_kwargs.add_generation_prompt`: the prompt is",
    ),
    "tool": ({"tools": [{"type": "retrieval"}]}, "only functions and custom tools"),
    "tool name": (
        {"tools": [{"type": "function", "function": {"name": "a{b"}}]},
        "`tools[0].function.name`: expected 1 to 256",
    ),
    "arguments": (
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": [1]}}],
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


@pytest.mark.parametrize(
    "prompt", ["", [], ["a", ""], ["a", 1], [1, "a"], [True], 5, None, [[]], [[1], []]]
)
def test_a_completion_needs_prompts(prompt: Any) -> None:
    with pytest.raises(ApiError, match="expected texts"):
        read_completion_requests({"prompt": prompt}, DEFAULTS)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a"] * 17}, "prompt"),
        ({"prompt": ["a"] * 5, "n": 4}, "prompt"),
        ({"prompt": "a", "echo": 1}, "echo"),
    ],
)
def test_what_a_completion_cannot_be_is_named(fields: Any, param: str) -> None:
    with pytest.raises(ApiError) as raised:
        read_completion_requests(fields, DEFAULTS)
    assert raised.value.param == param


def test_each_prompt_draws_for_itself() -> None:
    requests = read_completion_requests({"prompt": ["a", "b"], "n": 3, "seed": 5}, DEFAULTS)
    seeds = [one.settings.of_reply(reply).seed for one in requests for reply in range(3)]
    assert seeds == [5, 6, 7, 8, 9, 10]


def test_prompts_of_a_completion() -> None:
    def read(prompt: Any) -> Any:
        return [one.prompt for one in read_completion_requests({"prompt": prompt}, DEFAULTS)]

    assert (read("a"), read(["a"]), read([1, 2]), read([[1, 2]])) == (
        ["a"], ["a"], [(1, 2)], [(1, 2)]
    )  # fmt: skip
    assert read(["a", [1, 2]]) == ["a", (1, 2)]


def test_tools_are_declared_written_out_and_followed_as_sent() -> None:
    sent = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"const": 1}},
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": sent}}
    request = chat(tools=[tool], tool_choice="required")
    (followed,), (declared,) = request.must_call, request.declared
    assert followed["function"]["parameters"] == sent  # type: ignore[index]
    assert declared["function"]["parameters"] == {  # type: ignore[index]
        "type": "object",
        "properties": {"a": {"type": "integer", "enum": [1]}},
    }
    assert chat(tools=[tool], tool_choice="none").declared == ()


def test_a_reference_that_points_nowhere_is_noted() -> None:
    ignored = Ignored()
    sent = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": sent}}
    read_chat_request({"messages": [USER], "tools": [tool]}, DEFAULTS, 10, ignored)
    assert "`tools[].function.parameters: $ref #/$defs/A` (1)" in str(ignored.note())


def test_declarations_without_end_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(70):
        deep = {"type": "array", "items": deep}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    with pytest.raises(ApiError, match="too long with its references") as raised:
        chat(tools=[tool])
    assert raised.value.param == "tools[0].function.parameters"


def test_biases_in_an_empty_list_are_none() -> None:
    assert chat(logit_bias=[]) == chat()
    with pytest.raises(ApiError, match="`logit_bias`: expected an object"):
        chat(logit_bias=[1])
    strict = {"messages": [USER], "logit_bias": []}
    assert read_chat_request(strict, DEFAULTS, 10, Ignored(strict=True)) == chat()


def test_whole_numbers_may_be_doubles() -> None:
    settings = chat(max_tokens=60.0, seed=42.0).settings
    assert (settings.max_tokens, settings.seed) == (60, 42)
    with pytest.raises(ApiError, match="expected an integer"):
        chat(max_tokens=60.5)


def test_the_model_may_be_called_by_the_name_of_its_turns() -> None:
    """As Gemma's templates and Google's API have it."""
    roles = [message.role for message in chat(USER, {**USER, "role": "model"}, USER).messages]
    assert roles == ["user", "assistant", "user"]
