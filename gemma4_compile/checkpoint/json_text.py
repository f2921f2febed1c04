"""JSON of a checkpoint: text that anybody may have written, parsed into one object or refused."""

from __future__ import annotations

import json
import math
import re

_SURROGATE = re.compile(r"\\[uU][dD][89a-fA-F]")
MAX_VALUES = 2_000_000  # of one text, which take some hundred bytes of memory each
MAX_DIGITS = 100  # of an integer; longer ones take time that grows with their square


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise ValueError("a key appears twice")
    return keys


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:20]}")
    return value


def _check_text(value: object) -> None:
    """Raise ValueError for text that is none: half of a pair of surrogates."""
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            item.encode("utf-8")
        elif isinstance(item, dict):
            rest += item.keys()
            rest += item.values()
        elif isinstance(item, list):
            rest += item


def _check_count(text: str, limit: int) -> None:
    """Raise ValueError for more values than `limit`, before any of them takes memory.

    Each value but the first of its list or object follows a comma, and that one a bracket. Those
    inside of strings count, too: texts that are so large are refused.
    """
    count = sum(map(text.count, ",[{"))
    if count > limit:
        raise ValueError(f"more than {limit} values")


def parse_object(
    text: str | bytes, *, finite: bool = False, max_values: int = MAX_VALUES
) -> dict[str, object]:
    """Parse a JSON object.

    Parameters
    ----------
    text : bytes are UTF-8, in no other encoding that JSON once had
    finite : refuse numbers that are no JSON, NaN and the infinities
    max_values : how many values it may hold, those of inner lists and objects counted

    Raises
    ------
    ValueError
        If the text is no JSON, no object, nested too deeply, or holds too many values, a key
        twice, an integer of more than MAX_DIGITS digits or half of a surrogate pair.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    _check_count(text, max_values)
    try:
        values = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=_finite if finite else None,
            parse_constant=_finite if finite else None,
        )
        if _SURROGATE.search(text):
            _check_text(values)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    return values
