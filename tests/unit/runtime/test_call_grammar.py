from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.call_grammar import call_grammar
from gemma4_compile.runtime.grammar import Grammars
from gemma4_compile.runtime.reply import MarkIds, ReplyParser
from gemma4_compile.runtime.sampling import Sampler, SamplingOptions
from gemma4_compile.runtime.tool_calls import ToolCall
from tests.scripted_engine import END_OF_TURN, VOCABULARY, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
STOP = (1, END_OF_TURN)


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    function = {"name": name, "description": ""}
    return {
        "type": "function",
        "function": function | ({"parameters": parameters} if parameters else {}),
    }


WEATHER = tool(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"enum": ["c", "f"]},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "hours": {"type": "array", "items": {"type": "number"}},
            "place": {
                "type": "object",
                "properties": {"lat": {"type": "number"}},
                "required": ["lat"],
            },
        },
        "required": ["days", "unit"],
    },
)
TOOLS = [WEATHER, tool("now"), tool("odd-name.1", {"type": "object", "properties": {}})]


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(TOKENIZER, VOCABULARY, STOP)


def calls(grammars: Grammars, tools: list[dict[str, Any]], seed: int, several: bool) -> list[Any]:
    """What random logits, in which some marks are more probable, become."""
    chooser = grammars.compile_calls(tools, several=several, room=400).constrain(
        Sampler(SamplingOptions(), seed)
    )
    marks = MarkIds.of(TOKENIZER)
    assert marks.quote is not None
    assert marks.close_call is not None
    rng = np.random.default_rng(seed)
    parser = ReplyParser(TOKENIZER)
    events: list[Any] = []
    for _ in range(2000):
        logits = rng.normal(0, 1, VOCABULARY).astype(np.float32)
        logits[[marks.quote, marks.close_call, *STOP]] += 6
        token_id = chooser(logits)
        if token_id in STOP:
            return events + parser.finish()
        events += parser.push(token_id)
    raise AssertionError("the calls have no end")


@pytest.mark.parametrize("seed", range(12))
def test_any_model_s_reply_is_a_call(grammars: Grammars, seed: int) -> None:
    found = calls(grammars, TOOLS, seed, several=True)
    assert found
    for call in found:
        assert isinstance(call, ToolCall)
        assert call.name in ("get_weather", "now", "odd-name.1")
        if call.name == "get_weather":
            assert isinstance(call.arguments["days"], int)
            assert call.arguments["unit"] in ("c", "f")
            assert set(call.arguments) <= {"city", "unit", "days", "exact", "hours", "place"}
            assert isinstance(call.arguments.get("city", ""), str)
            assert isinstance(call.arguments.get("exact", True), bool)


def test_a_named_tool_is_called_once(grammars: Grammars) -> None:
    for seed in range(4):
        (call,) = calls(grammars, [TOOLS[0]], seed, several=False)
        assert call.name == "get_weather"


def test_a_model_that_finds_no_end_still_ends_its_call(grammars: Grammars) -> None:
    parameters = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    grammar = grammars.compile_calls([tool("f", parameters)], several=True, room=200)
    chooser = grammar.constrain(lambda logits: int(np.argmax(logits)))
    logits = np.zeros(VOCABULARY, np.float32)
    logits[TOKENIZER.encode("x", add_special_tokens=False).ids] = 1
    parser, events = ReplyParser(TOKENIZER), []
    for _ in range(200):
        events += parser.push(chooser(logits))
    assert events[0] == ToolCall("f", {"a": "x" * (200 // 8)})


def test_what_is_declared_badly_may_be_anything(grammars: Grammars) -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    odd = [
        {"properties": {'a"}': {}}},
        {"properties": {"a": 5, "b": {"type": ["x"]}, "c": {"enum": [1]}}},
        {"properties": {"a": {"enum": ['\n"\\', "ü"]}}, "required": 7},
        deep,
    ]
    for seed, parameters in enumerate(odd):
        (call,) = calls(grammars, [tool("f", parameters)], seed, several=False)
        assert isinstance(call, ToolCall)


def test_nested_arguments_do_not_double(grammars: Grammars) -> None:
    deep: dict[str, Any] = {"enum": ["x" * 1000]}
    for _ in range(8):
        deep = {"type": "object", "properties": {"a": deep, "b": {"type": "null"}}}
    parameters = {"properties": {"a": deep, "c": {"type": "array", "items": deep}}}
    marks = MarkIds.of(TOKENIZER)
    assert marks.quote is not None
    assert marks.close_call is not None
    assert len(call_grammar([tool("f", parameters)], marks, several=True, longest_text=9)) < 8000
    (call,) = calls(grammars, [tool("f", parameters)], 3, several=False)
    assert isinstance(call, ToolCall)


def test_declarations_that_make_a_long_grammar_are_refused(grammars: Grammars) -> None:
    declared = [tool(f"f{i}", {"properties": {"a": {"enum": [f"{i:01000}"]}}}) for i in range(300)]
    with pytest.raises(UsageError, match="at most 262144 are served"):
        grammars.compile_calls(declared, several=True, room=64)


def test_a_tokenizer_without_marks_cannot_call() -> None:
    with pytest.raises(UsageError, match="no tokens for tool calls"):
        call_grammar(TOOLS, MarkIds(None, None, None, None, None), several=True, longest_text=9)
