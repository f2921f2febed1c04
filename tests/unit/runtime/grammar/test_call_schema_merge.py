from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.grammar.call_schema import CallRules, refused
from gemma4_compile.runtime.grammar.call_schema_merge import SchemaReader, constraints, fits

ROOT = {"$defs": {"a/b": {"type": "integer"}, "list": [{"const": 1}]}}


def reader() -> SchemaReader:
    return SchemaReader(ROOT, refused)


def test_what_describes_a_value_asks_for_nothing() -> None:
    words = {"title": "t", "description": "d", "default": 1, "examples": [1], "discriminator": {}}
    assert constraints({**words, "type": "string"}) == {"type": "string"}


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("#/$defs/a~1b", {"type": "integer"}),
        ("#/%24defs/a~1b", {"type": "integer"}),
        ("#/$defs/list/0", {"const": 1}),
        ("#", ROOT),
    ],
)
def test_references_point_into_the_declaration(pointer: str, found: Any) -> None:
    assert reader().target(pointer, "f") == found


@pytest.mark.parametrize(
    ("one", "two", "both"),
    [
        ({"minimum": 1}, {"minimum": 2, "maximum": 3}, {"minimum": 2, "maximum": 3}),
        ({"type": "number"}, {"type": "integer"}, {"type": ["integer"]}),
        ({"type": "string"}, {"type": "integer"}, False),
        ({"enum": [1, 2, 3]}, {"enum": [3, 2]}, {"enum": [2, 3]}),
        ({"required": ["a"]}, {"required": ["b", "a"]}, {"required": ["a", "b"]}),
        (True, {"const": 1}, {"const": 1}),
        (False, {"const": 1}, False),
        (
            {"properties": {"a": True}, "additionalProperties": False},
            {"properties": {"b": True}},
            {"properties": {"a": True, "b": False}, "additionalProperties": False},
        ),
    ],
)
def test_two_schemas_of_one_value_become_one(one: Any, two: Any, both: Any) -> None:
    assert reader().merged(one, two, "f") == both


def test_two_patterns_of_one_value_are_refused() -> None:
    with pytest.raises(UsageError, match="two different `pattern`"):
        reader().merged({"pattern": "a"}, {"pattern": "b"}, "f")


def test_constants_are_held_to_types_and_bounds() -> None:
    assert fits(1.0, ["integer"], {})
    assert not fits(1.5, ["integer"], {})
    assert not fits(True, ["integer"], {})
    assert not fits("abc", None, {"maxLength": 2})
    assert not fits(3, None, {"maximum": 2})


class Counted(str):
    """A text that counts with how many it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


def told_apart(choices: list[Any]) -> list[Any]:
    told = reader().choices({"oneOf": choices}, "f")
    assert told is not None, "it has choices"
    return told


def test_values_of_choices_are_not_compared_with_each_other() -> None:
    """Choices of a tool's arguments that differ in one property, by its values."""
    many = 500
    choices = [
        {"properties": {"kind": {"enum": [Counted(f"{name}{i}") for i in range(many)]}}}
        for name in "ab"
    ]
    Counted.compared = 0
    told = told_apart(choices)
    assert [one["required"] for one in told] == [["kind"], ["kind"]]
    assert Counted.compared < 10 * many


@pytest.mark.parametrize("key", ["enum", "required"])
def test_lists_of_two_schemas_are_not_compared_with_each_other(key: str) -> None:
    many = 2_100
    one, two = ({key: [Counted(f"{name}{i}") for i in range(many)]} for name in "ab")
    Counted.compared = 0
    both = reader().merged(one, two, "f")
    assert both == {key: [] if key == "enum" else one[key] + two[key]}
    assert Counted.compared < 10 * many


@pytest.mark.parametrize(
    ("one", "two", "both"),
    [
        ([1, True], [True, 2], [True]),
        ([[{"a": 1}], 2], [[{"a": 1.0}]], [[{"a": 1}]]),
        ([1, "a"], [True, "a"], ["a"]),
        ([[1]], [[True]], []),
    ],
)
def test_values_of_both_schemas_are_those_of_json(one: Any, two: Any, both: Any) -> None:
    found = reader().merged({"enum": one}, {"enum": two}, "f")
    assert json.dumps(found) == json.dumps({"enum": both})


def test_schemas_that_differ_in_what_json_tells_apart_are_both_followed() -> None:
    one, two = {"const": 1}, {"const": True}
    both = reader().merged({"items": one}, {"items": two}, "f")
    assert json.dumps(both) == json.dumps({"items": {"allOf": [one, two]}})
    with pytest.raises(UsageError, match="two different `const`"):
        reader().merged(one, two, "f")


REPEATED = {
    "properties": {"properties": {f"p{i}": {} for i in range(4000)}},
    "values": {"enum": [[i] for i in range(4000)]},
    "names": {"required": [f"p{i}" for i in range(4000)]},
    "what is no keyword": {f"x-{i}": i for i in range(4000)},
}


@pytest.mark.parametrize("case", REPEATED)
def test_what_references_repeat_is_gone_through_in_bounded_work(case: str) -> None:
    """A schema of 150 KiB that would take minutes."""
    root = {"$defs": {"a": REPEATED[case], "b": copy.deepcopy(REPEATED[case])}}
    parts = [{"$ref": f"#/$defs/{name}"} for name in "ab" * 2000]
    begin = time.process_time()
    with pytest.raises(UsageError, match="values to go through"):
        SchemaReader(root, refused).plain({"allOf": parts}, "f")
    assert time.process_time() - begin < 10


def test_all_tools_of_a_request_have_one_bound() -> None:
    rules = CallRules(None)
    parts = [{"$ref": "#/$defs/a"}] * 20
    tool = {"$defs": {"a": REPEATED["names"]}, "allOf": parts}
    rules.arguments(tool, "f")
    with pytest.raises(UsageError, match="values to go through"):
        [rules.arguments(tool, "f") for _ in range(20)]


def test_values_of_many_choices_are_keyed_once() -> None:
    """Each choice's values were gone through for each other choice: seconds of 200 of 60."""
    choices = [{"enum": [[i, j] for j in range(60)]} for i in range(200)]
    begin = time.process_time()
    assert told_apart(choices) == choices
    assert time.process_time() - begin < 2
    with pytest.raises(UsageError, match="more than one of its choices"):
        told_apart([*choices, {"enum": [[7, 7.0]]}])


@pytest.mark.parametrize(
    ("values", "same"), [([1, [1]], True), ([2, [2]], False), ([[2], {"a": 1}], True)]
)
def test_choices_with_a_value_in_common_are_not_told_apart(values: list[Any], same: bool) -> None:
    one, two = ({"type": "array", "enum": each} for each in ([[1], {"a": 1}], values))
    choices = [{"properties": {"kind": each}} for each in (one, two)]
    if same:
        with pytest.raises(UsageError, match="more than one of its choices"):
            told_apart(choices)
    else:
        assert len(told_apart(choices)) == 2
