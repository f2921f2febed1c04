"""Values of calls: numbers as they were written, and what is no JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gemma4_compile.runtime.reply.tool_call import (
    DECODER,
    MAX_DEPTH,
    Number,
    ToolCall,
    ToolCallError,
    check,
    integer,
)


@pytest.mark.parametrize("text", ["1.10", "1E5", "-0.0", "0.0e5", "1e308"])
def test_a_number_keeps_its_text(text: str) -> None:
    number = Number(text)
    assert (str(number), float(number)) == (text, float(text))
    assert (
        ToolCall("f", {"a": [number, "é", None]}).arguments_json()
        == f'{{"a": [{text}, "é", null]}}'
    )


@pytest.mark.parametrize("text", ["1e309", "-1e400", "1e-400", "0.1e-330"])
def test_a_number_that_no_double_is_near_to_is_none(text: str) -> None:
    with pytest.raises(ToolCallError, match="range"):
        Number(text)


def test_integers_have_up_to_a_thousand_digits() -> None:
    assert integer("9" * 1000) == 10**1000 - 1
    with pytest.raises(ToolCallError, match="1001 digits"):
        integer("9" * 1001)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '[{"b": NaN}]', "Infinity", "-Infinity"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises((ToolCallError, ValueError)):
        DECODER.decode(text)


def nested(depth: int) -> Any:
    return json.loads("[" * depth + "]" * depth)


def test_depth_and_halves_of_characters() -> None:
    check(nested(MAX_DEPTH), 0)
    for value in (nested(MAX_DEPTH + 2), "\ud800", {"\udfff": 1}, [{"a": ["\udc00"]}]):
        with pytest.raises(ToolCallError):
            check(value, 0)
