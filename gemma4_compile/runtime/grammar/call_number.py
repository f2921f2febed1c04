"""Numbers of JSON schemas in a grammar: what bounds them is left to the library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from gemma4_compile.errors import UsageError

Schema = Mapping[str, object]
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_FAR = 10**15  # how far an integer goes where one of its bounds is missing
_FARTHEST = 10**18


def number_of(
    kind: str, schema: Schema, where: str, refused: Callable[[str, str], UsageError]
) -> str:
    """A rule's body for an integer or a number within its bounds.

    Parameters
    ----------
    refused : makes the error about a part
    """
    asked = {key: schema[key] for key in _BOUNDS if key in schema}
    for word, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(flag := asked.get(word), bool):  # as drafts before 6 have it
            del asked[word]
            if flag and bound in asked:
                asked[word] = asked.pop(bound)
    if not asked:
        return "INTEGER" if kind == "integer" else "NUMBER"
    for key, value in asked.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise refused(f"{where}.{key}", "expected a number")
    if kind == "integer":
        _bound_integer(asked)
    return json_rule({"type": kind, **asked})


def _bound_integer(asked: dict[str, object]) -> None:
    """Put both bounds in, not so far that the library cannot count them."""
    for key, value in asked.items():
        if key != "multipleOf" and isinstance(value, (int, float)):
            asked[key] = max(-_FARTHEST, min(_FARTHEST, value))
    lows = [asked[k] for k in ("minimum", "exclusiveMinimum") if k in asked]
    highs = [asked[k] for k in ("maximum", "exclusiveMaximum") if k in asked]
    if not highs:
        asked["maximum"] = max(0, *map(_as_int, lows)) + _FAR if lows else _FAR
    if not lows:
        asked["minimum"] = min(0, *map(_as_int, highs)) - _FAR if highs else -_FAR


def _as_int(value: object) -> int:
    assert isinstance(value, (int, float)), "checked before"
    return int(value)


def json_rule(schema: Schema) -> str:
    """A rule's body for what the library follows as a JSON schema."""
    return f"%json {json.dumps(schema)}"
