"""Patterns of JSON schemas as regular expressions of a grammar, which know no look ahead.

What a pattern looks at ahead from its beginning (pydantic's `Decimal`, zod's addresses) is a
condition of its own on the whole text, and a grammar can ask for several.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from gemma4_compile.errors import UsageError

_AHEAD = ("(?!", "(?=")
# A class that nothing closes takes the rest, which is gone through once so.
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*(?:\]|\\?\Z)|.", re.DOTALL)
_MOST_CONDITIONS = 32  # what is behind each is copied


def looks_ahead(pattern: object) -> bool:
    """Return whether a pattern begins with a look ahead that becomes a condition of its own."""
    return isinstance(pattern, str) and pattern.startswith(tuple(f"^{mark}" for mark in _AHEAD))


def pattern_of(
    schema: Mapping[str, object], where: str, refused: Callable[[str, str], UsageError]
) -> str:
    """Terminals for the whole text, of a schema's pattern, which is looked for in a text.

    Parameters
    ----------
    refused : makes the error about a part
    """
    pattern = schema["pattern"]
    if not isinstance(pattern, str):
        raise refused(f"{where}.pattern", "expected a regular expression")
    conditions: list[str] = []
    has_choices = looks_ahead(pattern) and "|" in _outside_groups(pattern)
    while looks_ahead(pattern) and len(conditions) < _MOST_CONDITIONS:
        end = _end_of_group(pattern, 1)
        if end is None or has_choices:
            break  # the library names what it cannot follow
        inner = pattern[4:end].removeprefix("^")
        if inner.endswith("$") and "|" in _outside_groups(inner):
            break
        sign = "~" if pattern.startswith("^(?!") else ""
        conditions.append(f"{sign}{_whole(f'^{inner}')}")
        pattern = "^" + pattern[end + 1 :]
    return " & ".join([_whole(pattern), *conditions])


def _whole(pattern: str) -> str:
    begin = pattern.startswith("^")
    end = bool(re.search(r"(?<!\\)(?:\\\\)*\$\Z", pattern))
    inner = pattern[begin : len(pattern) - end]
    inner = re.sub(r"\\.|/|\n", _for_lark, inner, flags=re.DOTALL)
    every = "(?s:.)*"
    return f"/{'' if begin else every}(?:{inner}){'' if end else every}/"


def _for_lark(found: re.Match[str]) -> str:
    classes = {r"\d": "[0-9]", r"\w": "[A-Za-z0-9_]", "/": r"\/", "\n": r"\n"}
    return classes.get(found[0], found[0])


def _end_of_group(pattern: str, begin: int) -> int | None:
    """Where the bracket that closes the one at `begin` is."""
    depth = 0
    for token in _TOKEN.finditer(pattern, begin):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if not depth:
            return token.start()
    return None


def _outside_groups(pattern: str) -> str:
    """The letters of a pattern that are in no group, class or escape."""
    depth, found = 0, []
    for token in _TOKEN.finditer(pattern):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if not depth and len(token[0]) == 1:
            found.append(token[0])
    return "".join(found)
