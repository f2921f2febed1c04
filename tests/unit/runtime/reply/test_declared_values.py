"""Names and types of a call by its declaration."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.runtime.reply.declared_values import as_declared
from gemma4_compile.runtime.reply.tool_calls import ToolCall, parse_tool_call

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
        {"type": "STRING"},
        {"enum": ["1", "2"]},
        {"const": "5"},
        {"allOf": [{"title": "a"}, TEXT]},
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
        {"$ref": "#/$defs/N"},
        {"$ref": "#/properties/a"},
        {"enum": ["5", 5]},
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


NUMBER = {"type": "number"}


@pytest.mark.parametrize(
    ("said", "schema", "value"),
    [
        ('"5"', {"type": "integer"}, 5),
        ('"-1.50"', NUMBER, -1.5),
        ('"5"', {"type": ["integer", "null"]}, 5),
        ('"5"', {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
        ('"5"', {"enum": [5, 6]}, 5),
        ('"True"', {"type": "boolean"}, True),
        ("TRUE", {"type": "boolean"}, True),
        ('"[1, 2]"', {"type": "array"}, [1, 2]),
        ('\'{"b": ["x"]}\'', {"type": "object"}, {"b": ["x"]}),
        ("'[\"5\"]'", {"type": "array", "items": {"type": "integer"}}, [5]),
        ('"1.5"', {"type": "integer"}, "1.5"),
        ('"five"', NUMBER, "five"),
        ('"05"', NUMBER, "05"),
        ('"1e999"', NUMBER, "1e999"),
        ('"yes"', {"type": "boolean"}, "yes"),
        ('"[1, 2"', {"type": "array"}, "[1, 2"),
        ('"[1]"', {"type": "object"}, "[1]"),
        ('"5"', {"type": ["integer", "string"]}, "5"),
        ('"5"', {}, "5"),
        ('"null"', {"type": ["integer", "null"]}, "null"),
    ],
)
def test_a_text_is_what_it_spells_where_no_texts_are_taken(
    said: str, schema: Any, value: object
) -> None:
    found = arguments(f"call:f{{a:{said}}}", schema)["a"]
    assert (found, type(found) is str) == (value, type(value) is str)


def test_references_lead_to_types() -> None:
    parameters = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/Zip"}, "b": {"anyOf": [{"$ref": "#/$defs/L"}]}},
        "$defs": {"Zip": TEXT, "L": {"type": "array", "items": {"$ref": "#/$defs/Zip"}}},
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    found = as_declared(parse_tool_call(["call:f{a:90210,b:[1.10]}"]), [tool])
    assert found.arguments == {"a": "90210", "b": ["1.10"]}


@pytest.mark.parametrize("reference", ["#/$defs/Zip%20code", "#/anyOf/1", "#/properties/b"])
def test_references_lead_to_what_they_do_in_the_declaration(reference: str) -> None:
    parameters = {
        "properties": {"a": {"$ref": reference}, "b": TEXT},
        "$defs": {"Zip code": TEXT},
        "anyOf": [{}, TEXT],
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    assert as_declared(ToolCall("f", {"a": 90210}), [tool]).arguments == {"a": "90210"}


class Read(dict[str, Any]):
    """A schema that is not looked at without end."""

    left = 1000

    def get(self, key: str, default: Any = None) -> Any:
        Read.left -= 1
        assert Read.left, "the same choices are followed again and again"
        return super().get(key, default)


def test_choices_that_lead_to_the_same_are_followed_once() -> None:
    last: dict[str, Any] = Read(TEXT)
    for _ in range(30):
        last = Read(anyOf=[last, last])
    itself = Read(oneOf=[Read({"$ref": "#/$defs/I"}), Read({"$ref": "#/$defs/I"})])
    parameters = {"properties": {"a": last, "b": itself}, "$defs": {"I": itself}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    assert as_declared(ToolCall("f", {"a": 12, "b": 1}), [tool]).arguments == {"a": "12", "b": 1}


@pytest.mark.parametrize(
    ("said", "declared", "name"),
    [
        ("google:mcp:text:create-pdf", ["create-pdf", "other"], "create-pdf"),
        ("functions.f", ["f"], "f"),
        ("f:", ["f"], "f"),
        ("mcp.files/read", ["mcp:files:read", "read"], "mcp:files:read"),
        ("Bash", ["bash"], "bash"),
        ("default_api.Bash", ["bash"], "bash"),
        ("Bash", ["bash", "Bash"], "Bash"),
        ("BASH", ["bash", "Bash"], "BASH"),
        ("a.f", ["b.f", "f.a"], "a.f"),
        ("g", ["f"], "g"),
        (":", ["f"], ":"),
    ],
)
def test_a_name_is_that_of_the_one_tool_that_it_can_be(
    said: str, declared: list[str], name: str
) -> None:
    tools = [{"type": "function", "function": {"name": each}} for each in declared]
    assert as_declared(ToolCall(said, {"a": 1}), tools) == ToolCall(name, {"a": 1})
