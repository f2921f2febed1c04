"""What the reader says of where it is; the forms that it reads are in test_tool_calls.py."""

from __future__ import annotations

import re

import pytest

from gemma4_compile.runtime.reply.call_reader import CallReader
from gemma4_compile.runtime.reply.tool_call import ToolCall, ToolCallError

HEAD = re.compile(r"(\w+)(?=[{(])")


def test_it_tells_where_values_begin() -> None:
    texts = ["f{a: 1,b:[", "x", ",y]}"]
    reader = CallReader(texts)
    assert reader.call(HEAD) == ToolCall("f", {"a": 1, "b": ["x", "y"]})
    assert reader.at_end()
    # The object, 1, the list, the string where its text ends, y.
    assert reader.starts == [(0, 1), (0, 5), (0, 9), (0, 10), (2, 1)]
    assert reader.index == 2


def test_it_tells_how_far_it_came() -> None:
    reader = CallReader(["f{a:", "x", " and ", "y", "}"])
    with pytest.raises(ToolCallError):
        reader.call(HEAD)
    assert reader.index == 2


@pytest.mark.parametrize("text", ["f{a:1", "f(a=1", "f{a:[1]", "f{a:{b:1}"])
def test_the_last_bracket_may_be_missing_from_a_whole_call_alone(text: str) -> None:
    found = CallReader([text], is_whole=True).call(HEAD)
    assert found is not None
    assert list(found.arguments) == ["a"]
    with pytest.raises(ToolCallError):
        CallReader([text]).call(HEAD)


@pytest.mark.parametrize("text", ["f{", "f{a:", "f{a:1,b", "f{a:[1", "f{a:{b:1", "f{a:{b:1,c:2}"])
def test_nothing_else_may(text: str) -> None:
    with pytest.raises(ToolCallError):
        CallReader([text], is_whole=True).call(HEAD)
