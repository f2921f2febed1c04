"""Answers as OpenAI's clients read them, whole and in chunks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gemma4_compile.runtime.engine.generation import FinishReason, Generation, Generator
from gemma4_compile.runtime.reply.reply import ReasoningDelta, TextDelta
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.answers import ChatAnswer, TextAnswer, finish_reason, usage
from gemma4_compile.runtime.server.logprobs import ReplyLogprobs
from tests.scripted_engine import ScriptedEngine, encode, greedy, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
GENERATOR = Generator(ScriptedEngine([]), TOKENIZER, frozenset({1}))
CALL = ToolCall("f", {"a": "ü"}, "c1")


def reply(
    text: str = "", *, tokens: int = 3, reason: FinishReason = "stop", **parts: Any
) -> Generation:
    """A finished reply to a prompt of five tokens, of which the state held two."""
    made = GENERATOR.start([2, 10, 11, 12, 13], greedy)
    made.text, made.finish_reason, made.token_ids = text, reason, [20] * tokens
    made.reused_tokens = 2
    for name, value in parts.items():
        setattr(made, name, value)
    return made


def logprobs_of(token: str) -> ReplyLogprobs:
    logprobs = ReplyLogprobs(TOKENIZER, 0, None)
    chooser = logprobs.recording(greedy)
    engine = ScriptedEngine(encode(token))
    chooser(engine.prefill([2]))
    return logprobs


@pytest.mark.parametrize(
    ("reason", "calls", "word"),
    [
        ("stop", [], "stop"),
        ("stop", [CALL], "tool_calls"),
        ("length", [CALL], "length"),
        ("context", [], "length"),
        ("interrupted", [], "interrupted"),
    ],
)
def test_the_reason_in_openai_s_words(
    reason: FinishReason, calls: list[ToolCall], word: str
) -> None:
    assert finish_reason(reply(reason=reason, tool_calls=calls)) == word


def test_replies_share_the_tokens_of_their_prompt() -> None:
    assert usage([reply(tokens=3), reply(tokens=4)]) == {
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_a_whole_chat_answer() -> None:
    answer = ChatAnswer("tiny")
    whole = answer.whole([reply("Hi"), reply("Ho", reason="length")], [None, None])
    assert json.loads(json.dumps(whole)) == whole
    assert (whole["object"], whole["model"]) == ("chat.completion", "tiny")
    assert (whole["id"], whole["created"]) == (answer.id, answer.created)
    assert whole["id"].startswith("chatcmpl-")
    message = {"role": "assistant", "content": "Hi", "refusal": None}
    first, second = whole["choices"]
    assert first == {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    assert (second["index"], second["message"]["content"]) == (1, "Ho")
    assert second["finish_reason"] == "length"
    assert whole["usage"] == usage([reply(), reply()])
    assert "note" not in whole


def test_a_note_goes_with_every_object() -> None:
    answer = ChatAnswer("tiny", note="another model's name")
    objects = [answer.whole([reply()], [None]), answer.first(0), answer.last(0, reply())]
    assert {one["note"] for one in [*objects, answer.count([reply()])]} == {"another model's name"}


def test_reasoning_and_calls_stand_beside_the_content() -> None:
    made = reply(reasoning="hm", tool_calls=[CALL])
    message = ChatAnswer("tiny").whole([made], [None])["choices"][0]["message"]
    assert message["content"] is None
    assert message["reasoning_content"] == "hm"
    function = {"name": "f", "arguments": '{"a": "ü"}'}
    assert message["tool_calls"] == [{"id": "c1", "type": "function", "function": function}]
    said = reply("So", tool_calls=[CALL])
    assert ChatAnswer("tiny").whole([said], [None])["choices"][0]["message"]["content"] == "So"
    assert ChatAnswer("tiny").whole([reply()], [None])["choices"][0]["message"]["content"] == ""


def test_a_call_without_an_id_gets_one_of_its_own() -> None:
    calls = [ToolCall("f"), ToolCall("f")]
    whole = ChatAnswer("tiny").whole([reply(tool_calls=calls)], [None])
    ids = [call["id"] for call in whole["choices"][0]["message"]["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(one.startswith("call_") for one in ids)


def test_a_stream_opens_goes_on_and_ends() -> None:
    answer = ChatAnswer("tiny")
    chunks = [
        answer.first(0),
        answer.chunk(0, ReasoningDelta("hm"), None, 1),
        answer.chunk(0, TextDelta("Hi"), None, 2),
        answer.chunk(0, CALL, None, 3),
        answer.chunk(1, CALL, None, 3),
        answer.chunk(0, CALL, None, 4),
        answer.last(0, reply(tool_calls=[CALL])),
    ]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {(chunk["id"], chunk["created"]) for chunk in chunks} == {(answer.id, answer.created)}
    choices = [chunk["choices"][0] for chunk in chunks]
    deltas = [choice["delta"] for choice in choices]
    assert deltas[:3] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"content": "Hi"},
    ]
    assert [choice["index"] for choice in choices] == [0, 0, 0, 0, 1, 0, 0]
    numbers = [delta["tool_calls"][0]["index"] for delta in deltas[3:6]]
    assert numbers == [0, 0, 1], "counted by reply"
    assert deltas[6] == {}
    assert [choice["finish_reason"] for choice in choices] == [*[None] * 6, "tool_calls"]


@pytest.mark.parametrize("answer", [ChatAnswer("tiny"), TextAnswer("tiny")])
def test_the_last_chunk_counts_tokens(answer: ChatAnswer | TextAnswer) -> None:
    count = answer.count([reply()])
    assert count["choices"] == []
    assert count["usage"] == usage([reply()])


def test_a_whole_text_answer() -> None:
    answer = TextAnswer("tiny")
    whole = answer.whole([reply("Hi", reason="context")], [None])
    assert (whole["object"], whole["model"]) == ("text_completion", "tiny")
    assert whole["id"].startswith("cmpl-")
    choice = {"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "length"}
    assert whole["choices"] == [choice]
    assert whole["usage"] == usage([reply()])


def test_chunks_of_a_text() -> None:
    answer = TextAnswer("tiny")
    assert answer.first(0) is None
    more, last = answer.chunk(1, TextDelta("Hi"), None, 1), answer.last(1, reply())
    nothing = {"index": 1, "logprobs": None}
    assert more["choices"] == [{**nothing, "text": "Hi", "finish_reason": None}]
    assert last["choices"] == [{**nothing, "text": "", "finish_reason": "stop"}]
    assert more["object"] == last["object"] == "text_completion"


def test_log_probabilities_have_the_form_of_their_endpoint() -> None:
    chat, text = ChatAnswer("tiny"), TextAnswer("tiny")
    made = reply(tokens=1)
    listed = chat.whole([made], [logprobs_of("a")])["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in listed] == [TOKENIZER.decode(encode("a")[:1])]
    found = text.whole([made], [logprobs_of("a")])["choices"][0]["logprobs"]
    assert len(found["tokens"]) == 1
    chunk = chat.chunk(0, TextDelta("a"), logprobs_of("a"), 1)
    assert len(chunk["choices"][0]["logprobs"]["content"]) == 1
    part = text.chunk(0, TextDelta("a"), logprobs_of("a"), 1)
    assert len(part["choices"][0]["logprobs"]["tokens"]) == 1


def test_every_answer_has_an_id_of_its_own() -> None:
    assert len({ChatAnswer("tiny").id for _ in range(3)}) == 3
