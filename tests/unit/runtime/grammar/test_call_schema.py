"""Arguments of calls against the declarations that random replies were held to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from gemma4_compile.errors import Gemma4CompileError, UsageError
from gemma4_compile.runtime.grammar.grammar import Grammars
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from tests.random_calls import STOP, TOKENIZER, events_of, tool
from tests.scripted_engine import VOCABULARY

NULL = {"type": "null"}
COLOURS = ("red", "blue")
COLOUR = {"type": "string", "enum": list(COLOURS)}
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
DEFINITIONS = {"C": COLOUR, "P": POINT}
Check = Callable[[Any], object]


def whole(value: Any) -> bool:
    return type(value) is int


def a_point(value: Any) -> bool:
    return set(value) == {"x"} and whole(value["x"])


def a_tagged(tag: str, name: str) -> dict[str, Any]:
    """A class of a tagged union as pydantic declares it: the tag is no required property."""
    kind = {"const": tag, "default": tag, "type": "string"}
    return {"type": "object", "properties": {"kind": kind, name: COLOUR}, "required": [name]}


def obj(required: str = "", **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required.split()}


NODE = {**obj("v next", v={"type": "integer"}, next={"anyOf": [{"$ref": "#/$defs/N"}, NULL]})}
TREE = obj("kids", kids={"type": "array", "items": {"$ref": "#/$defs/T"}, "maxItems": 1})
MAYBE = {"anyOf": [{"type": "integer"}, NULL], "type": "integer"}
TAG = {"discriminator": {"propertyName": "kind"}}
UNION = {"oneOf": [a_tagged("a", "x"), a_tagged("b", "y")], **TAG}
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"  # as pydantic and zod declare them
ADDRESS = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@"
    r"([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
)
ODD = ["a b,c:d", "e=f", "i'j", 'k"l', "{m}", "ü", "@n.o/p", ""]


def a_list(node: Any) -> bool:
    return node is None or (whole(node["v"]) and a_list(node["next"]))


def a_tree(node: Any) -> bool:
    return set(node) == {"kids"} and all(map(a_tree, node["kids"]))


# The schema of a required argument, and what its values are.
ARGUMENTS: dict[str, tuple[Any, Check]] = {
    "constant": ({"const": "person", "type": "string"}, lambda k: k == "person"),
    "constant number": ({"const": 3}, lambda k: k == 3),
    "constant null": ({"const": None}, lambda k: k is None),
    "empty constant": ({"const": ""}, lambda k: k == ""),
    "constant object": (
        {"const": {"a": [1, {"b c": "x"}]}},
        lambda k: k == {"a": [1, {"b c": "x"}]},
    ),
    "integers": ({"type": "integer", "enum": [1, 2]}, lambda k: k in (1, 2)),
    "texts like numbers": ({"enum": ["1", "true", "null", "02139"]}, lambda k: isinstance(k, str)),
    "values of all kinds": (
        {"enum": [1, "1", None, True, 2.5, "a b, c}"]},
        lambda k: k in [1, "1", None, True, 2.5, "a b, c}"],
    ),
    "values, one null": (
        {"type": ["string", "null"], "enum": ["a", None]},
        lambda k: k in ("a", None),
    ),
    "values and type": ({"type": "integer", "enum": ["a", 7]}, lambda k: k == 7),
    "optional": ({"anyOf": [COLOUR, NULL]}, lambda k: k in (*COLOURS, None)),
    "nullable": ({"type": ["integer", "null"]}, lambda k: k is None or whole(k)),
    "nullable as OpenAPI says": (
        {"type": "integer", "nullable": True},
        lambda k: k is None or whole(k),
    ),
    "several types": ({"type": ["integer", "boolean"]}, lambda k: type(k) in (int, bool)),
    "reference": ({"$ref": "#/$defs/C"}, lambda k: k in COLOURS),
    "reference to an object": ({"$ref": "#/$defs/P"}, a_point),
    "described reference": (
        {"$ref": "#/$defs/C", "title": "t", "default": "red"},
        lambda k: k in COLOURS,
    ),
    "narrowed reference": ({"$ref": "#/$defs/C", "enum": ["red"]}, lambda k: k == "red"),
    "reference in allOf": ({"allOf": [{"$ref": "#/$defs/P"}], "description": "d"}, a_point),
    "reference to a part": ({"$ref": "#/$defs/P/properties/x"}, whole),
    "list of references": (
        {"type": "array", "items": {"$ref": "#/$defs/P"}},
        lambda k: all(map(a_point, k)),
    ),
    "linked list": ({"$ref": "#/$defs/N"}, a_list),
    "tree": ({"$ref": "#/$defs/T"}, a_tree),
    "range": ({"type": "integer", "minimum": 0, "maximum": 9}, lambda k: whole(k) and 0 <= k <= 9),
    "open range": (
        {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3},
        lambda k: k in (1, 2),
    ),
    "range as draft 4 says": (
        {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 2},
        lambda k: k in (1, 2),
    ),
    "from": ({"type": "integer", "minimum": 5}, lambda k: whole(k) and k >= 5),
    "up to": ({"type": "integer", "maximum": -5}, lambda k: whole(k) and k <= -5),
    "64 bits": ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, whole),
    "range of fractions": (
        {"type": "number", "minimum": 0.5, "maximum": 1.5},
        lambda k: 0.5 <= k <= 1.5,
    ),
    "multiple": ({"type": "integer", "multipleOf": 5, "minimum": 0}, lambda k: k % 5 == 0),
    "range of a choice": (
        {
            "type": "integer",
            "anyOf": [{"minimum": 10, "maximum": 20}, {"minimum": 30, "maximum": 40}],
        },
        lambda k: 10 <= k <= 20 or 30 <= k <= 40,
    ),
    "length": ({"type": "string", "minLength": 3, "maxLength": 5}, lambda k: 3 <= len(k) <= 5),
    "pattern": (
        {"type": "string", "pattern": r"^[A-Z]{2}\d{2}$"},
        lambda k: re.fullmatch("[A-Z]{2}[0-9]{2}", k),
    ),
    "part of a text": (
        {"type": "string", "pattern": "a/b", "maxLength": 8},
        lambda k: "a/b" in k and len(k) < 9,
    ),
    "date": ({"type": "string", "format": "date"}, lambda k: re.fullmatch(r"\d{4}-\d\d-\d\d", k)),
    "a type in Google's letters": (
        {"type": "INTEGER", "maximum": 9},
        lambda k: whole(k) and k <= 9,
    ),
    "a format of no library": ({"type": "string", "format": "color"}, lambda k: isinstance(k, str)),
    "dictionary": (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        lambda k: all(map(whole, k.values())),
    ),
    "dictionary of references": (
        {"type": "object", "additionalProperties": {"$ref": "#/$defs/P"}},
        lambda k: all(map(a_point, k.values())),
    ),
    "dictionary of a size": (
        {"type": "object", "additionalProperties": NULL, "minProperties": 1, "maxProperties": 1},
        lambda k: list(k.values()) == [None],
    ),
    "dictionary of names": (
        {"type": "object", "propertyNames": {"$ref": "#/$defs/C"}, "additionalProperties": NULL},
        lambda k: set(k) <= set(COLOURS) and set(k.values()) <= {None},
    ),
    "dictionary of a pattern": (
        {"type": "object", "patternProperties": {"^x[0-9]$": NULL}, "additionalProperties": False},
        lambda k: all(re.fullmatch("x[0-9]", name) and v is None for name, v in k.items()),
    ),
    "names beside others": (
        {**obj("a", a=NULL), "additionalProperties": {"type": "integer"}},
        lambda k: k.pop("a") is None and all(map(whole, k.values())),
    ),
    "list of a length": (
        {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
        lambda k: 2 <= len(k) <= 3 and all(map(whole, k)),
    ),
    "a list that is not empty": (
        {"type": "array", "items": NULL, "minItems": 1},
        lambda k: k and set(k) == {None},
    ),
    "tuple": (
        {"type": "array", "prefixItems": [NULL, COLOUR], "minItems": 2, "maxItems": 2},
        lambda k: k[0] is None and k[1] in COLOURS and len(k) == 2,
    ),
    "tuple as draft 7 says": (
        {"type": "array", "items": [NULL, COLOUR], "minItems": 2, "maxItems": 2},
        lambda k: k[0] is None and k[1] in COLOURS and len(k) == 2,
    ),
    "tuple with a rest": (
        {"type": "array", "prefixItems": [NULL], "items": COLOUR, "minItems": 2},
        lambda k: len(k) > 1 and k[0] is None and set(k[1:]) <= set(COLOURS),
    ),
    "tagged union": (
        UNION,
        lambda k: k in [{"kind": t, n: c} for t, n in (("a", "x"), ("b", "y")) for c in COLOURS],
    ),
    "one of several types": (
        {"oneOf": [COLOUR, {"type": "integer"}]},
        lambda k: k in COLOURS or whole(k),
    ),
    "one of closed objects": (
        {"oneOf": [POINT, {**obj("y", y=NULL), "additionalProperties": False}]},
        lambda k: k == {"y": None} or a_point(k),
    ),
    "all of": (
        {
            "allOf": [
                obj("a", a={"type": "integer", "minimum": 1}),
                obj("b", b=COLOUR, a={"maximum": 3}),
            ]
        },
        lambda k: k["a"] in (1, 2, 3) and k["b"] in COLOURS,
    ),
    "some must be there": (
        {**obj(a=NULL, b=COLOUR), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        lambda k: k and k.get("a") is None and k.get("b", "red") in COLOURS,
    ),
    "a choice behind a reference": (
        {"$ref": "#/$defs/M", "minimum": 4, "maximum": 9},
        lambda k: whole(k) and 4 <= k <= 9,
    ),
    "never": ({**obj("a", a=NULL, b={"not": {}}, c=False)}, lambda k: k == {"a": None}),
    "required without a schema": (obj("a b", a=NULL), lambda k: k["a"] is None and "b" in k),
    "no type": ({"properties": {"a": NULL}, "required": ["a"]}, lambda k: k == {"a": None}),
    "some of them, each once": (
        {"properties": dict.fromkeys("dbca", NULL), "required": ["c"]},
        lambda k: "c" in k and set(k) <= set("abcd"),
    ),
    "odd names": (
        {"properties": dict.fromkeys(ODD, NULL), "required": ODD[:1]},
        lambda k: ODD[0] in k and set(k) <= set(ODD),
    ),
    "a name as OData has them": (
        {"properties": {"$filter": NULL}, "required": ["$filter"]},
        lambda k: k == {"$filter": None},
    ),
    "a decimal of pydantic": (
        {"type": "string", "pattern": DECIMAL, "minLength": 1, "maxLength": 9},
        lambda k: re.search(DECIMAL, k),
    ),
    "an address of zod": (
        {"type": "string", "format": "email", "pattern": ADDRESS, "maxLength": 30},
        lambda k: re.search(ADDRESS, k),
    ),
    "texts that look ahead twice": (
        {"type": "string", "pattern": "^(?=.*[0-9])(?![a-m]|(n|o)p)[a-z0-9]{4}$"},
        lambda k: re.fullmatch("(?=.*[0-9])(?![a-m]|(n|o)p)[a-z0-9]{4}", k),
    ),
    "a record of zod, all of whose names are required": (
        {
            "type": "object",
            "propertyNames": {"type": "string", "enum": ["a", "b"]},
            "additionalProperties": {"type": "integer"},
            "required": ["a", "b"],
        },
        lambda k: set(k) == {"a", "b"} and all(map(whole, k.values())),
    ),
    "nothing": (
        {"type": "object", "properties": {}, "additionalProperties": False},
        lambda k: k == {},
    ),
    "anything": ({}, lambda k: True),
    "a set": (
        {"type": "array", "items": {"$ref": "#/$defs/C"}, "uniqueItems": True},
        lambda k: len(k) == len(set(k)) and set(k) <= set(COLOURS),
    ),
    "a set of all": (
        {"type": "array", "items": COLOUR, "uniqueItems": True, "minItems": 2},
        lambda k: sorted(k) == sorted(COLOURS),
    ),
    "a large set": (
        {"type": "array", "items": {"enum": [*range(40)]}, "uniqueItems": True, "minItems": 3},
        lambda k: len(k) == len(set(k)) >= 3 and set(k) <= set(range(40)),
    ),
    "a list of an enum, of which one is a set": (
        {"enum": [[1, 1.0], [1, True]], "uniqueItems": True},
        lambda k: k == [1, True],
    ),
}
REFUSED: dict[str, tuple[Any, str]] = {
    "sets of any texts": (
        {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "f.k.uniqueItems`: is not followed",
    ),
    "sets of anything": ({"type": "array", "uniqueItems": True}, "f.k.uniqueItems"),
    "contains": ({"type": "array", "contains": COLOUR}, "contains"),
    "not": ({"not": {"type": "string"}}, "not"),
    "conditions": ({"if": {"type": "string"}, "then": {"minLength": 2}}, "f.k.(if|then)"),
    "dependent": ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    "a look ahead": ({"type": "string", "pattern": "a(?=b)"}, "look-a|lookaround"),
    "a reference to nothing": ({"$ref": "#/$defs/none"}, "which is not there"),
    "a reference elsewhere": ({"$ref": "https://example.org/a"}, "only parts of it"),
    "an unknown type": ({"type": "strin"}, "expected one or more of string"),
    "choices that overlap": ({"oneOf": [{"type": "string"}, COLOUR]}, "more than one"),
    "no value": ({"type": "string", "enum": [1]}, "no arguments fit"),
    "a circle": ({"allOf": [{"$ref": "#/$defs/O"}, {"type": "string"}]}, "circle|too deep"),
    "a number beyond numbers": ({"const": 10**400}, "up to 2\\*\\*63"),
    "a long text": ({"type": "string", "minLength": 10**9}, "minLength"),
    "bounds the wrong way": ({"type": "string", "minLength": 3, "maxLength": 2}, "maxLength"),
}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(TOKENIZER, VOCABULARY, STOP)


def declared(argument: Any) -> dict[str, Any]:
    itself = {"allOf": [{"$ref": "#/$defs/O"}, {"minLength": 1}]}
    definitions = {**DEFINITIONS, "N": NODE, "T": TREE, "O": itself, "M": MAYBE}
    return {**obj("k", k=argument), "additionalProperties": False, "$defs": definitions}


def arguments_of(grammars: Grammars, schema: Any, seed: int, room: int | None) -> Any:
    grammar = grammars.compile_calls([tool("f", schema)], several=False, room=room)
    (call,) = events_of(lambda: grammar, seed)
    assert isinstance(call, ToolCall)
    return json.loads(call.arguments_json())


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_follow_their_declaration(grammars: Grammars, name: str) -> None:
    schema, is_right = ARGUMENTS[name]
    for seed in range(4):
        found = arguments_of(grammars, declared(schema), seed, room=400 if seed % 2 else None)
        assert set(found) == {"k"}
        assert is_right(found["k"]), found


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused_by_name(grammars: Grammars, name: str) -> None:
    schema, why = REFUSED[name]
    with pytest.raises(UsageError, match=why) as raised:
        grammars.compile_calls([tool("f", declared(schema))], several=False, room=400)
    assert raised.value.hint


def test_declarations_may_be_references_choices_and_themselves(grammars: Grammars) -> None:
    pointer = {"$ref": "#/definitions/P", "definitions": {"P": POINT}}
    chain = obj("v next", v=NULL, next={"anyOf": [{"$ref": "#"}, NULL]})
    choice = {"anyOf": [POINT, {**obj("y", y=NULL), "additionalProperties": False}]}
    for seed in range(4):
        assert a_point(arguments_of(grammars, pointer, seed, 400))
        found = arguments_of(grammars, choice, seed, 400)
        assert found == {"y": None} or a_point(found)
        found = arguments_of(grammars, chain, seed, 400)
        while found is not None:
            assert found["v"] is None
            found = found["next"]


def test_a_declaration_without_end_is_an_error(grammars: Grammars) -> None:
    endless = obj("a", a={"$ref": "#"})
    with pytest.raises(Gemma4CompileError, match="cannot be followed"):
        arguments_of(grammars, endless, 1, 400)


def test_choices_that_multiply_are_refused_in_time(grammars: Grammars) -> None:
    definitions: dict[str, Any] = {"D0": {"type": "integer"}}
    for i in range(1, 30):
        inner = {"allOf": [{"$ref": f"#/$defs/D{i - 1}"}]}
        definitions[f"D{i}"] = {"anyOf": [{"minimum": 0, **inner}, {"maximum": 1, **inner}]}
    twice: dict[str, Any] = {"D0": {"type": "integer"}}
    for i in range(1, 30):
        twice[f"D{i}"] = {"allOf": [{"$ref": f"#/$defs/D{i - 1}"}] * 2}
    schema = {**obj("k", k={"$ref": "#/$defs/D29"}), "$defs": twice}
    with pytest.raises(UsageError, match="too large"):
        grammars.compile_calls([tool("f", schema)], several=False, room=400)
    schema["$defs"] = definitions
    with pytest.raises(UsageError, match="too large"):
        grammars.compile_calls([tool("f", schema)], several=False, room=400)


def test_times_end_where_a_reply_has_to(grammars: Grammars) -> None:
    schema = declared({"type": "string", "format": "date-time"})
    for seed in range(8):
        assert len(arguments_of(grammars, schema, seed, 400)["k"]) <= 50
