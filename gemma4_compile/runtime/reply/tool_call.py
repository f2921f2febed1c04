"""A call of a tool, its values, and the text of them as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gemma4_compile.errors import Gemma4CompileError

MAX_DEPTH = 64
_MAX_DIGITS = 1000


class ToolCallError(Gemma4CompileError):
    """Error: the model wrote no valid tool call."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool.

    Attributes
    ----------
    name : the tool
    arguments : values by name, as JSON has them
    call_id : what the tool's result is sent back under; empty where nobody needs it
    """

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    call_id: str = ""

    def arguments_json(self) -> str:
        """The arguments as a JSON object."""
        return json_text(self.arguments)


class Number(float):
    """A number with a fraction or an exponent; its text is the one that the model wrote."""

    text: str

    def __new__(cls, text: str) -> Number:
        """Read a number as JSON spells it; ToolCallError for one that no double is near to."""
        number = super().__new__(cls, text)
        mantissa = re.split("[eE]", text)[0]
        if math.isinf(number) or (not number and re.search("[1-9]", mantissa)):
            raise ToolCallError(f"`{text[:40]}` is beyond the range of numbers")
        number.text = text
        return number

    def __str__(self) -> str:
        """As it was written."""
        return self.text


def integer(word: str) -> int:
    """Read an integer; ToolCallError for one of too many digits."""
    if len(word) > _MAX_DIGITS:
        raise ToolCallError(f"an integer of {len(word)} digits")
    return int(word)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ToolCallError("a key with two values")
    return values


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


DECODER = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_float=Number,
    parse_int=integer,
    parse_constant=_no_constant,
)


def check(value: object, depth: int) -> None:
    """ToolCallError for what was nested too deep, or half of a pair of surrogates."""
    if depth > MAX_DEPTH:
        raise ToolCallError(f"more than {MAX_DEPTH} brackets inside each other")
    if isinstance(value, dict):
        for key, inner in value.items():
            check(key, depth)
            check(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            check(inner, depth + 1)
    elif isinstance(value, str) and re.search("[\ud800-\udfff]", value):
        raise ToolCallError("half of a character")


def json_text(value: object) -> str:
    """A value as JSON, numbers with the digits that they were written with."""
    if isinstance(value, Number):
        return value.text
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(k, ensure_ascii=False)}: {json_text(v)}" for k, v in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(json_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
