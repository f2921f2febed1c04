"""Content blocks of Anthropic's API become messages of the chat."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.anthropic.content import read_conversation
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.fields import Fields, Ignored
from gemma4_compile.runtime.server.media import GivenMedium

PIXEL = {"type": "base64", "media_type": "image/png", "data": "aGk="}
USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": 3}}
LOOK = ToolCall("look", {"at": 3}, "t1")


def read(*messages: Any, **fields: Any) -> tuple[list[Message], tuple[GivenMedium, ...], str]:
    values = {"messages": list(messages), **fields}
    conversation, begun = read_conversation(Fields(values), 20)
    return conversation.messages, conversation.media(), begun


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def model(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **fields}


def result(content: Any = "7", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t1", "content": content, **fields}


@pytest.mark.parametrize("system", ["Be brief.\nBe kind.", [text("Be brief."), text("Be kind.")]])
def test_blocks_begin_lines_of_their_own(system: Any) -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    messages, _, _ = read(
        user([text("One", **cached), text("two\n"), text("three")]), system=system
    )
    assert messages == [
        Message("system", "Be brief.\nBe kind."),
        Message("user", "One\ntwo\nthree"),
    ]


HEADER = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch={};"


@pytest.mark.parametrize(
    "system",
    [
        [text(HEADER), text("Be brief.")],
        [text(HEADER + "\n"), text("Be brief.")],
        HEADER + "\nBe brief.",
        HEADER + "Be brief.",
    ],
)
def test_a_header_of_bills_is_no_part_of_the_prompt(system: Any) -> None:
    for number in ("eb6c6", "0aaa9"):
        given = json.loads(json.dumps(system).replace("{}", number))
        messages, _, _ = read(user("a"), system=given)
        assert messages[0] == Message("system", "Be brief.")


def test_a_header_of_bills_alone_is_no_message_and_elsewhere_a_text() -> None:
    assert [m.role for m in read(user("a"), system=HEADER)[0]] == ["user"]
    assert [m.role for m in read(user("a"), system="")[0]] == ["user"]
    quoted = f"They send {HEADER}"
    assert read(user(HEADER), system=quoted)[0] == [
        Message("system", quoted),
        Message("user", HEADER),
    ]


def test_turns_of_one_role_are_one_and_a_model_s_texts_are_glued() -> None:
    messages, _, _ = read(
        user("a"), user("b"), model([text("c"), text("d")]), model("e"), user("f")
    )
    assert [(m.role, m.content) for m in messages] == [
        ("user", "a\nb"),
        ("assistant", "cde"),
        ("user", "f"),
    ]


def test_calls_thoughts_and_results_find_their_places() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    messages, media, begun = read(
        user("Look."),
        model([thought, text("Now."), USE]),
        user([text("Well?"), result([text("a"), {"type": "image", "source": PIXEL}])]),
    )
    assert messages[1] == Message("assistant", "Now.", reasoning="hm", tool_calls=(LOOK,))
    assert messages[2] == Message("tool", "a", tool_call_id="t1", parts=("a", ""))
    assert messages[3] == Message("user", "Well?")
    assert [(m.message, m.part, m.text) for m in media] == [(2, 1, "data:;base64,aGk=")]
    assert media[0].name == "messages[2].content[1].content[1].source.data"
    assert not begun


@pytest.mark.parametrize(
    ("block", "content"),
    [
        (result("boom", is_error=True), "Error:\nboom"),
        ({"type": "tool_result", "tool_use_id": "t1"}, ""),
    ],
)
def test_results_of_other_kinds(block: Any, content: str) -> None:
    messages, _, _ = read(user("Look."), model([USE]), user([block]))
    assert messages[2:] == [Message("tool", content, tool_call_id="t1")]


def test_a_last_turn_of_the_model_begins_the_reply() -> None:
    messages, _, begun = read(user("Pick."), model("I pick ("))
    assert ([m.role for m in messages], begun) == (["user"], "I pick (")


def test_documents_of_text_and_addresses_are_taken() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "All."}
    messages, media, _ = read(
        user(
            [
                {"type": "document", "title": "Book", "source": source},
                {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
            ]
        )
    )
    assert messages[0].parts == ("Book\nAll.", "")
    assert media[0].is_fetched


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([user("a")] * 21, "messages"),
        ([{"role": "tool", "content": "a"}], "messages[0].role"),
        ([user(None)], "messages[0].content"),
        ([user([{"text": "a"}])], "messages[0].content[0].type"),
        ([user([USE])], "messages[0].content[0].type"),
        ([user([result()])], "messages[0].content[0].tool_use_id"),
        (
            [user([{"type": "image", "source": {"type": "file"}}])],
            "messages[0].content[0].source.type",
        ),
        ([user("a"), model([USE])], "messages[1].content"),
        ([user("a"), model([{"type": "server_tool_use"}])], "messages[1].content[0].type"),
        ([model("I")], "messages"),
        ([user("a"), model([{**USE, "input": [1]}])], "messages[1].content[0].input"),
        (
            [user([{"type": "document", "source": {"type": "base64", "data": "x"}}])],
            "messages[0].content[0].source.type",
        ),
    ],
)
def test_what_cannot_be_read_is_named(messages: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(*messages)
    assert (caught.value.status, caught.value.param) == (400, param)


SEARCH = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "s",
    "content": [
        {"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "Zm9v"},
        {"type": "web_search_result", "title": "S", "url": "v", "page_age": None},
    ],
}
CALLED = ToolCall("web_search", {"query": "x"}, "s")


def test_what_another_server_s_tool_found_is_a_call_and_its_result() -> None:
    messages, _, _ = read(
        user("q"), model([text("Let me see."), SEARCH, FOUND, text("T it is."), USE]),
        user([result()]), model("So."), user("Well?"),
    )  # fmt: skip
    assert messages[1:-2] == [
        Message("assistant", "Let me see.", tool_calls=(CALLED,)),
        Message("tool", '{"title": "T", "url": "u"}\n{"title": "S", "url": "v"}', tool_call_id="s"),
        Message("assistant", "T it is.", tool_calls=(LOOK,)),
        Message("tool", "7", tool_call_id="t1"),
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"type": "web_search_tool_result_error", "error_code": "unavailable"}, "unavailable"),
        ([text("a"), text("b")], "a\nb"),
        ("a", "a"),
        (None, ""),
        ({"type": "web_fetch_result", "url": "u", "content": {"type": "document", "title": "D",
          "source": {"type": "text", "data": "All."}}}, "u\nD\nAll."),
        ({"type": "web_fetch_result", "url": "u", "content": {"type": "document",
          "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}}}, "u"),
        ({"type": "code_execution_result", "stdout": "4", "return_code": 0},
         '{"stdout": "4", "return_code": 0}'),
    ],
)  # fmt: skip
def test_results_of_another_server_s_tools(content: Any, words: str) -> None:
    messages, _, begun = read(user("q"), model([SEARCH, {**FOUND, "content": content}]))
    assert messages[1:] == [
        Message("assistant", "", tool_calls=(CALLED,)),
        Message("tool", words, tool_call_id="s"),
    ]
    assert not begun


def test_a_turn_of_the_model_that_went_on_after_a_tool_begins_the_reply() -> None:
    messages, _, begun = read(user("q"), model([SEARCH, FOUND, text("It is ")]))
    assert ([m.role for m in messages], begun) == (["user", "assistant", "tool"], "It is ")


def test_a_call_that_another_server_did_not_answer_is_left_out_but_at_the_end() -> None:
    messages, _, _ = read(user("q"), model([text("Hm."), SEARCH]), user("Well?"))
    assert messages[1] == Message("assistant", "Hm.")
    with pytest.raises(ApiError) as caught:  # it asks this server to run it
        read(user("q"), model([text("Hm."), SEARCH]))
    assert caught.value.param == "messages[1].content[1].type"


def test_a_failed_tool_of_another_server_says_so() -> None:
    use = {"type": "mcp_tool_use", "id": "s", "name": "f", "server_name": "n", "input": {}}
    failed = {"type": "mcp_tool_result", "tool_use_id": "s", "is_error": True, "content": "no"}
    messages, _, _ = read(user("q"), model([use, failed]), user("Well?"))
    assert messages[2] == Message("tool", "Error:\nno", tool_call_id="s")


def test_what_was_searched_and_documents_of_blocks_are_texts() -> None:
    found = {"type": "search_result", "title": "T", "source": "u", "content": [text("a")]}
    pixel = {"type": "image", "source": PIXEL}
    held = {"type": "document", "source": {"type": "content", "content": [text("b"), pixel]}}
    messages, media, _ = read(user([found, held]))
    assert (messages[0].content, len(media)) == ("T\nu\na\nb", 1)
    nested = {"type": "document", "source": {"type": "content", "content": [held]}}
    with pytest.raises(ApiError) as caught:
        read(user([nested]))
    assert caught.value.param == "messages[0].content[0].source.content[0].type"


PDF = {"type": "document", "title": "T",
       "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}}  # fmt: skip


def test_what_a_tool_found_that_nobody_here_can_read_is_told_in_words() -> None:
    # Claude Code's search among its own tools, and its reading of a PDF file.
    found = [{"type": "tool_reference", "tool_name": "look"}, PDF]
    ignored = Ignored()
    values = {"messages": [user("q"), model([USE]), user([result(found)])]}
    conversation, _ = read_conversation(Fields(values, ignored=ignored), 20)
    assert conversation.messages[-1].content == "look\nT\n(A document, which you cannot read.)"
    assert "documents of tools, which the model is told of in words" in str(ignored.note())
    for strict in (False, True):  # a person's is refused, and all of a strict request
        wrong = [user("q"), model([USE]), user([result([PDF])])] if strict else [user([PDF])]
        with pytest.raises(ApiError, match="files are not read"):
            read_conversation(Fields({"messages": wrong}, ignored=Ignored(strict=strict)), 20)


def test_a_summary_stands_in_the_place_of_all_before_it() -> None:
    """As Anthropic's compaction writes it, and its clients send it back with the whole history."""
    summary = {"type": "compaction", "content": "They looked.", "encrypted_content": "x"}
    after = [user("And now?"), model([USE]), user([result()])]
    messages, _, _ = read(
        user("q"), model([text("a")]), user("p"), model([text("b"), summary, text("c")]), *after
    )
    assert messages[:3] == [
        Message("user", "They looked."),
        Message("assistant", "c"),
        Message("user", "And now?"),
    ]
    messages, _, begun = read(user("q"), model([text("b"), summary]), system="s")
    assert (messages, begun) == ([Message("system", "s"), Message("user", "They looked.")], "")
    messages, _, _ = read(user("q"), model([summary]), user("p"))
    assert messages == [Message("user", "They looked."), Message("user", "p")]
    failed = {**summary, "content": None}
    assert read(user("q"), model([failed, text("b")]), user("p")) == read(
        user("q"), model([text("b")]), user("p")
    )
