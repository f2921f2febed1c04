"""JSON of a checkpoint: text that anybody may have written, parsed into one object or refused."""

from __future__ import annotations

import json
from typing import Any

MAX_DIGITS = 100  # of an integer; longer ones take time that grows with their square


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise ValueError("a key appears twice")
    return keys


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises
    ------
    ValueError
        If the text is no JSON, no object, nested too deeply, or holds a key twice or an integer of
        more than MAX_DIGITS digits.
    """
    try:
        values = json.loads(text, object_pairs_hook=_unique, parse_int=_integer)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    return values
