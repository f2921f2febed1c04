"""Schemas of tools as chat templates take them, and as the shipped one shows them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.reply.declarations import MAX_DEPTH, SchemaWriter
from gemma4_compile.template.chat_template import ChatTemplate
from gemma4_compile.tiny.checkpoint import shipped_file

STRING: Any = {"type": "string"}
INTEGER: Any = {"type": "integer"}
NULL: Any = {"type": "null"}
COLOUR: Any = {"type": "string", "enum": ["red", "blue"]}
GUEST: Any = {"type": "object", "properties": {"surname": STRING}, "required": ["surname"]}
DEFINITIONS: Any = {"Guest": GUEST, "Colour": COLOUR, "a/b~c": INTEGER}
TEMPLATE = ChatTemplate(shipped_file("chat_template.jinja").decode(), {"bos_token": "<bos>"})


def of(inner: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"k": inner}, "required": ["k"]}


def written(inner: Any, **more: Any) -> Any:
    writer = SchemaWriter()
    found: Any = writer.write_out({**of(inner), "$defs": DEFINITIONS, **more})
    assert writer.missing == []
    assert set(found) == {"type", "properties", "required"}
    return found["properties"]["k"]


def shown(parameters: Any) -> str:
    function = {"name": "f", "description": "", "parameters": parameters}
    tools = [{"type": "function", "function": function}]
    return TEMPLATE.render([Message("user", "Hi")], tools=tools)


CASES: dict[str, tuple[Any, Any]] = {
    "a reference": ({"$ref": "#/$defs/Guest"}, GUEST),
    "with a description": (
        {"$ref": "#/$defs/Guest", "description": "who"},
        {**GUEST, "description": "who"},
    ),
    "with escapes": ({"$ref": "#/$defs/a~1b~0c"}, INTEGER),
    "with percents": ({"$ref": "#/%24defs/Colour"}, COLOUR),
    "to a property": (
        {"type": "object", "properties": {"a": STRING, "b": {"$ref": "#/$defs/Colour"}}},
        {"type": "object", "properties": {"a": STRING, "b": COLOUR}},
    ),
    "in a list": (
        {"type": "array", "items": {"$ref": "#/$defs/Guest"}},
        {"type": "array", "items": GUEST},
    ),
    "in a dictionary": (
        {"type": "object", "additionalProperties": {"$ref": "#/$defs/Colour"}},
        {"type": "object", "additionalProperties": COLOUR},
    ),
    "with definitions of its own": (
        {"$ref": "#/$defs/Own", "$defs": {"Own": INTEGER}},
        INTEGER,
    ),
    "Optional": ({"anyOf": [STRING, NULL]}, {**STRING, "nullable": True}),
    "Optional enum": (
        {"anyOf": [{"$ref": "#/$defs/Colour"}, NULL], "description": "d", "default": None},
        {**COLOUR, "description": "d", "default": None, "nullable": True},
    ),
    "Optional object": (
        {"oneOf": [NULL, {"$ref": "#/$defs/Guest"}]},
        {**GUEST, "nullable": True},
    ),
    "types": (
        {"type": ["string", "null"], "enum": ["a", None]},
        {"type": "string", "enum": ["a"], "nullable": True},
    ),
    "one type": ({"type": ["integer"]}, INTEGER),
    "types in capitals": ({"type": ["STRING", "NULL"]}, {**STRING, "nullable": True}),
    "Optional in capitals": (
        {"anyOf": [{**GUEST, "type": "OBJECT"}, {"type": "NULL"}]},
        {**GUEST, "nullable": True},
    ),
    "null": ({"anyOf": [NULL]}, NULL),
    "const": ({"const": "person"}, {"type": "string", "enum": ["person"]}),
    "integers": ({"enum": [1, 2]}, {"type": "integer", "enum": [1, 2]}),
    "allOf one": (
        {"allOf": [{"$ref": "#/$defs/Guest"}], "description": "d"},
        {**GUEST, "description": "d"},
    ),
    "allOf two": (
        {"allOf": [{"$ref": "#/$defs/Guest"}, of(INTEGER)]},
        {
            "type": "object",
            "properties": {"k": INTEGER, "surname": STRING},
            "required": ["surname", "k"],
        },
    ),
    "enums": (
        {"anyOf": [COLOUR, {"const": "green"}]},
        {"type": "string", "enum": ["red", "blue", "green"]},
    ),
    "numbers": ({"anyOf": [INTEGER, {"type": "number"}]}, {"type": "number"}),
    "an enum or any text": (
        {"anyOf": [COLOUR, STRING], "description": "A colour"},
        {"type": "string", "description": 'A colour. Either "red" or "blue", or string.'},
    ),
    "types that differ": (
        {"anyOf": [STRING, {"type": "array", "items": INTEGER}, NULL]},
        {
            "type": "array",
            "items": INTEGER,
            "description": "Either string, or array of integer.",
            "nullable": True,
        },
    ),
    "several types": (
        {"type": ["string", "integer"]},
        {"type": "string", "description": "Either string, or integer."},
    ),
    "objects": (
        {
            "oneOf": [
                {"properties": {"kind": {"const": "a"}, "x": INTEGER}, "required": ["kind", "x"]},
                {"properties": {"kind": {"const": "b"}}, "required": ["kind"]},
            ]
        },
        {
            "type": "object",
            "description": "Either object (kind, x), or object (kind).",
            "properties": {"kind": {"type": "string", "enum": ["a", "b"]}, "x": INTEGER},
            "required": ["kind"],
        },
    ),
    "rules for names": (
        {**GUEST, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        GUEST,
    ),
    "a tuple": (
        {"type": "array", "items": [STRING, STRING]},
        {"type": "array", "items": STRING},
    ),
    "many": (
        {"anyOf": [{"type": "array", "items": {"type": f"t{index}"}} for index in range(9)]},
        {
            "type": "array",
            "items": {"type": "t0"},
            "description": f"Either {', or '.join(f'array of t{i}' for i in range(8))}, or others.",
        },
    ),
    "anything": (True, {}),
    "nothing": (None, {}),
    "the same twice": ({"anyOf": [GUEST, GUEST]}, GUEST),
}


@pytest.mark.parametrize("name", CASES)
def test_a_schema_is_written_in_the_words_of_templates(name: str) -> None:
    given, expected = CASES[name]
    found = written(given)
    assert found == expected
    assert shown(of(found)) == shown(of(expected))


@pytest.mark.parametrize(
    "plain",
    [
        {},
        of(STRING),
        of({"type": "array", "items": {**GUEST, "title": "g"}, "minItems": 2}),
        of({"type": "object", "additionalProperties": False}),
        of({"type": "string", "enum": ["a"], "description": "d", "default": "a"}),
        {"type": "object", "properties": {"$ref": STRING, "anyOf": COLOUR, "type": INTEGER}},
        of({}),
    ],
)
def test_a_plain_schema_stays_as_it_is(plain: Any) -> None:
    assert SchemaWriter().write_out(plain) == plain


def test_a_whole_declaration_may_be_a_reference() -> None:
    found = SchemaWriter().write_out({"$ref": "#/$defs/Guest", "$defs": DEFINITIONS})
    assert found == GUEST


def test_an_object_ends_a_circle() -> None:
    tree = {"type": "object", "properties": {"children": {"type": "array"}}, "description": "d"}
    tree["properties"]["children"]["items"] = {"$ref": "#/$defs/Tree"}  # type: ignore[index]
    found = SchemaWriter().write_out({**of({"$ref": "#/$defs/Tree"}), "$defs": {"Tree": tree}})
    children = {"type": "array", "items": {"type": "object"}}
    assert found == of({"type": "object", "properties": {"children": children}, "description": "d"})
    assert SchemaWriter().write_out({"$ref": "#"}) == {"type": "object"}
    assert SchemaWriter().write_out(of({"$ref": "#/properties/k"})) == of({"type": "object"})


@pytest.mark.parametrize(
    "reference", ["#/$defs/None", "Guest", "https://example.org/a.json", "#/type/x"]
)
def test_a_reference_that_points_nowhere_is_told(reference: str) -> None:
    writer = SchemaWriter()
    assert writer.write_out(of({"$ref": reference, "description": "d"})) == of({"description": "d"})
    assert writer.missing == [reference]


def test_a_long_choice_takes_no_more_time_than_it_is_long() -> None:
    # Work that grows with the square would take minutes.
    count = 20_000
    names = [f"n{index}" for index in range(count)]
    objects = [{"type": "object", "properties": {"k": {"const": name}}} for name in names[:4000]]
    found: Any = SchemaWriter().write_out(of({"oneOf": objects}))
    assert found["properties"]["k"]["properties"]["k"]["enum"] == names[:4000]
    parts = [{"properties": {name: {}}, "required": [name]} for name in names]
    found = SchemaWriter().write_out(of({"allOf": parts[:4000]}))
    assert found["properties"]["k"]["required"] == names[:4000]
    both = [{"type": "object", "properties": {}, "required": names}] * 2
    SchemaWriter().write_out(of({"oneOf": both}))
    SchemaWriter().write_out(of({"allOf": both}))


def test_references_cannot_double_without_end() -> None:
    levels: Any = {"d12": STRING}
    for level in range(12):
        both = {"$ref": f"#/$defs/d{level + 1}"}
        levels[f"d{level}"] = {"type": "object", "properties": {f"{i}": both for i in range(4)}}
    with pytest.raises(UsageError, match="too long with its references"):
        SchemaWriter().write_out({"$ref": "#/$defs/d0", "$defs": levels})
    deep: Any = STRING
    for _ in range(MAX_DEPTH + 1):
        deep = {"type": "array", "items": deep}
    with pytest.raises(UsageError, match="too long with its references"):
        SchemaWriter().write_out(of(deep))


def test_null_and_an_empty_list_in_the_place_of_properties_are_none() -> None:
    # As programs in Go and PHP write a tool without arguments.
    nothings: list[Any] = [None, []]
    for nothing in nothings:
        schema = {"type": "object", "properties": nothing, "required": None, "description": None}
        assert SchemaWriter().write_out(schema) == {"type": "object"}
    kept = of({"const": None, "default": None, "items": None})
    assert SchemaWriter().write_out(kept) == of({"enum": [None], "default": None, "type": "null"})


@pytest.mark.parametrize("inner", ["string", 3, ["string"]])
def test_an_argument_without_a_schema_is_named(inner: Any) -> None:
    with pytest.raises(UsageError, match="the argument `k` has no JSON schema") as caught:
        SchemaWriter().write_out(of(inner))
    assert '{"type": "string"}' in str(caught.value.hint)


LISTED = {"enum": [f"v{i}" for i in range(12_000)]}
HOSTILE: dict[str, tuple[Any, int]] = {
    "values that many references put in": (LISTED, 10_000),
    "nested values": ({"const": [[{"a": i} for i in range(200)]] * 60}, 10_000),
    "keys": ({f"k{i}": 1 for i in range(2_000)}, 10_000),
    "texts": ({"type": "object", "properties": {"x": {"description": "d" * 200_000}}}, 10_000),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_references_put_in_is_weighed_with_its_data(case: str) -> None:
    target, times = HOSTILE[case]
    several = {"anyOf": [{"$ref": "#/$defs/t"}] * times}
    by_name = {f"p{i}": {"$ref": "#/$defs/t"} for i in range(times)}
    begin = time.process_time()
    for inner in (of(several), {"type": "object", "properties": by_name}):
        with pytest.raises(UsageError, match="too long with its references"):
            SchemaWriter().write_out({**inner, "$defs": {"t": target}})
    assert time.process_time() - begin < 5, "a value at a time would take a minute"


def test_a_long_list_of_values_is_declared_once() -> None:
    assert written(LISTED)["enum"] == LISTED["enum"]


def test_few_types_of_many_are_told() -> None:
    many = {"type": [f"t{i}" for i in range(60_000)], **{f"k{i}": 1 for i in range(3000)}}
    begin = time.process_time()
    assert "description" in written(many)
    assert time.process_time() - begin < 5, "each type has a copy of the schema"


def test_a_type_that_is_said_twice_is_one() -> None:
    twice = {"type": ["object", "object"], "properties": {"a": {"type": "string"}}}
    assert written(twice) == {**twice, "type": "object"}
