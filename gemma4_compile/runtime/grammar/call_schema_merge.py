"""JSON schemas of arguments brought into one form: references, `allOf` and choices taken apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.reply.references import referred

Schema = Mapping[str, object]
TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_MAX_CHAIN = 32  # references that lead to references
_MAX_CHOICES = 256
_MAX_MERGES = 10_000
_MAX_SEEN = 500_000  # a second or less
_STARTS = {
    "string": {"maxLength", "minLength", "pattern"},
    "number": {"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"},
    "array": {"additionalItems", "items", "maxItems", "minItems", "prefixItems", "uniqueItems"},
    "object": {
        "additionalProperties",
        "maxProperties",
        "minProperties",
        "patternProperties",
        "properties",
        "propertyNames",
        "required",
    },
}
_OTHERS = (
    "$dynamicRef $recursiveRef $ref allOf anyOf const contains dependencies dependentRequired "
    "dependentSchemas else enum format if maxContains minContains not nullable oneOf then type"
)
# What else a schema says describes it (`title`, `default`, `examples`, `discriminator`), and
# `unevaluatedProperties` and `unevaluatedItems` forbid what a call never holds.
_CONSTRAINTS = frozenset(_OTHERS.split()).union(*_STARTS.values())
_LARGEST = ("exclusiveMinimum", "minItems", "minLength", "minProperties", "minimum")
_SMALLEST = ("exclusiveMaximum", "maxItems", "maxLength", "maxProperties", "maximum")


def constraints(schema: Schema) -> dict[str, object]:
    """What a schema asks for, without what describes it."""
    return {key: value for key, value in schema.items() if key in _CONSTRAINTS}


def json_key(value: object) -> object:
    """The same for values that are the same in JSON, where 1 is 1.0 and is not true."""
    if isinstance(value, list):
        return ("list", *map(json_key, value))
    if isinstance(value, Mapping):
        return ("object", frozenset((name, json_key(inner)) for name, inner in value.items()))
    return (isinstance(value, bool), value)


def fits(value: object, kinds: Sequence[str] | None, schema: Schema) -> bool:
    """Return whether a constant is of these types, and within the schema's bounds."""
    if kinds is not None and not any(_is(value, kind) for kind in kinds):
        return False
    items = value if schema.get("uniqueItems") is True and isinstance(value, list) else []
    if len({json_key(item) for item in items}) < len(items):
        return False
    size = len(value) if isinstance(value, (str, list, dict)) else value
    word = "imum"
    for kind, name in ((str, "Length"), (list, "Items"), (dict, "Properties")):
        word = name if isinstance(value, kind) else word
    if isinstance(size, bool) or not isinstance(size, (int, float)):
        return True
    low, high = schema.get(f"min{word}"), schema.get(f"max{word}")
    return not (isinstance(low, (int, float)) and size < low) and not (
        isinstance(high, (int, float)) and size > high
    )


def _is(value: object, kind: str) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind in ("integer", "number"):
        return number and (kind == "number" or not isinstance(value, float) or value.is_integer())
    known = {"string": str, "boolean": bool, "null": type(None), "array": list, "object": dict}
    return isinstance(value, known[kind])


@dataclass(frozen=True)
class Shape:
    """Properties of an object.

    Attributes
    ----------
    required : names among the properties
    free : for names that are no property: which names (`patterns` and `taken` are excepted), and
        the schema of their values
    is_open : whether it is any object
    """

    properties: dict[str, object]
    required: frozenset[str]
    free: tuple[tuple[Schema, object], ...]
    is_open: bool = False


@dataclass
class SeenValues:
    """How many keywords, names and values were gone through; references name some many times."""

    count: int = 0


class SchemaReader:
    """Reads the parts of one declaration."""

    def __init__(
        self,
        root: Schema,
        refused: Callable[[str, str], UsageError],
        seen: SeenValues | None = None,
    ) -> None:
        """Begin; `refused` makes the error about a part, `seen` counts for several readers."""
        self._root = root
        self._merges = 0
        self._seen = SeenValues() if seen is None else seen
        self._nested = 0
        self._refused = refused

    def target(self, pointer: object, where: str) -> object:
        """What a reference points to; UsageError if that is nothing of the declaration."""
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            self._fail(where, f"`$ref` to {str(pointer)[:60]!r}: only parts of it can be meant")
        try:
            return referred(self._root, pointer)
        except LookupError:
            self._fail(where, f"`$ref` to {pointer[:60]!r}, which is not there")

    def types(self, schema: Schema) -> list[str] | None:
        """Types of the values, None for any; a keyword of one type means that type."""
        named = schema.get("type")
        if named is None:
            found = [kind for kind, words in _STARTS.items() if words & set(schema)]
            return found or (["string"] if "format" in schema else None)
        names = named if isinstance(named, list) else [named]
        known = [name for name in names if name in TYPES]
        if not names or known != names:
            self._fail("type", f"expected one or more of {', '.join(TYPES)}")
        return [name for name in known if name != "integer" or "number" not in known]

    def choices(self, schema: Schema, where: str) -> list[object] | None:
        """Alternatives with what the schema asks for besides; None without `anyOf` and `oneOf`."""
        for key in ("anyOf", "oneOf"):
            if key not in schema:
                continue
            given = schema[key]
            if not isinstance(given, list) or not 0 < len(given) <= _MAX_CHOICES:
                self._fail(f"{where}.{key}", f"expected a list of 1 to {_MAX_CHOICES}")
            rest = {k: v for k, v in schema.items() if k != key}
            if not rest and key == "anyOf":
                return given
            choices = [self.merged(rest, one, where) if rest else one for one in given]
            return choices if key == "anyOf" else self._exclusive(choices, where)
        return None

    def plain(self, schema: object, where: str) -> Schema:
        """A schema with its reference and `allOf` put in."""
        for _ in range(_MAX_CHAIN):
            if schema is True:
                return {}
            if not isinstance(schema, Mapping):
                self._fail(where, "expected a schema")
            self.count(len(schema), where)
            schema = constraints(schema)
            if "$ref" in schema:
                target = self.target(schema.pop("$ref"), where)
                schema = self.merged(schema, target, where) if schema else target
            elif "allOf" in schema:
                parts = schema.pop("allOf")
                if not isinstance(parts, list):
                    self._fail(f"{where}.allOf", "expected a list")
                for part in parts:
                    schema = self.merged(schema, part, where)
            else:
                return schema
        self._fail(where, "its references lead in a circle")

    def merged(self, first: object, second: object, where: str) -> object:
        """A schema that asks for what both ask for."""
        if first is False or second is False:
            return False
        self._merges += 1
        self._nested += 1
        if self._merges > _MAX_MERGES or self._nested > _MAX_CHAIN:
            self._fail(where, "its references lead in a circle, or it is too large with them")
        one, two = self.plain(first, where), self.plain(second, where)
        self._nested -= 1
        if not one or not two:
            return one or two
        result = {**one, **two}
        for key in set(one) & set(two):
            self.count(_size(one[key]) + _size(two[key]), where)
            if one[key] != two[key] or json_key(one[key]) != json_key(two[key]):
                result[key] = self._both(key, one[key], two[key], where)
        properties = self._properties(one, two, where)
        if properties:
            result["properties"] = properties
        kinds = _common_types(self.types(one), self.types(two))
        if "type" in one or "type" in two:
            if not kinds:
                return False
            result["type"] = kinds
        return result

    def _both(self, key: str, one: object, two: object, where: str) -> object:
        """What both values of a keyword ask for."""
        if key in ("properties", "type"):
            return two
        if key == "required" and isinstance(one, list) and isinstance(two, list):
            known = {json_key(name) for name in one}
            return [*one, *(name for name in two if json_key(name) not in known)]
        if key == "enum" and isinstance(one, list) and isinstance(two, list):
            known = {json_key(value) for value in two}
            return [value for value in one if json_key(value) in known]
        numbers = isinstance(one, (int, float)) and isinstance(two, (int, float))
        if numbers and key in _LARGEST + _SMALLEST:
            assert isinstance(one, (int, float)), "seen above"
            assert isinstance(two, (int, float)), "seen above"
            return max(one, two) if key in _LARGEST else min(one, two)
        if key in ("additionalProperties", "items", "propertyNames"):
            return False if False in (one, two) else {"allOf": [one, two]}
        if key == "uniqueItems":
            return True
        if key == "nullable":
            return False
        self._fail(f"{where}.allOf", f"two different `{key}` of one value are not followed")

    def count(self, values: int, where: str) -> None:
        """Count what is gone through; UsageError if it was too much by now."""
        self._seen.count += values
        if self._seen.count > _MAX_SEEN:
            self._fail(where, f"more than {_MAX_SEEN} values to go through, references followed")

    def _properties(self, one: Schema, two: Schema, where: str) -> dict[str, object]:
        found: dict[str, object] = {}
        both = [_mapping(each.get("properties")) for each in (one, two)]
        self.count(sum(map(len, both)), where)
        for name in [*both[0], *(name for name in both[1] if name not in both[0])]:
            parts = []
            for known, each in zip(both, (one, two), strict=True):
                if name in known:
                    parts.append(known[name])
                elif "additionalProperties" in each:
                    parts.append(each["additionalProperties"])
            found[name] = parts[0] if len(parts) == 1 else {"allOf": parts}
            if False in parts:
                found[name] = False
        return found

    def shape(self, schema: Schema, where: str) -> Shape:
        """Read an object's properties."""
        given, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(given, Mapping):
            self._fail(f"{where}.properties", "expected an object")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            self._fail(f"{where}.required", "expected a list of names")
        patterns = _mapping(schema.get("patternProperties"))
        names = self.plain(schema.get("propertyNames", {}), f"{where}.propertyNames")
        asks_names = {key: value for key, value in names.items() if key != "type"}
        more = schema.get("additionalProperties", None if given or patterns else True)
        properties = dict(given)
        for name in required:
            properties.setdefault(name, True if more in (None, True) else more)
        if patterns and properties:
            self._fail(f"{where}.patternProperties", "is not followed beside named properties")
        if {"enum", "const"} & set(names) and not given and not patterns:
            listed = names.get("enum", [names.get("const")])
            if not isinstance(listed, list):
                self._fail(f"{where}.propertyNames", "expected a list")
            named = {name: more for name in listed if isinstance(name, str)}
            named |= {name: False for name in required if name not in named}
            return Shape(named, frozenset(required), ())
        if asks_names and (properties or patterns):
            self._fail(f"{where}.propertyNames", "is not followed beside named properties")
        if set(asks_names) - {"maxLength", "minLength", "pattern"}:
            self._fail(f"{where}.propertyNames", "only a pattern, lengths and values are followed")
        free: list[tuple[Schema, object]] = []
        for pattern, inner in patterns.items():
            others = [other for other in patterns if other != pattern]
            free.append(({"pattern": pattern, "patterns": others}, inner))
        if more is not None and more is not False:
            excepted = {"taken": list(properties), "patterns": list(patterns)}
            free.append(({**asks_names, **excepted}, more))
        counts = {"minProperties", "maxProperties"} & set(schema)
        is_open = not properties and not patterns and not asks_names and more is True
        return Shape(properties, frozenset(required), tuple(free), is_open and not counts)

    def _exclusive(self, choices: Sequence[object], where: str) -> list[object]:
        """Choices of which one alone fits what is written; UsageError if that is not certain."""
        plain = [self.plain(one, where) for one in choices if one is not False]
        keys = [self._values(one, where) for one in plain]
        names = set.intersection(*(set(_mapping(one.get("properties"))) for one in plain))
        for name in sorted(names):
            values = [self._values(_mapping(one["properties"])[name], where) for one in plain]
            if _are_disjoint(values):
                return [
                    {**one, "type": "object", "required": [*_list(one.get("required")), name]}
                    for one in plain
                ]
        for index, one in enumerate(plain):
            self.count(index, where)
            if not all(
                self._differ(one, other) or _are_disjoint([keys[index], held])
                for other, held in zip(plain[:index], keys, strict=False)
            ):
                self._fail(f"{where}.oneOf", "more than one of its choices may fit; use `anyOf`")
        return list(choices)

    def _differ(self, one: Schema, other: Schema) -> bool:
        kinds = self.types(one), self.types(other)
        if None not in kinds and not _common_types(*kinds):
            return True
        return _demands_more(one, other) or _demands_more(other, one)

    def _values(self, schema: object, where: str) -> frozenset[object]:
        """Keys of the values that a schema lists; none where it lists none."""
        plain = self.plain(schema, where) if isinstance(schema, Mapping) else {}
        found = [plain["const"]] if "const" in plain else plain.get("enum")
        self.count(_size(found), where)
        return frozenset(map(json_key, found)) if isinstance(found, list) else frozenset()

    def _fail(self, where: str, why: str) -> NoReturn:
        raise self._refused(where, why)


def _demands_more(one: Schema, other: Schema) -> bool:
    """Return whether one requires a property that the other forbids."""
    closed = other.get("additionalProperties") is False and "patternProperties" not in other
    return closed and bool(set(_list(one.get("required"))) - set(_mapping(other.get("properties"))))


def _common_types(one: list[str] | None, two: list[str] | None) -> list[str]:
    if one is None or two is None:
        return list(one or two or TYPES)
    found = [kind for kind in one if kind in two]
    if "integer" not in found and {"integer", "number"} <= {*one, *two}:
        wide = one if "number" in one else two
        if "integer" in (two if wide is one else one):
            found.append("integer")
    return found


def _are_disjoint(keys: Sequence[frozenset[object]]) -> bool:
    """Return whether each lists values, and none is in two lists."""
    if len(keys) == 2:  # of many pairs, whose shorter list is gone through
        return all(keys) and keys[0].isdisjoint(keys[1])
    seen: set[object] = set()
    for each in keys:
        if not each or not seen.isdisjoint(each):
            return False
        seen |= each
    return True


def _size(value: object) -> int:
    """How many values one has in it, at any depth."""
    count, waiting = 0, [value]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, Mapping):
            inner = list(inner.values())
        if isinstance(inner, list):
            count += len(inner)
            waiting += [item for item in inner if isinstance(item, (list, Mapping))]
    return count


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
