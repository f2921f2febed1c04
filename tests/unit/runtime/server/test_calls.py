"""Calls beside answers, schemas and limits, by the `openai` client over real connections."""

from __future__ import annotations

import json
import sys
from typing import Any

import openai
import pytest

from tests.live_server import Live, ask
from tests.scripted_engine import ScriptedEngine, encode


def tool(name: str, **function: Any) -> Any:
    return {"type": "function", "function": {"name": name, **function}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}])
def test_a_reply_that_may_call_once_ends_with_its_call(
    live: Live, engine: ScriptedEngine, choice: Any, stream: bool
) -> None:
    engine.reply = encode(
        "One moment.<|tool_call>call:get_weather{}<tool_call|>"
        "<|tool_call>call:get_time{}<tool_call|><|tool_response>"
    )
    options: Any = {"tools": [tool("get_weather")], "parallel_tool_calls": False, **choice}
    # The first letters of the stop text are held back until the call has come.
    answer = ask(live, stop="t.!", stream=stream, n=2, **options)
    if not stream:
        found = [
            (one.message.content, [call.function.name for call in one.message.tool_calls])
            for one in answer.choices
        ]
        assert found == [("One moment.", ["get_weather"])] * 2
        assert {one.finish_reason for one in answer.choices} == {"tool_calls"}
        return
    text, names, reasons = "", [], []
    for chunk in answer:
        text += chunk.choices[0].delta.content or ""
        names += [call.function.name for call in chunk.choices[0].delta.tool_calls or []]
        reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    assert (text, names) == ("One moment." * 2, ["get_weather"] * 2)
    assert reasons == ["tool_calls"] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_number_is_a_text_where_its_declaration_says_so(
    live: Live, engine: ScriptedEngine, stream: bool
) -> None:
    engine.reply = encode("<|tool_call>call:f{zip:90210,n:1}<tool_call|><|tool_response>")
    schema = {"type": "object", "properties": {"zip": {"type": "string"}}}
    answer = ask(live, tools=[tool("f", parameters=schema)], stream=stream)
    if stream:
        (call,) = [call for chunk in answer for call in chunk.choices[0].delta.tool_calls or []]
    else:
        (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"zip": "90210", "n": 1}


OK = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
IN_SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": OK}}
UNIT = {"type": "object", "properties": {"unit": {"enum": ["c", "f"]}}, "required": ["unit"]}


@pytest.mark.parametrize("strict", [False, True])
def test_a_reply_calls_or_follows_the_schema(
    live: Live, engine: ScriptedEngine, strict: bool
) -> None:
    tools = [tool("get_weather", parameters=UNIT, strict=strict), tool("other")]
    engine.reply = encode('{"no')
    (choice,) = ask(live, tools=tools, response_format=IN_SCHEMA, max_tokens=60).choices
    assert (choice.message.content or "").startswith('{"ok":')
    assert not choice.message.tool_calls
    engine.reply = encode(
        '<|tool_call>call:other{any:<|"|>thing<|"|>}<tool_call|>'
        '<|tool_call>call:get_weather{unit:<|"|>c<|"|>}<tool_call|>'
    )
    (choice,) = ask(live, tools=tools, response_format=IN_SCHEMA).choices
    assert choice.finish_reason == "tool_calls"
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [
        {"any": "thing"},
        {"unit": "c"},
    ]


def test_reasoning_comes_before_a_call_or_an_answer(live: Live, engine: ScriptedEngine) -> None:
    for said, called in (("<|tool_call>call:f{}<tool_call|>", True), ('{"ok":true}', False)):
        engine.reply = encode(f"<|channel>thought\nany {{thing\n<channel|>{said}")
        (choice,) = ask(
            live, tools=[tool("f")], response_format=IN_SCHEMA, reasoning_effort="low"
        ).choices
        assert choice.message.model_extra["reasoning_content"] == "any {thing"
        assert bool(choice.message.tool_calls) == called
        assert choice.message.content == (None if called else '{"ok":true}')


def test_calls_of_strict_tools_follow_their_declaration(live: Live, engine: ScriptedEngine) -> None:
    tools = [tool("get_weather", parameters=UNIT, strict=True), tool("other")]
    engine.reply = encode(
        'Free {text. <|tool_call>call:other{any:<|"|>thing<|"|>}<tool_call|> and on '
        "<|tool_call>call:get_weather{other:1}<tool_call|>"
    )
    (choice,) = ask(live, tools=tools, max_tokens=80).choices
    assert choice.message.content.startswith("Free {text.  and on ")
    first, second = (json.loads(call.function.arguments) for call in choice.message.tool_calls)
    assert first == {"any": "thing"}
    assert second["unit"] in ("c", "f")


def test_a_strict_declaration_that_cannot_be_followed_is_refused(live: Live) -> None:
    kinds = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(
        openai.BadRequestError, match=r"`f\.a\.uniqueItems`: is not followed"
    ) as found:
        ask(live, tools=[tool("f", parameters=kinds, strict=True)])
    assert found.value.param == "tools"


def test_strict_without_the_library_is_noted(
    live: Live, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.reply = encode("Sunny.")
    monkeypatch.setitem(sys.modules, "llguidance", None)
    answer = ask(live, tools=[tool("f", parameters=UNIT, strict=True)])
    assert "strict" in answer.model_extra["note"]
    assert answer.choices[0].message.content == "Sunny."
