from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.engine import Float32Array
from gemma4_compile.runtime.generation import TokenChooser
from gemma4_compile.runtime.grammar import Grammars
from gemma4_compile.runtime.sampling import Sampler, SamplingOptions
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


def wanting(*ids: int) -> Any:
    """Logits of a model that wants to say these tokens, one after another."""
    script = iter(ids)

    def logits() -> Float32Array:
        values = np.zeros(VOCABULARY, np.float32)
        values[next(script)] = 1
        return values

    return logits


def test_a_thought_before_the_answer_is_free(grammars: Grammars) -> None:
    chooser = grammars.compile({"type": "boolean"}).constrain(greedy, thinking=True)
    thought = encode("any {thing")
    answer = encode("true")
    logits = wanting(OPEN, *thought, CLOSE, *answer, END_OF_TURN)
    said = [chooser(logits()) for _ in range(len(thought) + len(answer) + 3)]
    assert said == [OPEN, *thought, CLOSE, *answer, END_OF_TURN]


def test_without_thinking_no_thought_begins(grammars: Grammars) -> None:
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
