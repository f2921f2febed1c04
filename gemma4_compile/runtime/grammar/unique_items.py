"""`uniqueItems` of lists whose items are some of a few values, where that can be spelled out.

Up to a bound the items come in any order. Of more values they come in the order in which they are
declared, as required arguments do: it is no part of what is asked for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.grammar.call_schema_merge import (
    SchemaReader,
    constraints,
    fits,
    json_key,
)

MOST_VALUES = 1000
_MOST_STATES = 256  # sets of values that are used already: all of eight values
_MOST_PLACES = 4096  # pairs of a value and how many are used
_MOST_LISTS = 400  # of a reply in any order: all of five values
_MOST_ORDERED = 1024  # all sets of ten values
_MOST_READ = 2 * _MOST_PLACES  # schemas and values: references can name the same ones again
_MAX_DEPTH = 60
_LISTED = {"const", "enum"}
_SIZES = ("imum", "Items", "Length", "Properties")
_BESIDE = _LISTED | {"type"} | {f"{end}{size}" for size in _SIZES for end in ("max", "min")}
_RANGE = {"maximum", "minimum", "type"}
_CONSTANTS: Mapping[str, Sequence[object]] = {"boolean": (True, False), "null": (None,)}

Name = Callable[[str], str]
"""Gives a rule its name."""


def listed_values(schema: object, reader: SchemaReader, where: str) -> list[object] | None:
    """The values that a schema allows, each once; None if they are not a few that it lists."""
    return _Values(reader, where).of(schema)


@dataclass
class _Values:
    reader: SchemaReader
    where: str
    left: int = _MOST_READ

    def of(self, schema: object, depth: int = 0) -> list[object] | None:
        self.left -= 1
        if self.left < 0 or depth > _MAX_DEPTH:
            return None
        if not isinstance(schema, Mapping):
            return [] if schema is False else None
        plain = dict(self.reader.plain(schema, self.where))
        if plain.pop("nullable", False) is True:
            return _joined([self.of(plain, depth + 1), [None]])
        choices = self.reader.choices(plain, self.where)
        if choices is not None:
            return _joined(self.of(one, depth + 1) for one in choices)
        found = self._listed(plain)
        self.reader.count(len(found or ()), self.where)
        self.left -= len(found or ())
        return None if self.left < 0 else found

    def _listed(self, plain: Mapping[str, object]) -> list[object] | None:
        kinds = self.reader.types({"type": plain["type"]}) if "type" in plain else None
        if _LISTED & set(plain):
            values = plain.get("enum", [plain.get("const")])
            if not isinstance(values, list) or len(values) > MOST_VALUES or set(plain) - _BESIDE:
                return None
            self.reader.count(len(values), self.where)
            if "const" in plain:
                values = [value for value in values if json_key(value) == json_key(plain["const"])]
            return _joined([[value for value in values if fits(value, kinds, plain)]])
        if kinds is None:
            return None
        return _joined([_of_type(kind, plain) for kind in kinds])


def unique_list(parts: Sequence[str], low: int, high: int | None, name: Name) -> str | None:
    """The body of a rule for a list of different parts, between its brackets.

    Parameters
    ----------
    parts : how each value is spelled
    low, high : fewest and most items

    Returns
    -------
    the body; None if no list fits
    """
    most = len(parts) if high is None else min(high, len(parts))
    if low > most:
        return None
    if _are_few(math.comb, len(parts), range(most + 1), _MOST_STATES):
        inner = _in_any_order(parts, low, most, name)
    else:
        inner = _in_order(parts, low, most, name)
    return f'"[" {inner} "]"'


def is_too_long(count: int, low: int, high: int | None) -> bool:
    """Return whether so many values are more than `unique_list` spells out."""
    return count * (_bound(count, low, high) + 1) > _MOST_PLACES


def _bound(count: int, low: int, high: int | None) -> int:
    """How many items are counted; beyond that nothing depends on it."""
    return low if high is None or high >= count else high


def without_unique_items(part: Mapping[str, object], reader: SchemaReader) -> Mapping[str, object]:
    """A schema of a list in words that `llguidance` knows: an enum of all lists, of a few values.

    What cannot be said so stays, for the library to refuse.
    """
    if "uniqueItems" not in part:
        return part
    rest = {key: value for key, value in part.items() if key != "uniqueItems"}
    low, high = part.get("minItems", 0), part.get("maxItems")
    if part["uniqueItems"] is not True or (isinstance(high, int) and high <= 1):
        return rest if isinstance(part["uniqueItems"], bool | None) else part
    asked = set(constraints(part)) - {"items", "maxItems", "minItems", "type", "uniqueItems"}
    kinds = part.get("type", "array")
    may_be_null = kinds == ["array", "null"]
    if asked or not (kinds == "array" or may_be_null) or not _are_counts(low, high):
        return part
    try:
        values = listed_values(part.get("items"), reader, "items")
        lists = None if values is None else _lists(values, low, high)
        reader.count(sum(map(len, lists or ())), "items")
    except UsageError:
        return part
    if not lists:
        return part
    described = {key: value for key, value in rest.items() if key not in constraints(part)}
    return {**described, "enum": [*lists, None] if may_be_null else lists}


def _are_counts(low: object, high: object) -> bool:
    counts = [each for each in (low, high) if each is not None]
    return all(
        isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in counts
    )


def _lists(values: Sequence[object], low: object, high: object) -> list[list[object]] | None:
    count, least = len(values), low if isinstance(low, int) else 0
    sizes = range(least, (min(high, count) if isinstance(high, int) else count) + 1)
    for ways, of_size, most in (
        (math.perm, itertools.permutations, _MOST_LISTS),
        (math.comb, itertools.combinations, _MOST_ORDERED),
    ):
        if _are_few(ways, count, sizes, most):
            return [list(one) for size in sizes for one in of_size(values, size)]
    return None


def _are_few(ways: Callable[[int, int], int], count: int, sizes: Iterable[int], most: int) -> bool:
    """Return whether there are at most so many lists; the first beyond ends the count."""
    found = 0
    for size in sizes:
        found += ways(count, size)
        if found > most:
            return False
    return True


def _of_type(kind: str, schema: Mapping[str, object]) -> list[object] | None:
    if kind in _CONSTANTS:
        return list(_CONSTANTS[kind])
    low, high = schema.get("minimum"), schema.get("maximum")
    if kind != "integer" or set(schema) - _RANGE or type(low) is not int or type(high) is not int:
        return None
    return None if high - low >= MOST_VALUES else list(range(low, high + 1))


def _joined(parts: Iterable[list[object] | None]) -> list[object] | None:
    found: dict[object, object] = {}
    for part in parts:
        if part is None:
            return None
        for value in part:
            found.setdefault(json_key(value), value)
    return list(found.values())


def _either(parts: Sequence[str], *, may_end: bool) -> str:
    """One of the parts, or nothing."""
    found = " | ".join(part for part in parts if part)
    if not found:
        return ""
    return f"({found})?" if may_end else f"({found})"


def _in_any_order(parts: Sequence[str], low: int, most: int, name: Name) -> str:
    """A rule for each set of parts that are used."""
    rests: dict[frozenset[int], str] = {}

    def rest(used: frozenset[int]) -> str:
        if used not in rests:
            ways = [f'"," {way}' for way in following(used)]
            body = _either(ways, may_end=len(used) >= low)
            rests[used] = name(body) if body else ""
        return rests[used]

    def following(used: frozenset[int]) -> list[str]:
        if len(used) == most:
            return []
        free = [index for index in range(len(parts)) if index not in used]
        return [f"{parts[index]} {rest(used | {index})}".rstrip() for index in free]

    return _either(following(frozenset()), may_end=low == 0)


def _in_order(parts: Sequence[str], low: int, most: int, name: Name) -> str:
    """A rule for each part and how many are used before it."""
    bound = _bound(len(parts), low, most)
    # What may follow when so many were used: None for nothing that fits.
    rests: list[str | None] = [None if used < low else "" for used in range(bound + 1)]
    firsts: list[str | None] = [rests[0]]
    for part in reversed(parts):
        taken = [_next(rests, used, most) for used in range(bound + 1)]
        first = _or(None if taken[0] is None else f"{part} {taken[0]}".rstrip(), firsts[-1])
        firsts.append(first if not first else name(first))
        bodies = [
            _or(None if way is None else f'"," {part} {way}'.rstrip(), rests[used])
            for used, way in enumerate(taken)
        ]
        rests = [body if not body else name(body) for body in bodies]
    return firsts[-1] or ""


def _next(rests: Sequence[str | None], used: int, most: int) -> str | None:
    """What follows once one more is used."""
    if most < used + 1:
        return None
    return rests[min(used + 1, len(rests) - 1)]


def _or(way: str | None, other: str | None) -> str | None:
    if way is None:
        return other
    if other is None:
        return way
    return f"({way})?" if other == "" else f"{way} | {other}"
