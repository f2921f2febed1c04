"""Messages in pieces: blocks begin and end in turn, and say what the whole message says."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4_compile.runtime.reply.reply import Event, ReasoningDelta, TextDelta
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.sampling.sampling import Sampler, SamplingOptions
from gemma4_compile.runtime.server.anthropic.answers import MessageAnswer
from gemma4_compile.runtime.server.streams import Joined
from tests.scripted_engine import ScriptedEngine, encode, scripted_generator

PROMPT = [2, 500]
EVENTS = st.lists(
    st.one_of(
        st.text(min_size=1).map(TextDelta),
        st.text(min_size=1).map(ReasoningDelta),
        st.dictionaries(st.text(), st.integers() | st.text()).map(
            lambda arguments: ToolCall("look", arguments, "toolu_1")
        ),
    ),
    max_size=8,
)


def generated(text: str = "yes", **options: Any) -> Any:
    generator = scripted_generator(ScriptedEngine(encode(text)))
    sampler = Sampler(SamplingOptions(temperature=0), None)
    generation = generator.start(PROMPT, sampler, **options)
    assert list(generation)
    return generation


def read(parts: list[str]) -> list[dict[str, Any]]:
    events = []
    for part in parts:
        name, data = part.removesuffix("\n\n").split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """As a client does: a second, simple reading of the protocol."""
    message: dict[str, Any] = {}
    for event in events:
        if event["type"] == "message_start":
            message = event["message"]
        elif event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            for name in ("text", "thinking", "signature"):
                if name in delta:
                    block[name] += delta[name]
            if "partial_json" in delta:
                block["input"] = json.loads(delta["partial_json"])
        elif event["type"] == "message_delta":
            message |= {**event["delta"], "usage": event["usage"]}
    return message


@settings(max_examples=20, deadline=None)
@given(EVENTS, st.booleans())
def test_pieces_and_the_whole_say_the_same(events: list[Event], shows: bool) -> None:
    generation = generated()
    answer = MessageAnswer("m", 2, "note", shows_thinking=shows)
    parts = [*answer.begin(), *(p for e in events for p in answer.push(e)), *answer.end(generation)]
    joined = Joined()
    for event in events:
        joined.add(event)
    assert put_together(read(parts)) == answer.whole(joined.close(), generation)
    kinds = [event["type"] for event in read(parts)]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


def test_thinking_is_signed() -> None:
    # pi sends a block without a signature back as text, the AI SDK not at all.
    (block,) = MessageAnswer("m", 2).whole([ReasoningDelta("hm")], generated())["content"]
    assert (block["type"], block["thinking"]) == ("thinking", "hm")
    assert base64.b64decode(block["signature"], validate=True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, ("end_turn", None)),
        ({"max_tokens": 1}, ("max_tokens", None)),
        ({"stop": ["es", "e"]}, ("stop_sequence", "es")),
    ],
)
def test_why_it_ended(options: Any, reason: tuple[str, str | None]) -> None:
    whole = MessageAnswer("m", 2).whole([], generated("yes no", **options))
    assert (whole["stop_reason"], whole["stop_sequence"]) == reason


def test_numbers_of_a_call_are_texts_where_the_tool_takes_texts() -> None:
    schema = {"type": "object", "properties": {"zip": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "find", "parameters": schema}}]
    answer = MessageAnswer("m", 2, tools=tools)
    whole: Any = answer.whole([ToolCall("find", {"zip": 90210})], generated())
    assert whole["content"][0]["input"] == {"zip": "90210"}
