"""Dictionaries as zod and pydantic declare them are followed in replies, too."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.grammar.grammar import Grammars, _plain_answer
from gemma4_compile.runtime.sampling.sampling import Sampler, SamplingOptions
from tests.scripted_engine import END_OF_TURN, VOCABULARY, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
LISTED = {"type": "string", "enum": ["a", "b"]}
SHORT = {"type": "string", "pattern": "^x[0-9]$"}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(TOKENIZER, VOCABULARY, [1, END_OF_TURN])


def record(names: Any, **more: Any) -> dict[str, Any]:
    """`z.record(names, z.boolean())` within an object."""
    values = {"type": "object", "propertyNames": names, "additionalProperties": {"type": "boolean"}}
    return {
        "type": "object",
        "properties": {"r": {**values, **more}},
        "required": ["r"],
        "additionalProperties": False,
        "$defs": {"Names": LISTED},
    }


def replies(grammars: Grammars, schema: dict[str, Any], seeds: int = 4) -> list[dict[str, Any]]:
    found = []
    for seed in range(seeds):
        sampler = Sampler(SamplingOptions(temperature=1.0), seed)
        chooser, rng = grammars.compile(schema).constrain(sampler), np.random.default_rng(seed)
        ids: list[int] = []
        while not ids or ids[-1] not in (1, END_OF_TURN):
            assert len(ids) < 3000
            ids.append(chooser(rng.normal(0, 3, VOCABULARY).astype(np.float32)))
        found.append(json.loads(TOKENIZER.decode(ids[:-1], skip_special_tokens=False))["r"])
    assert all(type(value) is bool for each in found for value in each.values())
    return found


@pytest.mark.parametrize("names", [{"type": "string"}, {}, True])
def test_names_that_are_texts_are_any(grammars: Grammars, names: Any) -> None:
    named, plain = (record(names, maxProperties=1) for _ in range(2))
    del plain["properties"]["r"]["propertyNames"]
    assert replies(grammars, named, 1) == replies(grammars, plain, 1)


@pytest.mark.parametrize("names", [LISTED, {"$ref": "#/$defs/Names"}, {"const": "a"}])
def test_listed_names_are_properties(grammars: Grammars, names: Any) -> None:
    found = replies(grammars, record(names))
    assert set().union(*found) <= {"a", "b"}
    assert any(found)
    assert all("a" in each for each in replies(grammars, record(names, required=["a"])))


def test_a_pattern_of_names_is_one_of_properties(grammars: Grammars) -> None:
    found = replies(grammars, record(SHORT, minProperties=1, maxProperties=3))
    assert all(found)
    assert all(re.fullmatch("x[0-9]", name) for each in found for name in each)


@pytest.mark.parametrize(
    ("names", "more"),
    [
        ({"minLength": 2}, {}),
        (SHORT, {"properties": {"y": {}}}),
        ({"type": "integer"}, {}),
        (False, {}),
        ({"$ref": "#/$defs/None"}, {}),
    ],
)
def test_what_is_not_the_same_is_refused(grammars: Grammars, names: Any, more: Any) -> None:
    with pytest.raises(UsageError, match="propertyNames"):
        grammars.compile(record(names, **more))


@pytest.mark.parametrize("names", [LISTED, SHORT])
def test_values_that_are_null_are_any(grammars: Grammars, names: Any) -> None:
    """As programs in Go write what is not there."""
    schema = record(names, additionalProperties=None)
    other = record(names)
    del other["properties"]["r"]["additionalProperties"]
    assert _plain_answer(schema) == _plain_answer(other)
    grammars.compile(schema)


def test_a_property_of_this_name_is_one(grammars: Grammars) -> None:
    named = {"type": "object", "properties": {"propertyNames": {"type": "boolean"}}}
    schema = record({})
    schema["properties"]["r"] = {
        **named,
        "required": ["propertyNames"],
        "additionalProperties": False,
    }
    assert all(set(each) == {"propertyNames"} for each in replies(grammars, schema))
