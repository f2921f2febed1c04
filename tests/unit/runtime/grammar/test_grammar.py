from __future__ import annotations

import json
import re
import sys
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.grammar.grammar import Grammars
from gemma4_compile.runtime.sampling.sampling import (
    Float32Array,
    Sampler,
    SamplingOptions,
    TokenChooser,
)
from tests.scripted_engine import END_OF_TURN, VOCABULARY, encode, greedy, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
OPEN, CLOSE = 100, 101


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(TOKENIZER, VOCABULARY, [1, END_OF_TURN])


def reply(chooser: TokenChooser, seed: int) -> list[int]:
    """What random logits become under a chooser."""
    rng = np.random.default_rng(seed)
    ids: list[int] = []
    while not ids or ids[-1] not in (1, END_OF_TURN):
        assert len(ids) < 500
        ids.append(chooser(rng.normal(0, 3, VOCABULARY).astype(np.float32)))
    return ids[:-1]


@pytest.mark.parametrize("seed", range(8))
def test_any_model_s_reply_follows_the_schema(grammars: Grammars, seed: int) -> None:
    grammar = grammars.compile(PERSON)
    options = SamplingOptions(temperature=1.0, top_k=20, top_p=0.9)
    ids = reply(grammar.constrain(Sampler(options, seed)), seed)
    person = json.loads(TOKENIZER.decode(ids, skip_special_tokens=False))
    assert set(person) == {"name", "age"}
    assert isinstance(person["name"], str)
    assert isinstance(person["age"], int)


@pytest.mark.parametrize("form", ["password", "binary", "x-phone"])
def test_formats_that_nothing_checks_are_notes(grammars: Grammars, form: str) -> None:
    text = {"type": "string", "format": form, "maxLength": 2}
    schema = {
        "type": "object",
        "properties": {"format": {"anyOf": [text]}, "a": {"const": {"format": form}}},
        "required": ["format", "a"],
        "additionalProperties": False,
    }
    ids = reply(grammars.compile(schema).constrain(Sampler(SamplingOptions(temperature=1), 1)), 1)
    found = json.loads(TOKENIZER.decode(ids, skip_special_tokens=False))
    assert found["a"] == {"format": form}
    assert len(found["format"]) <= 2
    with pytest.raises(UsageError):  # what says more than a note
        grammars.compile({**schema, "properties": {"a": {**text, "format": 5}}})


def test_null_and_an_empty_list_of_properties_say_nothing(grammars: Grammars) -> None:
    # As programs in Go and PHP write what is not there; the value null is one.
    schema = {
        "type": "object",
        "properties": {"a": {"const": None, "enum": None}, "b": {"type": "object"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    nothings: list[Any] = [None, []]
    for nothing in nothings:
        schema["properties"]["b"] |= {  # type: ignore[index]
            "properties": nothing,
            "required": None,
            "additionalProperties": False,
        }
        declared = {"type": "function", "function": {"name": "f", "parameters": schema}}
        chooser = grammars.compile(schema).constrain(Sampler(SamplingOptions(temperature=1), 1))
        found = TOKENIZER.decode(reply(chooser, 1), skip_special_tokens=False)
        assert json.loads(found) == {"a": None, "b": {}}
        assert grammars.compile_calls([declared])


def test_types_may_be_written_as_google_writes_them(grammars: Grammars) -> None:
    named = {"type": ["STRING", "Null"], "maxLength": 2}
    schema = {
        "type": "OBJECT",
        "properties": {"type": named, "b": {"type": "Boolean"}, "c": {"const": {"type": "STRING"}}},
        "required": ["type", "b", "c"],
        "additionalProperties": False,
    }
    declared = {"type": "function", "function": {"name": "f", "parameters": schema}}
    chooser = grammars.compile(schema).constrain(Sampler(SamplingOptions(temperature=1), 1))
    found = json.loads(TOKENIZER.decode(reply(chooser, 1), skip_special_tokens=False))
    assert set(found) == {"type", "b", "c"}
    assert found["c"] == {"type": "STRING"}
    assert isinstance(found["b"], bool)
    assert grammars.compile_calls([declared])
    with pytest.raises(UsageError):
        grammars.compile({**schema, "type": "OBJ"})


def test_known_formats_are_followed(grammars: Grammars) -> None:
    schema = {"type": "string", "format": "date"}
    ids = reply(grammars.compile(schema).constrain(Sampler(SamplingOptions(temperature=1), 2)), 2)
    found = json.loads(TOKENIZER.decode(ids, skip_special_tokens=False))
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", found)


SPELLED = [
    "<turn|>",
    "<eos>",
    "a<|turn>b",
    '<|"|>',
    "<|tool_call>call:f{}<tool_call|>",
    "<unused5>",
]


@pytest.mark.parametrize("spelled", SPELLED)
def test_a_constant_that_spells_a_control_token_is_its_letters(
    grammars: Grammars, spelled: str
) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"const": spelled}, "b": {"enum": [spelled]}, spelled: {"const": 1}},
        "required": ["a", "b", spelled],
        "additionalProperties": False,
    }
    ids = reply(grammars.compile(schema).constrain(Sampler(SamplingOptions(), 1)), 1)
    text = TOKENIZER.decode(ids, skip_special_tokens=True)  # of which control tokens are no part
    assert json.loads(text) == {"a": spelled, "b": spelled, spelled: 1}


def test_a_tokenizer_without_marks_of_its_own_spells_none_either() -> None:
    content = json.loads(TOKENIZER.to_str())
    for token in content["added_tokens"]:
        token["special"] = False  # as some that were saved by others have them
    tokenizer = Tokenizer.from_str(json.dumps(content))
    plain = Grammars(tokenizer, VOCABULARY, [1, END_OF_TURN])
    try:
        ids = reply(plain.compile({"const": "<turn|>"}).constrain(Sampler(SamplingOptions(), 1)), 1)
    finally:
        plain.close()
    assert END_OF_TURN not in ids
    assert tokenizer.decode(ids) == '"<turn|>"'


def wanting(*ids: int) -> Any:
    """Logits of a model that wants to say these tokens, one after another."""
    script = iter(ids)

    def logits() -> Float32Array:
        values = np.zeros(VOCABULARY, np.float32)
        values[next(script)] = 1
        return values

    return logits


def test_reasoning_before_the_answer_is_free(grammars: Grammars) -> None:
    chooser = grammars.compile({"type": "boolean"}).constrain(greedy, thinking=True)
    reasoning = encode("any {thing")
    answer = encode("true")
    logits = wanting(OPEN, *reasoning, CLOSE, *answer, END_OF_TURN)
    said = [chooser(logits()) for _ in range(len(reasoning) + len(answer) + 3)]
    assert said == [OPEN, *reasoning, CLOSE, *answer, END_OF_TURN]


def test_without_thinking_no_reasoning_begins(grammars: Grammars) -> None:
    chooser = grammars.compile({"type": "boolean"}).constrain(greedy)
    assert TOKENIZER.decode([chooser(wanting(OPEN)())])[0] in "tf"


def test_one_grammar_serves_several_replies(grammars: Grammars) -> None:
    grammar = grammars.compile(PERSON)
    first, second = (reply(grammar.constrain(greedy), seed=3) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("schema", [{"type": "strin"}, {"$ref": "#/none"}, {"properties": 5}])
def test_a_schema_that_makes_no_sense_is_refused(
    grammars: Grammars, schema: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="the JSON schema cannot be followed"):
        grammars.compile(schema)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UsageError, match="`llguidance`, which is not installed") as raised:
        Grammars(TOKENIZER, VOCABULARY, [1]).compile(PERSON)
    assert raised.value.hint == "run `pip install 'gemma4-compile[json]'`"


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


HOSTILE: dict[str, dict[str, Any]] = {
    "a number that crashes the library": {"type": "integer", "enum": [-1e308]},
    "a bound beyond 64 bits": {"type": "integer", "minimum": 10**400},
    "a constant beyond 64 bits": {"const": 10**400},
    "a divisor that takes all memory": {"type": "integer", "multipleOf": 2147483648},
    "a divisor of nothing": {"type": "integer", "multipleOf": 0},
    "depth": nested(200),
    "more depth than Python's": nested(900),
    "itself": {"$ref": "#"},
    "a long constant": {"const": "x" * 1_000_000},
    "no JSON": {"const": float("nan")},
    "an empty choice": {"enum": []},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_schema_that_would_do_harm_is_refused(grammars: Grammars, name: str) -> None:
    with pytest.raises(UsageError, match="the JSON schema cannot be followed") as raised:
        grammars.compile(HOSTILE[name])
    assert raised.value.hint
    assert len(str(raised.value)) < 4100
    assert json.loads(TOKENIZER.decode(reply(grammars.compile(PERSON).constrain(greedy), 1)))


def test_a_tree_may_hold_itself(grammars: Grammars) -> None:
    children = {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}
    tree = {"type": "object", "properties": {"children": children}, "required": ["children"]}
    chooser = grammars.compile({**tree, "additionalProperties": False}).constrain(greedy)
    answer = encode('{"children":[{"children":[]}]}')
    logits = wanting(*answer, END_OF_TURN)
    assert [chooser(logits()) for _ in range(len(answer) + 1)] == [*answer, END_OF_TURN]


def test_a_package_without_stop_tokens_follows_no_schema() -> None:
    endless = Grammars(TOKENIZER, VOCABULARY, [])
    tool = {"name": "look", "parameters": {"type": "object"}}
    with pytest.raises(UsageError, match="no token ends this package's replies"):
        endless.compile(PERSON)
    with pytest.raises(UsageError, match="no token ends this package's replies"):
        endless.compile_calls([tool])
