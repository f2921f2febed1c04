"""Items of the Responses API become messages of the chat."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.fields import Fields, Ignored
from gemma4_compile.runtime.server.openai_responses.items import ItemReader

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "7"}
THOUGHT = {
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "short"}],
    "content": [{"type": "reasoning_text", "text": "hm"}],
}


def read(*items: Any, instructions: str | None = None) -> list[Message]:
    reader = ItemReader(instructions)
    reader.read(Fields({}), "input", items)
    return reader.close().messages


def says(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"role": role, "content": [{"type": kind, "text": text} for text in texts]}


def test_instructions_and_first_messages_of_the_system_are_one() -> None:
    messages = read(
        says("developer", "b", "c"),
        {"role": "system", "content": "d"},
        says("user", "e", "f"),
        says("system", "g"),
        instructions="a",
    )
    assert messages == [
        Message("system", "a\nb\nc\nd"),
        Message("user", "e\nf"),
        Message("system", "g"),
    ]


def test_items_of_a_turn_are_one_message() -> None:
    messages = read(
        says("user", "q"), THOUGHT, says("assistant", "so ", "be it"), CALL, OUTPUT, THOUGHT, CALL,
        {**OUTPUT, "output": [{"type": "input_text", "text": "8"}]}, says("assistant", "15"),
    )  # fmt: skip
    call = ToolCall("f", {"a": 1}, "c")
    assert messages == [
        Message("user", "q"),
        Message("assistant", "so be it", reasoning="hm", tool_calls=(call,)),
        Message("tool", "7", tool_call_id="c"),
        Message("assistant", "", reasoning="hm", tool_calls=(call,)),
        Message("tool", "8", tool_call_id="c"),
        Message("assistant", "15"),
    ]


def test_results_stand_beside_their_calls_whatever_was_said_meanwhile() -> None:
    other = {**CALL, "call_id": "d"}
    messages = read(CALL, other, says("user", "wait"), OUTPUT, {**OUTPUT, "call_id": "d"}, CALL)
    assert [(m.role, m.tool_call_id) for m in messages] == [
        ("assistant", None),
        ("tool", "c"),
        ("tool", "d"),
        ("user", None),
        ("assistant", None),
    ]
    messages = read(CALL, says("user", "never mind"), says("assistant", "well"))
    assert [m.role for m in messages] == ["assistant", "user", "assistant"]


def test_what_the_model_says_before_results_is_of_the_turn_of_the_calls() -> None:
    other = {**CALL, "call_id": "d"}
    outputs = (OUTPUT, {**OUTPUT, "call_id": "d"})
    for items in (
        (THOUGHT, CALL, says("assistant", "mid"), other),
        (THOUGHT, CALL, THOUGHT, says("assistant", "mid"), other),
        (says("assistant", "mid"), CALL, THOUGHT, other),
    ):
        messages = read(says("user", "q"), *items, *outputs, says("assistant", "end"))
        assert [(m.role, m.content, m.tool_call_id) for m in messages] == [
            ("user", "q", None),
            ("assistant", "mid", None),
            ("tool", "7", "c"),
            ("tool", "7", "d"),
            ("assistant", "end", None),
        ]
        assert [call.call_id for call in messages[1].tool_calls] == ["c", "d"]
    messages = read(says("assistant", "a"), THOUGHT, says("assistant", "b"))
    assert [(m.content, m.reasoning) for m in messages] == [("a", None), ("b", "hm")]


def test_reasoning_in_short_is_taken_where_there_is_no_other() -> None:
    short = {key: value for key, value in THOUGHT.items() if key != "content"}
    assert read(says("user", "q"), short, CALL)[1].reasoning == "short"


def test_pictures_know_their_places() -> None:
    picture = {"type": "input_image", "image_url": "data:,", "detail": "original"}
    reader = ItemReader("s")
    text = {"type": "input_text", "text": "see"}
    items: list[Any] = [{"role": "user", "content": [text, picture]}, CALL]
    reader.read(Fields({}), "input", [*items, {**OUTPUT, "output": [picture]}])
    conversation = reader.close()
    assert [(one.message, one.part, one.detail) for one in conversation.media()] == [
        (1, 1, "high"),
        (3, 0, "high"),
    ]


@pytest.mark.parametrize(
    ("said", "detail"),
    [
        ({"image_url": "data:,", "detail": None}, "auto"),
        ({"image_url": " data:, ", "detail": "LOW"}, "low"),
        ({"image_url": {"url": "data:,", "detail": "high"}}, "high"),
        ({"image_url": {"url": "data:,"}, "detail": "original"}, "high"),
    ],
)
def test_pictures_may_be_written_as_chat_completions_have_them(
    said: dict[str, Any], detail: str
) -> None:
    reader = ItemReader(None)
    item = {"role": "user", "content": [{"type": "input_image", **said}]}
    reader.read(Fields({}), "input", [item])
    (found,) = reader.close().media()
    assert (found.detail, found.text) == (detail, "data:,")


@pytest.mark.parametrize("detail", ["original", "HIGH"])
def test_a_strict_server_takes_the_words_of_the_protocol(detail: str) -> None:
    item = {"role": "user", "content": [{"type": "input_image", "image_url": "", "detail": detail}]}
    reader = ItemReader(None)
    strict = Fields({}, ignored=Ignored(strict=True))
    if detail == "original":
        reader.read(strict, "input", [item])
        return
    with pytest.raises(ApiError, match=r"expected one of .*, original, found 'HIGH'"):
        reader.read(strict, "input", [item])


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "item_reference", "id": "x"}, "input[0].type"),
        ({"role": "critic", "content": "a"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input[0].content[0].file_data"),
        ({"role": "system", "content": [{"type": "input_image"}]}, "input[0].content[0].type"),
        (OUTPUT, "input[0].call_id"),
        ({**CALL, "arguments": ["a"]}, "input[0].arguments"),
        ({**CALL, "name": "a b"}, "input[0].name"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "data:,",
          "detail": "x"}]}, "input[0].content[0].detail"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(item: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(item)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("compaction", "send it as it was"),
        ("compaction_trigger", "not made shorter"),
        ("mcp_approval_response", "runs no tools"),
        ("note", "expected message"),
    ],
)
def test_what_asks_the_server_for_more_than_a_reply_is_refused_by_name(
    kind: str, words: str
) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        read(says("user", "q"), {"type": kind})
    assert caught.value.param == "input[1].type"


SEARCH = {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "x"}}
MCP = {"type": "mcp_call", "id": "m", "server_label": "n", "name": "g", "arguments": "{}"}


def test_items_that_say_nothing_here_are_left_out_and_counted() -> None:
    reader = ItemReader(None)
    fields = Fields({})
    others: list[Any] = [SEARCH, MCP, {"type": "mcp_list_tools"}, {"type": "image_generation_call"}]
    others.append({"type": "ghost_snapshot", "ghost_commit": {"id": "1"}})
    nobody_s = {"type": "tool_search_output", "id": "t", "tools": [{"name": "f"}]}
    reader.read(fields, "input", [says("user", "q"), *others, SEARCH, nobody_s])
    assert [message.role for message in reader.close().messages] == ["user"]
    note = fields.ignored.note()
    assert note is not None
    assert "`input[].type web_search_call` (2)" in note
    assert "`input[].type tool_search_output` (1)" in note
    strict = Fields({}, ignored=Ignored(strict=True))
    with pytest.raises(ApiError, match="web_search_call"):
        ItemReader(None).read(strict, "input", [SEARCH])


def test_an_approval_that_was_followed_is_left_out() -> None:
    """As OpenAI's agents send it with every later turn; one that nothing follows asks for more."""
    asked = {"type": "mcp_approval_request", "id": "a", "name": "g", "arguments": "{}"}
    approval = {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True}
    done = {**MCP, "approval_request_id": "a", "output": "9"}
    plain = read(says("user", "q"), done, says("assistant", "nine"), says("user", "p"))
    messages = read(
        says("user", "q"), asked, approval, done, says("assistant", "nine"), says("user", "p")
    )
    assert messages == plain
    with pytest.raises(ApiError, match="runs no tools"):
        read(says("user", "q"), done, says("assistant", "nine"), asked, approval)


def test_results_that_come_with_their_calls_end_the_turn() -> None:
    found = {**MCP, "output": "9"}
    messages = read(says("user", "q"), THOUGHT, found, says("assistant", "nine"), CALL, OUTPUT)
    assert messages[1:] == [
        Message("assistant", "", reasoning="hm", tool_calls=(ToolCall("n__g", {}, "m"),)),
        Message("tool", "9", tool_call_id="m"),
        Message("assistant", "nine", tool_calls=(ToolCall("f", {"a": 1}, "c"),)),
        Message("tool", "7", tool_call_id="c"),
    ]


def test_a_call_beside_one_that_has_its_result_waits_for_its_own() -> None:
    messages = read(CALL, {**MCP, "output": "9"}, says("user", "wait"), OUTPUT)
    assert [(m.role, m.tool_call_id) for m in messages] == [
        ("assistant", None),
        ("tool", "m"),
        ("tool", "c"),
        ("user", None),
    ]
