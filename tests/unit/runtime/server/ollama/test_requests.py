"""Requests of Ollama's API, as requests of a chat or of a text."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.sampling.sampling import SamplingOptions
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.fields import Ignored
from gemma4_compile.runtime.server.ollama.requests import OllamaRequest, read_chat, read_generate
from gemma4_compile.runtime.server.requests import ChatRequest, CompletionRequest
from gemma4_compile.runtime.server.response_format import ANY_OBJECT

USER = {"role": "user", "content": "a"}
CALLS = [{"function": {"name": "f", "arguments": {"x": 1}}}]
CALLED = {"role": "assistant", "content": "", "tool_calls": CALLS}
NAMED = {**CALLED, "tool_calls": [{**CALLS[0], "id": "c"}]}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


def read(ignored: Ignored | None = None, **fields: Any) -> OllamaRequest:
    body = {"model": "m:latest", "messages": [USER], **fields}
    return read_chat(body, SamplingOptions(temperature=0.7), 9, ignored)


def chat(ignored: Ignored | None = None, **fields: Any) -> ChatRequest:
    asked = read(ignored, **fields).asked
    assert isinstance(asked, ChatRequest)
    return asked


def generate(**fields: Any) -> OllamaRequest:
    return read_generate({"model": "m", "prompt": "a", **fields}, SamplingOptions())


def test_messages_of_all_kinds() -> None:
    found = chat(
        messages=[
            {"role": "system", "content": "s"},
            {**USER, "images": ["aGk="]},
            {**CALLED, "thinking": "hm"},
            {"role": "tool", "content": "7", "tool_name": "f"},
            {"role": "tool", "content": "8"},
        ]
    )
    assert found.messages == (
        Message("system", "s"),
        Message("user", "a", parts=("", "a")),
        Message("assistant", "", reasoning="hm", tool_calls=(ToolCall("f", {"x": 1}),)),
        Message("tool", "7", name="f"),
        Message("tool", "8", name="f"),
    )
    assert [(one.message, one.part, one.name) for one in found.media] == [
        (1, 0, "messages[1].images[0]")
    ]


def test_a_last_message_of_the_model_begins_the_reply() -> None:
    found = chat(messages=[USER, {"role": "assistant", "content": "I"}])
    assert (found.messages, found.begun, found.thinking) == ((Message("user", "a"),), "I", False)


def test_options_are_settings() -> None:
    ignored = Ignored()
    options = {"num_predict": 5, "top_k": 3, "repeat_penalty": 1.2, "seed": 4, "stop": "x"}
    found = chat(ignored, options={**options, "num_ctx": 9, "num_gpu": 1}, keep_alive=-1)
    settings = found.settings
    assert (settings.max_tokens, settings.seed, settings.stop) == (5, 4, ("x",))
    assert (settings.sampling.top_k, settings.sampling.repetition_penalty) == (3, 1.2)
    assert settings.sampling.temperature == 0.7
    assert ignored.note() == "ignored, as they mean nothing here: `options.num_ctx` (1)"
    for endless in (0, -1, -1.0, -2):
        assert chat(options={"num_predict": endless}).settings.max_tokens is None
    with pytest.raises(ApiError, match="num_predict"):
        chat(options={"num_predict": False})
    assert chat(options={"seed": -1}).settings.seed is None


def test_options_of_ollamas_own_page_are_taken() -> None:
    ignored = Ignored()
    assert chat(ignored, options={"typical_p": 0.7, "penalize_newline": True, "numa": False})
    note = ignored.note()
    assert note is not None
    assert "`options.typical_p` (1)" in note


def test_a_window_of_penalties_is_noted() -> None:
    ignored = Ignored()
    found = chat(ignored, options={"repeat_penalty": 1.1, "repeat_last_n": 64})  # as Ollama has it
    assert found.settings.sampling.repetition_penalty == 1.1
    assert ignored.note() == "ignored, as they mean nothing here: `options.repeat_last_n` (1)"
    for window, strict in ((0, False), (64, True)):
        with pytest.raises(ApiError, match="whole of prompt and reply"):
            chat(
                Ignored(strict=strict),
                options={"repetition_penalty": 1.1, "repeat_last_n": window},
            )
    assert chat(options={"repeat_penalty": 1.1, "repeat_last_n": -1})


@pytest.mark.parametrize(
    ("form", "expected"),
    [(None, None), ("", None), ("json", ANY_OBJECT), (SCHEMA, SCHEMA), ('{"a": 1}', {"a": 1})],
)
def test_the_form_of_a_reply(form: Any, expected: Any) -> None:
    assert chat(format=form).schema == expected


@pytest.mark.parametrize(
    ("think", "expected"), [(None, None), (False, False), (True, True), ("low", True)]
)
def test_thinking(think: Any, expected: bool | None) -> None:
    assert chat(think=think).thinking is expected


def test_a_prompt_is_a_message_or_a_text() -> None:
    found = generate(system="s", images=["aGk="]).asked
    assert isinstance(found, ChatRequest)
    assert found.messages == (Message("system", "s"), Message("user", "a", parts=("", "a")))
    raw = generate(raw=True, options={"num_predict": 3}).asked
    assert isinstance(raw, CompletionRequest)
    assert (raw.prompt, raw.settings.max_tokens) == ("a", 3)


KEPT: list[Any] = [None, "5m", "10m0s", -1, "-1", "", "s", False, [], "0.5s", "0" * 50 + "x"]
LET_GO: list[Any] = [0, 0.0, "0", "0s", "0h", "0ms", "0.0s", "0m0s"]


@pytest.mark.parametrize(
    ("alive", "unloads"), [*((each, False) for each in KEPT), *((each, True) for each in LET_GO)]
)
def test_who_asks_nothing_loads_or_lets_go(alive: Any, unloads: bool) -> None:
    for found in (read(messages=[], keep_alive=alive), generate(prompt="", keep_alive=alive)):
        assert (found.asked, found.unloads) == (None, unloads)
    assert read().model == "m"


def test_results_are_those_of_the_calls_in_their_order_where_these_have_no_ids() -> None:
    """As litellm sends them: an id of its own in each result, and none in the calls."""
    calls: list[Any] = [{"function": {"name": name, "arguments": {}}} for name in ("f", "g")]
    found = chat(
        messages=[
            USER,
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": "7", "tool_call_id": "call_1"},
            {"role": "tool", "content": "8", "tool_call_id": "call_2"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": "9", "tool_call_id": "call_3"},
            {"role": "tool", "content": "10", "tool_call_id": "call_4", "tool_name": "h"},
        ]
    )
    results = [(each.name, each.content) for each in found.messages if each.role == "tool"]
    assert results == [("f", "7"), ("g", "8"), ("f", "9"), ("h", "10")]


def test_roles_are_in_any_letters_and_a_result_names_its_tool_by_either_name() -> None:
    calls: list[Any] = [{"function": {"name": name, "arguments": {}}} for name in ("f", "g")]
    found = chat(
        messages=[
            {"role": "Developer", "content": "Be kind."},
            {"role": "USER", "content": "a"},
            {"role": "assistant", "tool_calls": calls},
            {"role": "tool", "content": "8", "name": "g"},
            {"role": "tool", "content": "7", "name": "f"},
        ]
    )
    told = [(each.role, each.name) for each in found.messages]
    roles = [("developer", None), ("user", None), ("assistant", None)]
    assert told == [*roles, ("tool", "g"), ("tool", "f")]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": [USER] * 10}, "messages"),
        ({"messages": [{"role": "critic"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_name"),
        ({"messages": [NAMED, {"role": "tool", "tool_call_id": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [USER, {"role": "tool", "tool_call_id": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [{**USER, "images": [1]}]}, "messages[0].images[0]"),
        ({"messages": [{**USER, "role": "system", "images": ["x"]}]}, "messages[0].images"),
        ({"messages": [USER, {"role": "assistant", "content": "I"}], "think": True}, "messages"),
        ({"format": "yaml"}, "format"),
        ({"format": "[1]"}, "format"),
        ({"options": {"num_predict": 1.5}}, "options.num_predict"),
        ({"options": {"temperature": -1}}, "options.temperature"),
        ({"options": [1]}, "options"),
        ({"think": "loudly"}, "think"),
    ],
)
def test_what_cannot_be_is_named(fields: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("name", ["format", "system", "think"])
def test_a_raw_text_has_no_form_and_no_system(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        generate(raw=True, **{name: "json"})
    assert caught.value.param == name
