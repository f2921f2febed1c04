"""Replies of every composition, cut into tokens at every place."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4_compile.runtime.reply.reply import (
    Event,
    MarkIds,
    PlainParser,
    ReasoningDelta,
    ReplyParser,
    TextDelta,
)
from gemma4_compile.runtime.reply.tool_calls import ToolCall, parse_tool_calls
from tests.scripted_engine import encode, tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def parse(ids: Iterable[int], *, in_reasoning: bool = False) -> list[Event]:
    parser = ReplyParser(TOKENIZER, in_reasoning=in_reasoning)
    events = [event for token_id in ids for event in parser.push(token_id)]
    return events + parser.finish()


def joined(events: Iterable[Event]) -> list[Event]:
    """The events with neighbours of one kind joined."""
    whole: list[Event] = []
    for event in events:
        if whole and isinstance(event, TextDelta) and isinstance(whole[-1], TextDelta):
            whole[-1] = TextDelta(whole[-1].text + event.text)
        elif whole and isinstance(event, ReasoningDelta) and isinstance(whole[-1], ReasoningDelta):
            whole[-1] = ReasoningDelta(whole[-1].text + event.text)
        else:
            whole.append(event)
    return whole


def written(part: Event) -> str:
    """A part of a reply as the model writes it."""
    if isinstance(part, TextDelta):
        return part.text
    if isinstance(part, ReasoningDelta):
        return f"<|channel>thought\n{part.text}\n<channel|>"
    quote = '<|"|>'
    inner = ",".join(f"{key}:{quote}{value}{quote}" for key, value in part.arguments.items())
    return f"<|tool_call>call:{part.name}{{{inner}}}<tool_call|>"


# No `<`, which might spell a mark, no U+2581, which the tokenizer takes for a space, and no U+FFFD.
letters = st.characters(exclude_categories=["Cs"], exclude_characters="<\u2581\ufffd")
texts = st.text(st.sampled_from("ab {}:,\n") | letters, min_size=1, max_size=12)
parts = st.one_of(
    texts.map(TextDelta),
    texts.map(ReasoningDelta),
    st.builds(
        ToolCall, st.sampled_from(["f", "get_weather"]), st.dictionaries(st.just("city"), texts)
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(parts, max_size=4))
def test_parts_come_back_however_the_text_is_cut_into_tokens(reply: list[Event]) -> None:
    text = "".join(map(written, reply))
    expected = joined(reply)
    assert joined(parse(encode(text, TOKENIZER))) == expected
    marks = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>')
    starts = {at: mark for mark in marks for at in range(len(text)) if text.startswith(mark, at)}
    inside = {at + i for at, mark in starts.items() for i in range(1, len(mark))}
    for cut in range(1, len(text)):
        if cut not in inside:  # a mark is one token
            ids = encode(text[:cut], TOKENIZER) + encode(text[cut:], TOKENIZER)
            assert joined(parse(ids)) == expected, cut


@settings(max_examples=60, deadline=None)
@given(st.lists(parts, max_size=3))
def test_a_reply_that_ends_anywhere_keeps_what_came(reply: list[Event]) -> None:
    ids = encode("".join(map(written, reply)), TOKENIZER)
    whole = [event for event in joined(reply) if isinstance(event, ReasoningDelta)]
    for end in range(len(ids) + 1):
        parser = ReplyParser(TOKENIZER)
        events = [event for token_id in ids[:end] for event in parser.push(token_id)]
        before = joined(events)
        # What was told before the end is a beginning of what is told in all.
        assert _text(joined(events + parser.finish()), TextDelta).startswith(
            _text(before, TextDelta)
        )
        if end < len(ids):
            told = _text(before, ReasoningDelta)
            assert "".join(part.text for part in whole).startswith(told)


def _text(events: list[Event], kind: type[TextDelta] | type[ReasoningDelta]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def test_reasoning_that_the_prompt_opened_goes_on_without_a_head() -> None:
    prompt = encode("<|turn>model\n<|channel>thought\n", TOKENIZER)
    marks = MarkIds.of(TOKENIZER)
    assert marks.reasoning_is_open(prompt)
    assert not marks.reasoning_is_open(encode("<|channel>thought\n<channel|>", TOKENIZER))
    assert marks.reasoning_is_open(encode("<|channel>a<channel|>b<|channel>c", TOKENIZER))
    assert not marks.reasoning_is_open([])
    reply = encode("thought\nhm\n<channel|>yes", TOKENIZER)
    expected = [ReasoningDelta("thought\nhm"), TextDelta("yes")]
    assert joined(parse(reply, in_reasoning=True)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|channel>thought\n<channel|>yes", [TextDelta("yes")]),  # empty reasoning
        ("<|channel>thought<channel|>yes", [TextDelta("yes")]),
        ("<|channel>thinking<channel|>", [ReasoningDelta("thinking")]),
        ("<|channel>tho", [ReasoningDelta("tho")]),
        ("<|channel>thought\na\n\n<channel|>", [ReasoningDelta("a\n")]),
        ("a<channel|>b", [TextDelta("ab")]),
        ("<|tool_call>call:f{<tool_call|>", [TextDelta("<|tool_call>call:f{<tool_call|>")]),
        ("x<|tool_call>call:f{a:", [TextDelta("x<|tool_call>call:f{a:")]),
        (
            "<|tool_call>call:f{}\ncall:g{a:b}<tool_call|>c",
            [ToolCall("f", {}), ToolCall("g", {"a": "b"}), TextDelta("c")],
        ),
        (
            "<|tool_call>call:f{}<|tool_call>call:g{}<tool_call|>",
            [ToolCall("f", {}), ToolCall("g", {})],
        ),
        ("<|tool_call>call:f{}", [ToolCall("f", {})]),
        (
            "<|tool_call>call:f{a:1,a:2}<tool_call|>",
            [TextDelta("<|tool_call>call:f{a:1,a:2}<tool_call|>")],
        ),
        (  # reasoning inside a call, and after one whose end is missing
            "<|tool_call><|channel>thought\nhm\n<channel|>call:f{a:1}<tool_call|>b",
            [ReasoningDelta("hm"), ToolCall("f", {"a": 1}), TextDelta("b")],
        ),
        (
            "<|tool_call>call:f{a:1}<|channel>thought\nhm\n<channel|>b",
            [ToolCall("f", {"a": 1}), ReasoningDelta("hm"), TextDelta("b")],
        ),
        ("<|tool_call>call:f{a:1<tool_call|>", [ToolCall("f", {"a": 1})]),
        ("<|tool_call>call:f{a:1", [TextDelta("<|tool_call>call:f{a:1")]),
        (
            "<|channel>thought\nhm<|tool_call>call:f{}<tool_call|>b",
            [ReasoningDelta("hm"), ToolCall("f", {}), TextDelta("b")],
        ),
    ],
)
def test_odd_replies(text: str, expected: list[Event]) -> None:
    assert joined(parse(encode(text, TOKENIZER))) == expected


def test_a_spelled_mark_is_text() -> None:
    mark = "<|tool_call>"
    ids = [i for letter in mark for i in encode(letter, TOKENIZER)]
    assert joined(parse(ids)) == [TextDelta(mark)]


def test_the_parser_without_marks_returns_everything_as_text() -> None:
    parser = PlainParser(TOKENIZER)
    ids = encode("a<|channel>thought\n€", TOKENIZER)
    events = [event for token_id in ids for event in parser.push(token_id)] + parser.finish()
    assert joined(events) == [TextDelta("athought\n€")]


class Patient(ReplyParser):
    """Reads a call again before every channel, as the form says."""

    def _unended(self, ids: list[int]) -> list[ToolCall]:
        return self._read(ids, is_whole=False)


MARKED = [
    *("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>', "thought\n"),
    *("call:f{", "a:1", "a:[", "]", "}", "x(", ")", ",", ";", " ", "\u3000", "\n", '"', "`"),
]


@given(st.lists(st.sampled_from([encode(text) for text in MARKED]), max_size=24))
@settings(max_examples=150, deadline=None)
def test_calls_without_an_end_are_those_of_reading_before_every_channel(
    pieces: list[list[int]],
) -> None:
    ids = [*encode("<|tool_call>call:f{"), *(one for piece in pieces for one in piece)]
    patient = Patient(TOKENIZER)
    expected = [event for token_id in ids for event in patient.push(token_id)] + patient.finish()
    assert parse(ids) == expected


@pytest.mark.parametrize("step", ["<|channel>", "<|channel>}", "<|channel>thought\nx<channel|>"])
def test_channels_within_a_call_do_not_cost_its_square(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(texts: list[str], *, is_whole: bool) -> list[ToolCall]:
        read.append(sum(map(len, texts)))
        return parse_tool_calls(texts, is_whole=is_whole)

    monkeypatch.setattr("gemma4_compile.runtime.reply.reply.parse_tool_calls", counted)
    ids = encode("<|tool_call>call:f{a:[") + encode(step) * 400
    assert joined(parse(ids))[-1] == TextDelta(TOKENIZER.decode(ids, skip_special_tokens=False))
    assert len(read) <= 66
