"""Messages, declared tools and the choice among them."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.reply.tool_calls import ToolCall, parse_tool_call
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.chat_tools import read_tools
from gemma4_compile.runtime.server.fields import Fields, Ignored
from gemma4_compile.runtime.server.messages import (
    MAX_TOOLS,
    read_messages,
    read_tool_choice,
)


def read(*messages: Any, most: int = 10) -> tuple[Message, ...]:
    return read_messages(Fields({"messages": list(messages)}), most)[0]


def refused(param: str, *messages: Any, most: int = 10) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(*messages, most=most)
    assert (caught.value.status, caught.value.param) == (400, param)
    return caught.value


def user(content: Any = "Hi", **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def call(arguments: Any = "{}", name: str = "f", call_id: str = "c1") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def test_roles_and_contents() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = read({"role": "developer", "content": "d"}, user(parts), user(""), user([]))
    assert found == (
        Message("developer", "d"),
        Message("user", "ab"),
        Message("user", ""),
        Message("user", ""),
    )


def test_a_reply_is_taken_as_it_was_given() -> None:
    (found,) = read(
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "refusal": None,
            "annotations": [],
            "tool_calls": [call('{"a": [1]}'), call("", call_id="c2")],
        }
    )
    calls = (ToolCall("f", {"a": [1]}, "c1"), ToolCall("f", {}, "c2"))
    assert found == Message("assistant", "", reasoning="hm", tool_calls=calls)
    (other,) = read({"role": "assistant", "content": "x", "reasoning": "hm"})
    assert other.reasoning == "hm"


def test_a_result_belongs_to_a_call_before_it() -> None:
    asked: dict[str, Any] = {"role": "assistant", "tool_calls": [call()]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "r", "name": "f"}
    assert read(asked, result)[1] == Message("tool", "r", tool_call_id="c1", name="f")
    refused("messages[0].tool_call_id", result, asked)
    refused("messages[1].tool_call_id", asked, {**result, "tool_call_id": "c2"})
    bare = {"role": "tool", "content": "r"}
    assert read(asked, bare) == read(asked, {**bare, "tool_call_id": "c1", "name": "f"})
    with pytest.raises(ApiError, match="tool_call_id"):
        read_messages(Fields({"messages": [asked, bare]}, ignored=Ignored(strict=True)), 10)
    refused("messages[2].tool_call_id", asked, bare, bare)  # of none
    calls = [*asked["tool_calls"], {**asked["tool_calls"][0], "id": "c9"}]
    refused("messages[1].tool_call_id", {**asked, "tool_calls": calls}, bare)  # of either


def test_a_result_without_an_id_is_its_tool_s() -> None:
    asked: dict[str, Any] = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
    }
    result = {"role": "tool", "content": [{"type": "text", "text": "r"}]}
    for name in ("name", "tool_name"):
        assert read(asked, {**result, name: "f"}) == (
            Message("assistant", "", tool_calls=(ToolCall("f", {"a": 1}),)),
            Message("tool", "r", name="f"),
        )
    assert read(asked, result) == read(asked, {**result, "name": "f"})
    refused("messages[2].tool_call_id", asked, result, result)


def test_results_without_ids_belong_to_calls_without_ids_by_their_place() -> None:
    calls = [{"id": "", "function": {"name": name, "arguments": "{}"}} for name in "fg"]
    asked = {"role": "assistant", "tool_calls": calls}
    results = [{"role": "tool", "content": name, "tool_call_id": ""} for name in "fg"]
    found = read(user(), asked, *results, user())
    assert [(m.content, m.name) for m in found if m.role == "tool"] == [("f", "f"), ("g", "g")]
    refused("messages[4].tool_call_id", user(), asked, *results, results[0])
    refused("messages[3].tool_call_id", user(), asked, user(), results[0])
    calls[0]["id"] = "c1"  # some have ids: a result without one may be of any of them
    refused("messages[2].tool_call_id", user(), asked, results[0])


def test_instructions_may_be_none_and_a_question_may_not() -> None:
    assert read({"role": "system", "content": None}, user())[0] == Message("system", "")
    refused("messages[0].content", user(None))
    refused("messages[0].content", {"role": "system"})


@pytest.mark.parametrize(
    "name", ["google:mcp:create", "files/read", "$x", "\u5929\u6c14", "x" * 200]
)
def test_a_name_that_a_reply_gave_out_comes_back(name: str) -> None:
    asked = {"role": "assistant", "tool_calls": [call(name=name)]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "r", "name": name}
    found = read(asked, result)
    assert found[0].tool_calls == (ToolCall(name, {}, "c1"),)
    assert found[1].name == name
    assert tools_of(tool(name))[0]["function"]["name"] == name
    written = parse_tool_call([f"call:{name}{{}}"])
    assert written == ToolCall(name)


def test_a_reply_may_have_no_text() -> None:
    nothing: list[dict[str, Any]] = [{}, {"content": None}, {"content": []}, {"tool_calls": []}]
    for content in nothing:
        assert read({"role": "assistant", **content}) == (Message("assistant", ""),)
    assert read({"role": "assistant", "content": None, "refusal": "No."})[0].content == "No."
    assert read({"role": "assistant", "content": "x", "refusal": "No."})[0].content == "x"


def test_parts_of_a_reply() -> None:
    parts = [
        {"type": "thinking", "thinking": "h", "signature": "s"},
        {"type": "reasoning", "text": "m"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "output_text", "text": "a", "annotations": [1]},
        {"type": "refusal", "refusal": "b"},
    ]
    assert read({"role": "assistant", "content": parts}) == (
        Message("assistant", "ab", reasoning="hm"),
    )
    assert read({"role": "assistant", "content": "a", "thinking": "hm"})[0].reasoning == "hm"


@pytest.mark.parametrize("arguments", ["", " ", "null", "{}", {}, None])
def test_a_call_may_take_nothing(arguments: Any) -> None:
    (found,) = read({"role": "assistant", "tool_calls": [call(arguments)]})
    assert found.tool_calls == (ToolCall("f", {}, "c1"),)


def test_what_clients_add_to_earlier_turns_changes_nothing() -> None:
    plain = [user(), {"role": "assistant", "content": "x", "tool_calls": [call()]}]
    plain += [{"role": "tool", "tool_call_id": "c1", "content": "r"}]
    added = {
        "annotations": [],
        "audio": None,
        "cache_control": {"type": "ephemeral"},
        "function_call": None,
        "id": "m",
        "images": [],
        "opts": {"visible": False},
        "parsed": {"a": 1},
        "provider_specific_fields": {"refusal": None},
        "reasoning_details": [{"type": "reasoning.text", "text": "hm"}],
        "thinking_blocks": [{"type": "thinking", "thinking": "hm"}],
    }
    more = [{**message, **added} for message in plain]
    more[1]["tool_calls"] = [{**call(), "index": 0, "extra_content": {"google": {}}}]
    more[0]["content"] = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]
    assert read(*more) == read(*plain)


ONE_READING = {
    "a part without type": ([{"text": "Hi"}], "Hi"),
    "one part": ({"type": "text", "text": "Hi"}, "Hi"),
    "one part without type": ({"text": "Hi"}, "Hi"),
    "texts as parts": (["Hi", " there"], "Hi there"),
}


@pytest.mark.parametrize(("content", "said"), ONE_READING.values(), ids=ONE_READING)
def test_content_of_one_reading_is_read(content: Any, said: str) -> None:
    assert read(user(content)) == read(user(said))


@pytest.mark.parametrize("content", [[{"text": "Hi"}], ["Hi"]])
def test_a_strict_request_has_parts_with_their_types(content: Any) -> None:
    with pytest.raises(ApiError, match="content"):
        read_messages(Fields({"messages": [user(content)]}, ignored=Ignored(strict=True)), 9)


def test_a_part_without_type_may_be_a_picture() -> None:
    picture = {"image_url": {"url": "data:image/png;base64,"}}
    _, media = read_messages(Fields({"messages": [user([picture])]}), 9)
    assert [medium.kind for medium in media] == ["image"]


@pytest.mark.parametrize(
    ("result", "said"),
    [(5, "5"), (1.5, "1.5"), (True, "true"), ([], ""), ({"type": "text", "text": "r"}, "r")],
)
def test_a_result_may_be_a_number_or_a_part(result: Any, said: str) -> None:
    turns = [user(), {"role": "assistant", "tool_calls": [call()]}]
    assert (
        read(*turns, {"role": "tool", "tool_call_id": "c1", "content": result})[2].content == said
    )


@pytest.mark.parametrize(
    "result",
    [{"a": 1}, {"type": "text", "value": 1}, {"text": "a"}, [{"text": "a"}], ["a", "b"], [1]],
)
def test_a_result_that_is_an_object_or_a_list_is_refused_with_the_way_out(result: Any) -> None:
    """Gemma's template writes a mapping otherwise than its JSON."""
    turns = [user(), {"role": "assistant", "tool_calls": [call()]}]
    error = refused(
        "messages[2].content", *turns, {"role": "tool", "tool_call_id": "c1", "content": result}
    )
    assert "the text of its JSON" in error.message


def test_a_call_and_its_result_may_be_written_as_before_tools() -> None:
    turns = [
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "r"},
    ]
    assert read(*turns) == (
        Message("assistant", "", tool_calls=(ToolCall("f"),)),
        Message("tool", "r", name="f"),
    )


def test_both_ways_of_calling_at_once_are_refused() -> None:
    function = {"name": "f", "arguments": "{}"}
    refused(
        "messages[0].function_call",
        {"role": "assistant", "tool_calls": [call()], "function_call": function},
    )


@pytest.mark.parametrize("count", [0, 3])
def test_the_number_of_messages_is_bounded(count: int) -> None:
    error = refused("messages", *[user()] * count, most=2)
    assert error.message == f"`messages`: expected 1 to 2 messages, found {count}"


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (user(images=["x"]), ".images"),
        (user(audio={"id": "x"}), ".audio"),
        (user(function_call={"name": "f"}), ".function_call"),
        ({"content": "x"}, ".role"),
        ({"role": "robot", "content": "x"}, ".role"),
        ({"role": "user"}, ".content"),
        (user(5), ".content"),
        (user([{"type": "image_url", "image_url": {}}]), ".content[0].image_url.url"),
        (user([{"type": "video"}]), ".content[0].type"),
        (user([{"type": "text"}]), ".content[0].text"),
        (user([{"type": "thinking", "thinking": "hm"}]), ".content[0].type"),
        ({"role": "assistant", "content": [{"type": "tool_use"}]}, ".content[0].type"),
        ({"role": "tool", "content": "r", "name": "a b"}, ".name"),
        ("x", ""),
        ({"role": "assistant", "tool_calls": [call([1])]}, ".tool_calls[0].function.arguments"),
        ({"role": "assistant", "tool_calls": [call(name="a b")]}, ".tool_calls[0].function.name"),
        ({"role": "assistant", "tool_calls": [{"id": "x"}]}, ".tool_calls[0].function"),
        (
            {"role": "assistant", "tool_calls": [{**call(), "type": "x"}]},
            ".tool_calls[0].type",
        ),
    ],
)
def test_a_damaged_message_is_named(message: Any, field: str) -> None:
    refused(f"messages[1]{field}", user(), message)


def tool(name: str = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def test_a_tool_may_say_its_name_twice() -> None:
    assert tools_of({**tool(), "name": "f"}) == tools_of(tool())
    for declared in ({**tool(), "name": "g"}, {"type": "function", "name": "f"}):
        with pytest.raises(ApiError, match=r"`tools\[0\].name`"):
            tools_of(declared)


def tools_of(*tools: Any) -> Any:
    return read_tools(Fields({"tools": list(tools)}))


def test_tools_have_what_templates_read() -> None:
    schema = {"type": "object"}
    more = {"strict": True, "return": {"type": "string"}}
    found = tools_of(tool(), tool("g-1.x_", description="d", parameters=schema, **more))
    assert found == (
        {"type": "function", "function": {"name": "f", "description": ""}},
        {
            "type": "function",
            "function": {"name": "g-1.x_", "description": "d", "parameters": schema},
        },
    )
    assert read_tools(Fields({})) == ()
    given = tools_of({"function": {"name": "f", "response": {"type": "object"}}})
    assert given[0]["function"]["response"] == {"type": "object"}


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "retrieval"}], "tools[0].type"),
        ([tool(), tool("")], "tools[1].function.name"),
        ([tool("x" * 257)], "tools[0].function.name"),
        ([tool("a<|b")], "tools[0].function.name"),
        *(([tool(f"a{mark}b")], "tools[0].function.name") for mark in " {}()[],'\"=\x00"),
        ([tool("a\n")], "tools[0].function.name"),
        ([tool(parameters=[1])], "tools[0].function.parameters"),
        ([tool(input_schema={"type": "object"})], "tools[0].function.input_schema"),
        ([tool()] * (MAX_TOOLS + 1), "tools"),
    ],
)
def test_a_damaged_tool_is_named(tools: list[Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        tools_of(*tools)
    assert caught.value.param == param


F, G = tools_of(tool("f"), tool("g"))


ALLOWED = {"type": "allowed_tools"}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {**ALLOWED, "allowed_tools": {"mode": mode, "tools": tools}}


def choice(value: object, tools: Any = (F, G)) -> Any:
    return read_tool_choice(Fields({"tool_choice": value}), tools)


@pytest.mark.parametrize(
    ("value", "declared", "needed", "more"),
    [
        (None, (F, G), (), True),
        ("auto", (F, G), (), True),
        ("none", (), (), True),
        ("required", (F, G), (F, G), True),
        ({"type": "function", "function": {"name": "g"}}, (F, G), (G,), False),
        ("", (F, G), (), True),
        ("any", (F, G), (F, G), True),
        ({"type": "auto"}, (F, G), (), True),
        ({"type": "none"}, (), (), True),
        ({"type": "any"}, (F, G), (F, G), True),
        ({"type": "function", "name": "g"}, (F, G), (G,), False),
        ({"type": "tool", "name": "g"}, (F, G), (G,), False),
        ({"function": {"name": "g"}}, (F, G), (G,), False),
        (allowed("auto", "g"), (G,), (), True),
        (allowed("required", "g"), (G,), (G,), True),
        (allowed("required", "g")["allowed_tools"] | ALLOWED, (G,), (G,), True),
    ],
)
def test_a_choice_says_what_is_declared_and_what_must_be_called(
    value: object, declared: Any, needed: Any, more: bool
) -> None:
    assert choice(value) == (declared, needed, more)


@pytest.mark.parametrize(
    ("value", "tools", "words"),
    [
        ("required", (), "needs `tools`"),
        ("sometimes", (F,), "expected auto, none, required or a tool"),
        (5, (F,), "expected an object"),
        ({"type": "x"}, (F,), "only functions and custom tools"),
        ({"type": "function", "function": {"name": "h"}}, (F, G), "declares no `h`"),
        (allowed("auto", "h"), (F, G), "declares no `h`"),
        (allowed("auto"), (F, G), "expected one or more"),
        (allowed("never", "g"), (F, G), "expected auto or required"),
        (allowed("auto", *["g"] * (MAX_TOOLS + 1)), (F, G), "expected at most"),
    ],
)
def test_a_choice_that_cannot_be_kept_is_refused(value: object, tools: Any, words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        choice(value, tools)
    assert str(caught.value.param).startswith("tool_choice")


def test_without_tools_there_is_nothing_to_choose() -> None:
    assert choice("auto", ()) == choice("none", ()) == ((), (), True)
