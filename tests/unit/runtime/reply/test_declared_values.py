"""Numbers that a declaration calls texts."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.reply.declared_values import as_declared
from gemma4_compile.runtime.reply.tool_calls import parse_tool_call

TEXT = {"type": "string"}


def arguments(call: str, schema: Any, name: str = "f") -> Any:
    properties = {"type": "object", "properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": name, "parameters": properties}}
    other = {"type": "function", "function": {"name": "other"}}
    return as_declared(parse_tool_call([call]), (other, tool)).arguments


@pytest.mark.parametrize(
    "schema",
    [
        TEXT,
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 5}]},
    ],
)
@pytest.mark.parametrize("number", ["90210", "1.10", "1E5", "-3", "12345678901234567890"])
def test_a_number_is_a_text_where_only_texts_are_taken(schema: Any, number: str) -> None:
    assert arguments(f"call:f{{a:{number},b:5}}", schema) == {"a": number, "b": 5}


@pytest.mark.parametrize(
    "schema",
    [
        None,
        True,
        {},
        {"type": "integer"},
        {"type": ["string", "integer"]},
        {"anyOf": [TEXT, {"type": "number"}]},
        {"anyOf": [TEXT, {"$ref": "#/$defs/N"}]},
        {"anyOf": [TEXT, None]},
        {"anyOf": []},
        {"type": "array", "items": TEXT},
    ],
)
def test_elsewhere_it_stays_a_number(schema: Any) -> None:
    assert arguments("call:f{a:5}", schema) == {"a": 5}


def test_other_values_and_other_tools_stay() -> None:
    assert arguments("call:f{a:true}", TEXT) == {"a": True}
    assert arguments("call:f{a:null}", TEXT) == {"a": None}
    assert arguments("call:f{a:5}", TEXT, name="g") == {"a": 5}
    assert as_declared(parse_tool_call(["call:f{a:5}"]), ()).arguments == {"a": 5}


def test_values_inside_others() -> None:
    schema = {
        "type": "array",
        "items": {"type": "object", "properties": {"zip": TEXT, "n": {"type": "integer"}}},
    }
    assert arguments("call:f{a:[{zip:90210,n:1,x:2}]}", schema) == {
        "a": [{"zip": "90210", "n": 1, "x": 2}]
    }
