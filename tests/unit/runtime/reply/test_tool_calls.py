from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_compile.runtime.reply.tool_calls import (
    ToolCall,
    ToolCallError,
    parse_tool_call,
    parse_tool_calls,
)

QUOTE = "\x00"  # stands for the quote token, which no text spells


def texts(written: str) -> list[str]:
    return written.split(QUOTE)


def written(value: Any) -> str:
    """A value as the model's own template writes it."""
    if isinstance(value, str):
        return QUOTE + value + QUOTE
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{written(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


keys = st.text(st.sampled_from("abcdefgXYZ_0123456789-"), min_size=1, max_size=8)
strings = st.text(st.characters(exclude_characters=QUOTE), max_size=12)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | strings
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)
)


@given(keys, st.dictionaries(keys, values, max_size=4))
def test_what_the_template_writes_is_read_back(name: str, arguments: dict[str, Any]) -> None:
    assert parse_tool_call(texts(f"call:{name}{written(arguments)}")) == ToolCall(name, arguments)


def test_an_example_of_the_format() -> None:
    example = 'call:get_weather{city:"Rome",days:2,deep:{a:[1,true,null]}}'
    call = parse_tool_call(texts(example.replace('"', QUOTE)))
    assert call.name == "get_weather"
    assert call.arguments == {"city": "Rome", "days": 2, "deep": {"a": [1, True, None]}}
    assert json.loads(call.arguments_json()) == call.arguments


# Read by the page as well: examples/web/tests/reply.test.ts.
DIALECTS = json.loads((Path(__file__).parents[3] / "call_dialects.json").read_text("utf-8"))


@pytest.mark.parametrize("case", DIALECTS, ids=lambda case: case["why"])
def test_drift_is_read_where_one_reading_is_certain(case: dict[str, Any]) -> None:
    found = case["text"].split('<|"|>')
    if "calls" in case:
        calls = [ToolCall(call["name"], call["arguments"]) for call in case["calls"]]
        assert parse_tool_calls(found) == calls
    elif case["arguments"] is None:
        with pytest.raises(ToolCallError):
            parse_tool_call(found)
    else:
        call = parse_tool_call(found)
        assert (call.name, call.arguments) == ("f", case["arguments"])
        assert [type(value) for value in json.loads(call.arguments_json()).values()] == [
            type(value) for value in case["arguments"].values()
        ]


# What models wrote in public reports, `"` in the place of the quote token.
REPAIRED = {
    "no quote token before": ('{q:weather in Tokyo"}', {"q": "weather in Tokyo"}),
    "nor before a comma": ('{q:Paris, France",n:5}', {"q": "Paris, France", "n": 5}),
    "no quote token behind": ('{q:"ls -la}', {"q": "ls -la"}),
    "nor behind braces": ('{q:"echo {a}}', {"q": "echo {a}"}),
    "nor before another string": (
        '{a:"f() { x, y }\n,b:"z"}',
        {"a": "f() { x, y }", "b": "z"},
    ),
    "an apostrophe before": ("{p:':\\s*\\w+'\"}", {"p": ":\\s*\\w+"}),
    "a backtick before": ('{p:`x y",n:1}', {"p": "x y", "n": 1}),
    "in a list": ('{a:[x","y"]}', {"a": ["x", "y"]}),
    "no comma after a string": ('{a:"look"b:90}', {"a": "look", "b": 90}),
    "no last bracket": ('{a:[{b:"c:\\d",n:1}]', {"a": [{"b": "c:\\d", "n": 1}]}),
    "no last bracket after a number": ("{a:1", {"a": 1}),
}


@pytest.mark.parametrize(("said", "arguments"), REPAIRED.values(), ids=REPAIRED)
def test_a_mark_that_is_missing_is_put_where_it_alone_can_be(
    said: str, arguments: dict[str, Any]
) -> None:
    found = texts("call:f" + said.replace('"', QUOTE))
    assert parse_tool_calls(found) == [ToolCall("f", arguments)]
    if len(found) % 2 == 0 or said[-1] != "}":
        with pytest.raises(ToolCallError):  # the reply ended there: more may have come
            parse_tool_calls(found, is_whole=False)


@pytest.mark.parametrize(
    "said",
    [
        '{q:"ls, b:2}',  # a text, or a text and a number
        '{a:1,"b:2}',
        '{a:"x" "y","b:1}',
        "{a:{b:1,c:2}",  # whose pair `c` is
        "{",
        '{q:"' + "x, }] " * 200 + ',p:"x"}',  # too many places to try
        "{a:[" + "1," * 2000 + '1],c:"' + "x, " * 60 + ',p:"x"}',
        '{q:"' + "x" * 2**15 + "}",
    ],
)
def test_a_mark_that_may_be_missing_in_several_places_stays_so(said: str) -> None:
    with pytest.raises(ToolCallError):
        parse_tool_calls(texts("call:f" + said.replace('"', QUOTE)))


def test_quote_tokens_in_letters_are_read_as_such() -> None:
    assert parse_tool_call(['call:f{a:<|"|>x, y<|"|>}']) == ToolCall("f", {"a": "x, y"})
    assert parse_tool_call(['call:f{a:<|"|>x, y', "}"]) == ToolCall("f", {"a": "x, y"})
    mark = 'say <|"|>'
    assert parse_tool_call(["call:f{a:", mark, "}"]) == ToolCall("f", {"a": mark})


@pytest.mark.parametrize(
    "said",
    [
        '```json\n{"name": "f", "arguments": {"a": 1}}\n```',
        "`call:f{a:1}`",
        "```\ncall:f{a:1}\n```\n",
        '{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\\"a\\": 1}"}',
        '{"tool": "f", "args": {"a": 1}}',
        '{"index": 0, "name": "f", "input": {"a": 1}}',
    ],
)
def test_forms_of_other_models(said: str) -> None:
    assert parse_tool_calls([said]) == [ToolCall("f", {"a": 1})]


@pytest.mark.parametrize("said", ['{"name": "f"}', '{"name": "f", "arguments": null}'])
def test_a_call_that_names_no_arguments_has_none(said: str) -> None:
    assert parse_tool_calls([said]) == [ToolCall("f", {})]


@pytest.mark.parametrize("number", ["1.10", "1E5", "0.1234567890123456789012", "9" * 400, "-0.0"])
@pytest.mark.parametrize("form", ["call:f{{a:{}}}", 'call:f{{"a":{}}}'])
def test_numbers_keep_their_digits(form: str, number: str) -> None:
    call = parse_tool_call([form.format(number)])
    assert call.arguments_json() == f'{{"a": {number}}}'


@pytest.mark.parametrize("between", ["", ",", "\n", " , ", ";", " ;\n"])
def test_calls_between_one_pair_of_marks_are_all_read(between: str) -> None:
    written = f"call:f{{a:{QUOTE}x{QUOTE}}}{between}call:g{{}}{between}call:f(b=1)"
    assert parse_tool_calls(texts(written)) == [
        ToolCall("f", {"a": "x"}),
        ToolCall("g", {}),
        ToolCall("f", {"b": 1}),
    ]
    with pytest.raises(ToolCallError, match="expected one call, found 3"):
        parse_tool_call(texts(written))


SEVERAL = {
    "no call:": "f{a:1}\ng(b=2)",
    "semicolon": "f{a:1}; g{b:2};",
    "list": '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": "{\\"b\\": 2}"}]',
    "lines of JSON": '{"name": "f", "arguments": {"a": 1}}\n{"name": "g", "parameters": {"b": 2}}',
    "tool_calls": '{"tool_calls": [{"name": "f", "arguments": {"a": 1}}, '
    '{"function": {"name": "g", "arguments": {"b": 2}}}]}',
}


@pytest.mark.parametrize("written", SEVERAL.values(), ids=SEVERAL)
def test_several_calls_in_other_models_forms(written: str) -> None:
    assert parse_tool_calls([written]) == [ToolCall("f", {"a": 1}), ToolCall("g", {"b": 2})]


def test_a_name_alone_is_a_call_once_it_was_closed() -> None:
    assert parse_tool_calls(["call:f"]) == [ToolCall("f")]
    with pytest.raises(ToolCallError):
        parse_tool_calls(["call:f"], is_whole=False)


@pytest.mark.parametrize("text", ["f{a:1} g{b:1}", "call:f{}, and g", "call:f{}\n\nI see (1)"])
def test_what_may_be_no_call_ends_the_reading(text: str) -> None:
    with pytest.raises(ToolCallError):
        parse_tool_calls([text])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "call",
        "call{}",
        "call:f{}g{}",
        "call:{}",
        "call:f and g",
        "call:f{",
        "call:f{a}",
        "call:f{a:}",
        "call:f{a:1}}}}}",
        "call:f{a:[1}",
        "call:f{a:1 b:[}",
        f"call:f{{a:{QUOTE}x, y:z}}",
        f"call:f{{a:{QUOTE}x{QUOTE}{QUOTE}y{QUOTE}}}",
        "call:f{a:" + "[" * 100_000,
        'call:f{"a":' + "[" * 100_000,
        'call:f{"a":' + "[" * 100 + "]" * 100 + "}",
        "call:f{a:" + "9" * 5000 + "}",
        'call:f{"a":' + "9" * 5000 + "}",
    ],
)
def test_what_is_no_call_is_refused(text: str) -> None:
    with pytest.raises(ToolCallError):
        parse_tool_call(texts(text))
