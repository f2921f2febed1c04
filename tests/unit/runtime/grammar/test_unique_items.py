"""Lists of different items, next to all lists that there are."""

from __future__ import annotations

import itertools
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.grammar.call_schema import literal, refused
from gemma4_compile.runtime.grammar.call_schema_merge import SchemaReader
from gemma4_compile.runtime.grammar.grammar import Grammars
from gemma4_compile.runtime.grammar.unique_items import (
    is_too_long,
    listed_values,
    unique_list,
    without_unique_items,
)
from gemma4_compile.runtime.sampling.sampling import Sampler, SamplingOptions
from tests.scripted_engine import END_OF_TURN, VOCABULARY, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
DEFINITIONS = {"C": {"enum": ["a", "b"]}, "I": {"$ref": "#/$defs/C"}}


def pattern_of(body: str, rules: Mapping[str, str]) -> str:
    """The regular expression of a rule; what it refers to is put in."""
    found = []
    for token in re.findall(r'"(?:[^"\\\\]|\\\\.)*"|[A-Za-z0-9_]+|[()|?]', body):
        if token.startswith('"'):
            found.append(re.escape(token[1:-1]))
        elif token in rules:
            found.append(f"(?:{pattern_of(rules[token], rules)})")
        else:
            found.append(token)
    return "".join(found)


def accepted(count: int, low: int, high: int | None, longest: int) -> set[tuple[int, ...]]:
    """All lists that a rule allows, of those up to a length."""
    rules: dict[str, str] = {}
    names: dict[str, str] = {}

    def name(body: str) -> str:
        own = names.setdefault(body, f"part{len(names)}")
        rules[own] = body
        return own

    body = unique_list([literal(value) for value in range(count)], low, high, name)
    if body is None:
        return set()
    pattern = re.compile(pattern_of(body, rules))
    lists = itertools.chain.from_iterable(
        itertools.product(range(count), repeat=size) for size in range(longest + 1)
    )
    return {one for one in lists if pattern.fullmatch("[" + ",".join(map(str, one)) + "]")}


@pytest.mark.parametrize("count", [0, 1, 2, 4])
@pytest.mark.parametrize("low", [0, 1, 3])
@pytest.mark.parametrize("high", [None, 2, 3, 9])
def test_few_values_come_in_any_order(count: int, low: int, high: int | None) -> None:
    sizes = range(low, min(count, count if high is None else high) + 1)
    expected = {one for size in sizes for one in itertools.permutations(range(count), size)}
    assert accepted(count, low, high, 5) == expected


@pytest.mark.parametrize(("low", "high"), [(0, None), (2, None), (0, 3), (1, 3), (3, 3), (10, 3)])
def test_more_values_come_in_their_own_order(
    low: int, high: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemma4_compile.runtime.grammar.unique_items._MOST_STATES", 0)
    sizes = range(low, (5 if high is None else high) + 1)
    expected = {one for size in sizes for one in itertools.combinations(range(5), size)}
    assert accepted(5, low, high, 5) == expected


def test_the_size_of_a_rule_is_bounded() -> None:
    parts = [literal(str(value)) for value in range(1000)]
    names: dict[str, str] = {}
    assert unique_list(parts, 1, None, lambda body: names.setdefault(body, f"p{len(names)}"))
    assert len(names) < 4096
    assert not is_too_long(1000, 1, None)
    assert is_too_long(1000, 0, 500)
    assert is_too_long(1000, 500, None)


def values(schema: Any) -> list[object] | None:
    return listed_values(schema, SchemaReader({"$defs": DEFINITIONS}, refused), "f")


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"enum": ["a", 1, 1.0, True, None, [1], [1.0], {"a": 1}]}, None),
        ({"type": "string", "enum": ["a", 1, "b", "a"]}, ["a", "b"]),
        ({"type": ["string", "null"], "enum": ["a", None, 1]}, ["a", None]),
        ({"enum": ["a", "bcd"], "maxLength": 2}, ["a"]),
        ({"const": "a"}, ["a"]),
        ({"const": "a", "enum": ["b", "a"]}, ["a"]),
        ({"$ref": "#/$defs/I"}, ["a", "b"]),
        ({"allOf": [{"$ref": "#/$defs/C"}, {"enum": ["b", "c"]}]}, ["b"]),
        ({"anyOf": [{"$ref": "#/$defs/C"}, {"type": "null"}, {"const": "b"}]}, ["a", "b", None]),
        ({"enum": ["a"], "nullable": True}, ["a", None]),
        ({"type": "boolean"}, [True, False]),
        ({"type": "integer", "minimum": -1, "maximum": 1, "title": "x"}, [-1, 0, 1]),
        (False, []),
    ],
)
def test_values_are_those_that_a_schema_lists(schema: Any, expected: list[object] | None) -> None:
    if expected is None:
        expected = ["a", 1, True, None, [1], {"a": 1}]
    found = values(schema)
    assert (found, [*map(type, found or [])]) == (expected, [*map(type, expected)])


@pytest.mark.parametrize(
    "schema",
    [
        *({}, True, {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "number"}),
        {"type": "integer", "minimum": 0, "maximum": 9, "multipleOf": 2},
        {"type": "integer", "minimum": 0, "maximum": 10**6},
        {"enum": ["a"], "pattern": "b"},
        {"anyOf": [{"const": 1}, {"type": "string"}]},
        {"enum": [*range(1001)]},
    ],
)
def test_other_schemas_list_none(schema: Any) -> None:
    assert values(schema) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "integer", "minimum": i, "maximum": i + 999} for i in range(10_000)]},
        {"$ref": "#/$defs/0"},  # 2^40 times the same value
    ],
)
def test_no_more_is_read_than_may_be_listed(
    schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0

    def counted(value: object) -> object:
        nonlocal read
        read += 1
        assert read < 100_000
        return value

    monkeypatch.setattr("gemma4_compile.runtime.grammar.unique_items.json_key", counted)
    own = {str(i): {"anyOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(40)}
    reader = SchemaReader({"$defs": {**own, "40": {"const": 1}}}, refused)
    if "anyOf" in schema:
        monkeypatch.setattr("gemma4_compile.runtime.grammar.call_schema_merge._MAX_CHOICES", 10_000)
    assert listed_values(schema, reader, "f") is None


def test_lists_are_counted_no_further_than_they_are_spelled_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[int] = []

    def ways(count: int, size: int) -> int:
        counted.append(size)
        return math.comb(count, size)

    monkeypatch.setattr(math, "perm", ways)
    part = {"items": {"type": "integer", "minimum": 0, "maximum": 999}, "uniqueItems": True}
    assert said(part) == part
    assert counted == [0, 1]


def said(part: dict[str, Any]) -> Mapping[str, object]:
    return without_unique_items(part, SchemaReader({"$defs": DEFINITIONS}, refused))


def test_a_reply_s_list_is_one_of_all_lists() -> None:
    part = {"type": "array", "title": "t", "items": {"$ref": "#/$defs/C"}, "uniqueItems": True}
    assert said(part) == {"title": "t", "enum": [[], ["a"], ["b"], ["a", "b"], ["b", "a"]]}
    assert said({**part, "minItems": 1, "maxItems": 1})["items"] == part["items"]
    assert said({**part, "uniqueItems": 1}) == {**part, "uniqueItems": 1}
    assert said({**part, "uniqueItems": False}).keys() == {"type", "title", "items"}
    assert said({**part, "type": ["array", "null"], "minItems": 2})["enum"] == [
        *(["a", "b"], ["b", "a"], None)
    ]
    seven: Any = said({"items": {"enum": [*range(7)]}, "uniqueItems": True})["enum"]
    expected: list[Sequence[int]] = []
    for size in range(8):
        expected += itertools.combinations(range(7), size)
    assert sorted(map(tuple, seven)) == sorted(map(tuple, expected))


@pytest.mark.parametrize(
    "part",
    [
        {"items": {"type": "string"}},
        {"items": {"enum": [*range(30)]}},
        {"items": {"enum": [1]}, "prefixItems": [{}]},
        {"items": {"enum": [1]}, "contains": {}},
        {"items": {"$ref": "#/none"}},
        {"items": {"enum": [1]}, "minItems": 2},
        {"items": {"enum": [1]}, "minItems": True},
        {"items": {"enum": [1]}, "minItems": -1},
        {"items": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 999}] * 100}},
        {"items": {"enum": [1]}, "type": ["array", "object"]},
        {},
    ],
)
def test_what_cannot_be_said_so_stays(part: dict[str, Any]) -> None:
    asked = {**part, "uniqueItems": True}
    assert said(asked) == asked


def test_replies_follow_it() -> None:
    grammars = Grammars(TOKENIZER, VOCABULARY, [1, END_OF_TURN])
    listed = {"type": "ARRAY", "items": {"$ref": "#/$defs/C"}, "uniqueItems": True, "minItems": 1}
    schema = {
        "type": "object",
        "properties": {"r": listed},
        "required": ["r"],
        "additionalProperties": False,
        "$defs": {"C": {"type": "STRING", "enum": ["a", "b", "c"]}},
    }
    lengths = set()
    for seed in range(6):
        sampler = Sampler(SamplingOptions(temperature=1.0), seed)
        chooser, rng = grammars.compile(schema).constrain(sampler), np.random.default_rng(seed)
        ids: list[int] = []
        while not ids or ids[-1] not in (1, END_OF_TURN):
            assert len(ids) < 3000
            ids.append(chooser(rng.normal(0, 3, VOCABULARY).astype(np.float32)))
        found = json.loads(TOKENIZER.decode(ids[:-1], skip_special_tokens=False))["r"]
        assert 1 <= len(found) == len(set(found))
        assert set(found) <= set("abc")
        lengths.add(len(found))
    assert len(lengths) > 1
    schema["properties"] = {"r": {"type": "array", "uniqueItems": True}}
    with pytest.raises(UsageError, match="uniqueItems"):
        grammars.compile(schema)


@pytest.mark.parametrize("values", [900, 10])
def test_lists_of_values_that_are_repeated_are_read_in_bounded_work(values: int) -> None:
    """A schema of 100 KiB that took a minute, or as much memory as there is."""
    few = {"enum": [f"v{i}" for i in range(values)]}
    items = {"anyOf": [{"$ref": "#/$defs/few"}] * 8}
    part = {"type": "array", "uniqueItems": True, "items": {"$ref": "#/$defs/items"}}
    root = {"$defs": {"few": few, "items": items}}
    reader = SchemaReader(root, refused)
    begin = time.process_time()
    found = [without_unique_items(part, reader) for _ in range(1000)]
    assert found[-1] is part, "it stays, for the library to refuse"
    assert time.process_time() - begin < 10
