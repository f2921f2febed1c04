"""Lines of a stream say what the whole answer says."""

from __future__ import annotations

import json
from typing import Any

from gemma4_compile.runtime.reply.reply import Event, ReasoningDelta, TextDelta
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.sampling.sampling import Sampler, SamplingOptions
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.ollama.answers import OllamaAnswer, of_chat, of_generate
from tests.scripted_engine import ScriptedEngine, encode, scripted_generator

CALLING = (
    "<|channel>thought\nhm\n<channel|>Now."
    "<|tool_call>call:f{x:1}<tool_call|><|tool_call>call:g{}<tool_call|>"
)


def generated() -> tuple[list[Event], Any]:
    generator = scripted_generator(ScriptedEngine(encode(CALLING)))
    sampler = Sampler(SamplingOptions(temperature=0), None)
    generation = generator.start([2, 500], sampler)
    kinds = (TextDelta, ReasoningDelta, ToolCall)
    return [event for event in generation if isinstance(event, kinds)], generation


def lines(answer: OllamaAnswer, events: list[Event], generation: Any) -> list[dict[str, Any]]:
    told = [*answer.begin(), *(line for event in events for line in answer.push(event))]
    found = [json.loads(line) for line in (*told, *answer.end(generation))]
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    return found


def test_a_chat_in_lines_and_as_a_whole() -> None:
    events, generation = generated()
    whole: Any = OllamaAnswer("m", of_chat).whole(events, generation)
    told = lines(OllamaAnswer("m", of_chat), events, generation)
    messages = [line["message"] for line in told]
    assert "".join(one["content"] for one in messages) == whole["message"]["content"] == "Now."
    thoughts = "".join(one.get("thinking", "") for one in messages)
    assert thoughts == whole["message"]["thinking"] == "hm"
    calls = [call["function"] for one in messages for call in one.get("tool_calls", ())]
    assert calls == [call["function"] for call in whole["message"]["tool_calls"]]
    assert calls == [
        {"index": 0, "name": "f", "arguments": {"x": 1}},
        {"index": 1, "name": "g", "arguments": {}},
    ]
    assert told[-1]["eval_count"] == whole["eval_count"] == len(generation.token_ids)
    assert (whole["done_reason"], whole["prompt_eval_count"]) == ("stop", 2)


def test_a_prompt_s_answer_in_lines() -> None:
    events, generation = generated()
    told = lines(OllamaAnswer("m", of_generate, note="n"), events, generation)
    assert "".join(line["response"] for line in told) == "Now."
    assert "".join(line.get("thinking", "") for line in told) == "hm"
    assert {line["note"] for line in told} == {"n"}


def test_an_error_is_a_line() -> None:
    (line,) = OllamaAnswer("m", of_chat).fail(ApiError(503, "gone"))
    assert json.loads(line) == {"error": "gone"}
