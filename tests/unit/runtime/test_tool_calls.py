from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_compile.runtime.tool_calls import ToolCall, ToolCallError, parse_tool_call

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


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("call:f{}", {}),
        (" call: f { a : 1 , b : x y } ", {"a": 1, "b": "x y"}),
        ('call:f{"a":"b"}', {"a": "b"}),  # as JSON writes it
        (f"call:f{{{QUOTE}a{QUOTE}:-1.5e3}}", {"a": -1500.0}),
        ("call:f{a:1,}", {"a": 1}),
    ],
)
def test_small_deviations_are_read(text: str, arguments: dict[str, Any]) -> None:
    assert parse_tool_call(texts(text)).arguments == arguments


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f{}",
        "call:{}",
        "call:f",
        "call:f{",
        "call:f{a}",
        "call:f{a:}",
        "call:f{a:1}}",
        "call:f{a:[1}",
        "call:f{a:1 b:[}",
        f"call:f{{a:{QUOTE}x}}",
        f"call:f{{a:{QUOTE}x{QUOTE}{QUOTE}y{QUOTE}}}",
        "call:f{a:" + "[" * 100_000,
    ],
)
def test_what_is_no_call_is_refused(text: str) -> None:
    with pytest.raises(ToolCallError):
        parse_tool_call(texts(text))
