"""Calls of one turn with the same id are told apart by their order."""

from __future__ import annotations

from typing import Any

from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.anthropic.content import read_conversation
from gemma4_compile.runtime.server.call_ids import CallIds
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.messages import read_messages


def ids(*turn: tuple[str, ...] | str) -> list[tuple[str, ...] | str | None]:
    """Of calls with ids, and results with one, the ids that they get."""
    own = CallIds()
    found: list[tuple[str, ...] | str | None] = []
    for said in turn:
        if isinstance(said, tuple):
            calls = tuple(ToolCall("f", call_id=each) for each in said)
            message = own.told_apart(Message("assistant", "", tool_calls=calls))
            found.append(tuple(call.call_id for call in message.tool_calls))
        else:
            found.append(own.told_apart(Message("tool", "", tool_call_id=said)).tool_call_id)
    return found


def test_repeated_ids_are_told_apart_and_others_stay() -> None:
    assert ids(("a", "b"), "b", "a") == [("a", "b"), "b", "a"]
    assert ids(("a", "a", "b", "a"), "a", "b", "a", "a") == [
        ("a", "a#2", "b", "a#3"),
        "a",
        "b",
        "a#2",
        "a#3",
    ]
    assert ids(("a", "a"), "a", "a", "a") == [("a", "a#2"), "a", "a#2", "a#2"]
    assert ids(("a",), "a", ("a",), "a") == [("a",), "a", ("a",), "a"]
    assert ids(("", ""), "", "x") == [("", ""), "", "x"]


def test_results_in_another_order_are_told_apart_by_the_tools_that_they_name() -> None:
    """As of tools that run at the same time."""
    calls: list[Any] = [
        {"id": "call_0", "function": {"name": name, "arguments": "{}"}} for name in "fgf"
    ]
    results = [
        {"role": "tool", "tool_call_id": "call_0", "content": name, "name": name} for name in "gffx"
    ]
    messages, _ = read_messages(
        Fields({"messages": [{"role": "assistant", "tool_calls": calls}, *results]}), 9
    )
    assert [m.tool_call_id for m in messages[1:]] == ["call_0#2", "call_0", "call_0#3", "call_0#3"]


def test_each_result_is_of_the_tool_that_gave_it() -> None:
    calls: list[Any] = [
        {"id": "call_0", "function": {"name": name, "arguments": "{}"}} for name in "fg"
    ]
    results = [{"role": "tool", "tool_call_id": "call_0", "content": name} for name in "fg"]
    chat, _ = read_messages(
        Fields({"messages": [{"role": "assistant", "tool_calls": calls}, *results]}), 9
    )
    uses = [{"type": "tool_use", "id": "call_0", "name": name, "input": {}} for name in "fg"]
    found = [{"type": "tool_result", "tool_use_id": "call_0", "content": name} for name in "fg"]
    turns = [{"role": "assistant", "content": uses}, {"role": "user", "content": found}]
    conversation, _ = read_conversation(Fields({"messages": turns}), 9)
    for messages in (chat, tuple(conversation.messages)):
        names = {call.call_id: call.name for call in messages[0].tool_calls}
        assert [(names[str(m.tool_call_id)], m.content) for m in messages[1:]] == [
            ("f", "f"),
            ("g", "g"),
        ]
