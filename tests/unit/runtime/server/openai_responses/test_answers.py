"""Responses in pieces: items begin and end in turn, and say what the whole response says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4_compile.runtime.reply.reply import Event, MarkIds, ReasoningDelta, TextDelta
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.sampling.sampling import Sampler, SamplingOptions
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.openai_responses.answers import ResponseAnswer
from gemma4_compile.runtime.server.openai_responses.reasoning import ReasoningForm
from gemma4_compile.runtime.server.streams import Joined
from tests.scripted_engine import ScriptedEngine, encode, scripted_generator, tiny_tokenizer

EVENTS = st.lists(
    st.one_of(
        st.text(min_size=1).map(TextDelta),
        st.text(min_size=1).map(ReasoningDelta),
        st.dictionaries(st.text(), st.integers() | st.text()).map(
            lambda arguments: ToolCall("look", arguments, "call_1")
        ),
    ),
    max_size=8,
)

FORMS = st.builds(ReasoningForm, st.booleans(), st.booleans())


def generated(text: str = "yes", **options: Any) -> Any:
    generator = scripted_generator(ScriptedEngine(encode(text)))
    sampler = Sampler(SamplingOptions(temperature=0), None)
    generation = generator.start([2, 500], sampler, **options)
    assert list(generation)
    return generation


def answer(keep: Any = lambda _: None, **options: Any) -> ResponseAnswer:
    return ResponseAnswer("m", {"store": True}, keep, **options)


def put_together(parts: list[str]) -> list[dict[str, Any]]:
    """Items as a client makes them: a second, simple reading of the protocol."""
    items: list[dict[str, Any]] = []
    for number, part in enumerate(parts):
        name, data = part.removesuffix("\n\n").split("\n")
        event = json.loads(data.removeprefix("data: "))
        kind = event["type"]
        assert (name, event["sequence_number"]) == (f"event: {kind}", number)
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items)
            items.append(event["item"])
        elif kind == "response.content_part.added":
            items[event["output_index"]]["content"].append(event["part"])
        elif kind == "response.reasoning_summary_part.added":
            items[event["output_index"]]["summary"].append(event["part"])
        elif kind == "response.reasoning_summary_text.delta":
            assert items[-1]["id"] == event["item_id"]
            items[-1]["summary"][event["summary_index"]]["text"] += event["delta"]
        elif kind in ("response.output_text.delta", "response.reasoning_text.delta"):
            assert items[-1]["id"] == event["item_id"]
            items[-1]["content"][event["content_index"]]["text"] += event["delta"]
        elif kind == "response.function_call_arguments.delta":
            items[-1]["arguments"] += event["delta"]
        elif kind == "response.output_item.done":
            items[-1]["status"] = event["item"]["status"]
            if "encrypted_content" in event["item"]:  # it comes whole, at the end
                items[-1]["encrypted_content"] = event["item"]["encrypted_content"]
            assert items[-1] == event["item"]
    return items


@settings(max_examples=20, deadline=None)
@given(EVENTS, FORMS)
def test_pieces_and_the_whole_say_the_same(events: list[Event], form: ReasoningForm) -> None:
    kept: list[Any] = []
    generation = generated()
    of_stream = answer(kept.append, reasoning=form)
    parts = [
        *of_stream.begin(),
        *(part for event in events for part in of_stream.push(event)),
        *of_stream.end(generation),
    ]
    joined = Joined()
    for event in events:
        joined.add(event)
    whole: Any = answer(reasoning=form).whole(joined.close(), generation)
    told = put_together(parts)
    assert told == kept[0]["output"]
    for one, other in zip(told, whole["output"], strict=True):
        assert {**one, "id": ""} == {**other, "id": ""}


@pytest.mark.parametrize(
    ("options", "status", "reason"),
    [({}, "completed", None), ({"max_tokens": 1}, "incomplete", {"reason": "max_output_tokens"})],
)
def test_why_it_ended(options: Any, status: str, reason: Any) -> None:
    kept: list[Any] = []
    whole = answer(kept.append).whole([TextDelta("y")], generated("yes no", **options))
    assert (whole["status"], whole["incomplete_details"]) == (status, reason)
    assert kept == [whole]


def test_tokens_of_reasoning_are_counted_between_their_marks() -> None:
    thought, said = "thought\nhm so\n", "yes"
    generation = generated(f"<|channel>{thought}<channel|>{said}")
    whole: Any = answer(marks=MarkIds.of(tiny_tokenizer())).whole([], generation)
    usage = whole["usage"]
    assert usage["output_tokens_details"]["reasoning_tokens"] == len(encode(thought))
    assert usage["output_tokens"] == len(encode(thought)) + len(encode(said)) + 2
    assert usage["total_tokens"] == usage["output_tokens"] + 2


def test_an_error_in_the_midst_is_the_last_event() -> None:
    (part,) = answer().fail(ApiError(503, "gone"))
    event = json.loads(part.splitlines()[1].removeprefix("data: "))
    assert (event["type"], event["response"]["status"]) == ("response.failed", "failed")
    assert event["response"]["error"] == {"code": "server_error", "message": "gone"}
