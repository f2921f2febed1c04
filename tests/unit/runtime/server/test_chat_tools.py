"""Custom tools of a chat, by OpenAI's own client; functions are seen in test_messages.py."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.chat_tools import read_custom, read_strict, read_tools
from gemma4_compile.runtime.server.fields import Fields
from tests.live_server import QUESTION, Live, ask
from tests.scripted_engine import ScriptedEngine, encode

ADD: Any = {"type": "function", "function": {"name": "add", "strict": True}}
SAY: Any = {"type": "custom", "custom": {"name": "say", "description": "Says it."}}
CALL = '<|tool_call>call:say{input:<|"|>a\nb<|"|>}<tool_call|>'


def test_a_custom_tool_is_declared_as_a_function() -> None:
    fields = Fields({"tools": [ADD, SAY]})
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    said = {"name": "say", "description": "Says it.", "parameters": text}
    assert read_tools(fields, custom=True)[1] == {"type": "function", "function": said}
    assert (set(read_custom(fields)), set(read_strict(fields))) == ({"say"}, {"add"})
    with pytest.raises(ApiError, match="only functions are served"):
        read_tools(fields)  # of another protocol, which has none
    for damaged in ({"type": "custom"}, {"type": "custom", "custom": {"name": "a b"}}):
        with pytest.raises(ApiError) as caught:
            read_tools(Fields({"tools": [damaged]}), custom=True)
        assert str(caught.value.param).startswith("tools[0].custom")


def test_a_conversation_with_a_custom_tool(live: Live, engine: ScriptedEngine) -> None:
    engine.reply = encode(CALL + "<|tool_call>call:add{}<tool_call|>")
    message = ask(live, tools=[ADD, SAY]).choices[0].message
    first, second = message.tool_calls
    assert (first.type, first.custom.name, first.custom.input) == ("custom", "say", "a\nb")
    assert (second.type, second.function.name) == ("function", "add")

    pieces = [
        call
        for chunk in ask(live, tools=[ADD, SAY], stream=True)
        for choice in chunk.choices
        for call in choice.delta.tool_calls or ()
    ]
    assert [piece.type for piece in pieces] == ["custom", "function"]
    assert pieces[0].model_extra["custom"] == {"name": "say", "input": "a\nb"}

    engine.reply = encode("Done.")
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "ok"}]}
        for call in message.tool_calls
    ]
    messages = [*QUESTION, message.to_dict(), *results]
    last = ask(live, messages=messages, tools=[ADD, SAY]).choices[0].message
    assert last.content == "Done."
    assert str(encode(CALL))[1:-1] in str(engine.held)


def test_a_custom_tool_is_chosen_by_name(live: Live, engine: ScriptedEngine) -> None:
    engine.reply = encode("<|tool_call>call:other{}")
    choice = {"type": "custom", "custom": {"name": "say"}}
    (call,) = (
        ask(live, tools=[ADD, SAY], tool_choice=choice, max_tokens=80).choices[0].message.tool_calls
    )
    assert (call.type, call.custom.name, type(call.custom.input)) == ("custom", "say", str)
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [SAY]}}
    engine.reply = encode(CALL)
    made = ask(live, tools=[ADD, SAY], tool_choice=allowed).choices[0].message.tool_calls
    assert [one.custom.name for one in made] == ["say"]
    for unknown in ("custom", "function"):
        with pytest.raises(openai.BadRequestError, match="declares no `none`"):
            ask(live, tools=[SAY], tool_choice={"type": unknown, unknown: {"name": "none"}})
