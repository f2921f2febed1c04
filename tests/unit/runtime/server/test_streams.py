"""Events of a reply, joined."""

from __future__ import annotations

from gemma4_compile.runtime.reply.reply import Event, ReasoningDelta, TextDelta
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.streams import Joined


def test_deltas_of_one_kind_are_one() -> None:
    call = ToolCall("f")
    events: list[Event] = [
        ReasoningDelta("a"),
        ReasoningDelta("b"),
        TextDelta("c"),
        call,
        call,
        TextDelta("d"),
        TextDelta("e"),
        ReasoningDelta("f"),
    ]
    joined = Joined()
    for event in events:
        joined.add(event)
    assert joined.close() == [
        ReasoningDelta("ab"),
        TextDelta("c"),
        call,
        call,
        TextDelta("de"),
        ReasoningDelta("f"),
    ]
    assert Joined().close() == []
