from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.grammar.call_grammar import call_grammar
from gemma4_compile.runtime.grammar.grammar import Grammars
from gemma4_compile.runtime.reply.reply import MarkIds, ReplyParser
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from tests.random_calls import STOP, TOKENIZER, events_of, tool
from tests.scripted_engine import VOCABULARY

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
    return events_of(lambda: grammars.compile_calls(tools, several=several, room=400), seed)


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


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        {},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {}, "required": [], "title": "Now"},
    ],
)
def test_a_tool_that_declares_no_arguments_gets_none(grammars: Grammars, parameters: Any) -> None:
    for seed in range(3):
        (call,) = calls(grammars, [tool("now", parameters)], seed, several=False)
        assert call == ToolCall("now", {})


def test_a_tool_of_any_arguments_may_have_some(grammars: Grammars) -> None:
    anything = {"type": "object", "additionalProperties": True}
    for parameters in (anything, {"type": "object"}, {**anything, "properties": {}}):
        found = [
            calls(grammars, [tool("f", parameters)], seed, several=False)[0] for seed in range(3)
        ]
        assert any(call.arguments for call in found)


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


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"a": 5}},
        {"properties": {"a": {"type": ["x"]}}},
        {"properties": [], "required": 7},
        {"type": "array"},
        5,
    ],
)
def test_what_is_declared_badly_is_refused(grammars: Grammars, parameters: Any) -> None:
    with pytest.raises(UsageError, match="calls cannot follow the declaration") as raised:
        grammars.compile_calls([tool("f", parameters)], several=False, room=400)
    assert raised.value.hint


def test_deep_arguments_are_followed(grammars: Grammars) -> None:
    deep: dict[str, Any] = {"enum": ['\n"\\', "ü"]}
    for _ in range(40):
        deep = {"type": "object", "properties": {'a"': deep}, "required": ['a"']}
    (call,) = calls(grammars, [tool("f", deep)], 1, several=False)
    found = call.arguments
    for _ in range(40):
        found = found['a"']
    assert found in ('\n"\\', "ü")


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
