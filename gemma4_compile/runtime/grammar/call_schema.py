"""Rules of a grammar for the arguments of calls, from the JSON schemas that declare them.

A call spells numbers, `true`, `false` and `null` as JSON does, so what bounds a number goes to the
library that follows JSON schemas, and so do strings of a `format`. Everything else is written out:
keys bare where they can be, strings between quote tokens. What a schema does not ask for may be
left out of the grammar (an argument that it does not name, for instance), never what it asks for:
that is an error which names the keyword.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.grammar.call_number import json_rule, number_of
from gemma4_compile.runtime.grammar.call_pattern import looks_ahead, pattern_of
from gemma4_compile.runtime.grammar.call_schema_merge import (
    Schema,
    SchemaReader,
    SeenValues,
    constraints,
    fits,
)
from gemma4_compile.runtime.grammar.unique_items import is_too_long, listed_values, unique_list

QUOTE = "\ue000"  # until the id of the token is put in
MOST_ITEMS = 64  # of a list, or a dictionary, in a reply that must end
_MAX_DEPTH = 60
_MAX_STEPS = 20_000
_MAX_LENGTH = 100_000  # characters of a string that a schema may ask for
_BARE_KEY = re.compile(r"[^\s{}\[\](),:=;'\"`<>|\\]+")
# Formats that the library knows; others say nothing about the text.
FORMATS = tuple("date date-time duration email hostname ipv4 ipv6 time uri uuid".split())  # noqa: SIM905
_UNFOLLOWED = (
    *("contains", "dependencies", "dependentRequired", "dependentSchemas", "else", "if"),
    *("maxContains", "minContains", "not", "then", "$dynamicRef", "$recursiveRef"),
)
_LONGEST_FORMAT = 48  # characters; a UUID has 36, a time with a zone and nanoseconds 35
_KEYS = "KEY"


def refused(where: str, why: str) -> UsageError:
    """The error about a part of a declaration that a call cannot be held to."""
    return UsageError(
        f"calls cannot follow the declaration: `{where}`: {why}",
        hint="leave it out, or say it in the description",
    )


class CallRules:
    """Rules with names: what is in a grammar twice would double at each level of nesting."""

    def __init__(self, longest_text: int | None) -> None:
        """Begin; strings and lists have a longest form if `longest_text` is given."""
        self._longest = longest_text
        self._names: dict[str, str] = {}
        self._references: dict[str, str] = {}  # names by pointer, of the declaration at hand
        self._bodies: dict[str, str] = {}  # of references
        self._terminals: dict[str, str] = {}
        self._seen = SeenValues()
        self._reader = SchemaReader({}, refused)
        self._steps = 0

    def text(self) -> str:
        """Return the rules, a line each."""
        rules = {name: body for body, name in self._names.items()} | self._bodies
        rules |= {name: body for body, name in self._terminals.items()}
        return "".join(f"{name}: {body}\n" for name, body in rules.items())

    def arguments(self, parameters: object, tool: str) -> str:
        """Arguments of a tool between their braces; UsageError for what cannot be followed.

        A tool that declares none takes none: a model that may write some has to invent them.
        """
        self._references = {}
        schema = {} if parameters is None else parameters
        if not isinstance(schema, Mapping):
            raise refused(tool, "expected a schema")
        names_none = not schema.get("properties", True) and not schema.get("required")
        rest = constraints(schema).keys() - {"type", "properties", "required"}
        if not constraints(schema) or (names_none and not rest):
            schema = {"type": "object", "additionalProperties": False}
        self._reader = SchemaReader(schema, refused, self._seen)
        kinds = self._reader.types(schema)
        if kinds is not None and "object" not in kinds:
            raise refused(tool, "expected a schema of an object")
        if "properties" not in schema and not set(schema) & {"$ref", "anyOf", "oneOf", "allOf"}:
            schema = {"type": "object", **schema}
        found = self._value({**schema, "type": "object"}, tool, 0)
        if found is None:
            raise refused(tool, "no arguments fit")
        return f"({found})"

    def _name(self, body: str) -> str:
        return self._names.setdefault(body, f"part{len(self._names)}")

    def _terminal(self, body: str) -> str:
        return self._terminals.setdefault(body, f"TERM{len(self._terminals)}")

    def _value(self, schema: object, where: str, depth: int) -> str | None:
        """A value that a schema allows; None if there is none."""
        self._steps += 1
        if depth > _MAX_DEPTH or self._steps > _MAX_STEPS:
            raise refused(where, "it is nested too deep, or too large with what it refers to")
        if isinstance(schema, bool):
            return "value" if schema else None
        if not isinstance(schema, Mapping):
            raise refused(where, "expected a schema")
        asked = constraints(schema)
        if not asked:
            return "value"
        if asked.get("not") in ({}, True):
            return None
        for key in asked:
            if key in _UNFOLLOWED:
                raise refused(f"{where}.{key}", "is not followed in calls")
        if set(asked) == {"$ref"}:
            return self._reference(asked["$ref"], where, depth)
        if (
            set(asked) == {"allOf"}
            and isinstance(asked["allOf"], list)
            and len(asked["allOf"]) == 1
        ):
            return self._value(asked["allOf"][0], where, depth + 1)
        if asked.pop("nullable", False) is True:
            return self._any_of([asked, {"type": "null"}], where, depth)
        if "$ref" in asked or "allOf" in asked:
            return self._value(self._reader.plain(asked, where), where, depth + 1)
        choices = self._reader.choices(asked, where)
        if choices is not None:
            return self._any_of(choices, where, depth)
        if "enum" in asked or "const" in asked:
            return self._constants(asked, where)
        kinds = self._reader.types(asked)
        if kinds is None:
            return "value"
        return self._either([self._typed(kind, asked, where, depth) for kind in kinds])

    def _any_of(self, choices: Sequence[object], where: str, depth: int) -> str | None:
        return self._either([self._value(choice, where, depth + 1) for choice in choices])

    def _either(self, bodies: Sequence[str | None]) -> str | None:
        found = list(dict.fromkeys(body for body in bodies if body is not None))
        if len(found) < 2:
            return found[0] if found else None
        return self._name(" | ".join(found))

    def _reference(self, pointer: object, where: str, depth: int) -> str:
        target = self._reader.target(pointer, where)
        assert isinstance(pointer, str), "it points to something"
        name = self._references.get(pointer)
        if name is None:
            name = f"ref{len(self._bodies)}"
            self._references[pointer] = name
            self._bodies[name] = ""
            body = self._value(target, where, depth + 1)
            if body is None:
                raise refused(where, f"nothing fits `{pointer}`")
            self._bodies[name] = body
        return name

    def _constants(self, schema: Schema, where: str) -> str | None:
        values = schema.get("enum", [schema.get("const")])
        if not isinstance(values, list):
            raise refused(f"{where}.enum", "expected a list")
        if "enum" in schema and "const" in schema:
            values = [value for value in values if value == schema["const"]]
        kinds = self._reader.types({"type": schema["type"]} if "type" in schema else {})
        return self._either([literal(v) for v in values if fits(v, kinds, schema)])

    def _typed(self, kind: str, schema: Schema, where: str, depth: int) -> str | None:
        if kind == "string":
            return self._text(schema, where)
        if kind in ("integer", "number"):
            return self._name(number_of(kind, schema, where, refused))
        if kind == "array":
            return self._list(schema, where, depth)
        if kind == "object":
            return self._object(schema, where, depth)
        return '("true" | "false")' if kind == "boolean" else '"null"'

    def _text(self, schema: Schema, where: str) -> str:
        # A pattern that looks ahead is more than the library takes beside a format.
        known = schema.get("format") in FORMATS and not looks_ahead(schema.get("pattern"))
        keys = ("minLength", "maxLength", "pattern")
        asked = {key: schema[key] for key in (*keys, "format") if key in schema}
        if known:
            if self._longest is not None:  # fractions of a second have no end of their own
                asked.setdefault("maxLength", max(self._longest, _LONGEST_FORMAT))
            return self._name(json_rule({"type": "string", **asked}))
        if not any(key in asked for key in keys):
            return "text"
        return f"({QUOTE} {self._terminal(self._letters(schema, where))} {QUOTE})"

    def _letters(self, schema: Schema, where: str, least: int = 0) -> str:
        """The body of a terminal for a text of a pattern and lengths."""
        low = max(least, _count(schema, "minLength", where) or 0)
        high = _count(schema, "maxLength", where)
        if low > _MAX_LENGTH:
            raise refused(f"{where}.minLength", f"expected at most {_MAX_LENGTH}")
        if self._longest is not None:
            high = min(_MAX_LENGTH if high is None else high, max(self._longest, low))
        elif high is not None and high > _MAX_LENGTH:
            high = None if low == 0 else _MAX_LENGTH
        if high is not None and high < low:
            raise refused(f"{where}.maxLength", "it is less than `minLength`")
        length = f"/(?s:.){{{low},{'' if high is None else high}}}/"
        return (
            length
            if "pattern" not in schema
            else f"{pattern_of(schema, where, refused)} & {length}"
        )

    def _list(self, schema: Schema, where: str, depth: int) -> str | None:
        low = _count(schema, "minItems", where) or 0
        high = _count(schema, "maxItems", where)
        if schema.get("uniqueItems") is True and (high is None or high > 1):
            return self._set(schema, where, low, high)
        items, first = schema.get("items", True), schema.get("prefixItems", [])
        if isinstance(items, list):  # as drafts before 2020 say `prefixItems`
            first, items = items, schema.get("additionalItems", True)
        if not isinstance(first, list):
            raise refused(f"{where}.prefixItems", "expected a list")
        begin = [self._value(one, f"{where}[{i}]", depth + 1) for i, one in enumerate(first[:high])]
        if None in begin:
            return None
        if first and "maxItems" not in schema:  # what follows those that are named may be left out
            high = max(low, len(begin))
        item = self._value(items, f"{where}[]", depth + 1)
        if item is None:
            high = len(begin) if high is None else min(high, len(begin))
        if high is None and self._longest is not None:
            high = max(MOST_ITEMS, low)
        if high is not None and high < low:
            return None
        rest = _repeated(
            item, max(low - len(begin), 0), None if high is None else high - len(begin)
        )
        if begin:
            return self._name(f'"[" {_joined(begin)}{rest} "]"')
        if item is None or high == 0:
            return '("[" "]")'
        more = _repeated(item, max(low - 1, 0), None if high is None else high - 1)
        name = f"{item}{more}"
        return self._name(f'"[" {name} "]"' if low else f'"[" ({name})? "]"')

    def _set(self, schema: Schema, where: str, low: int, high: int | None) -> str | None:
        values = None
        if "prefixItems" not in schema and isinstance(schema.get("items"), Mapping):
            values = listed_values(schema["items"], self._reader, f"{where}[]")
        if values is None or is_too_long(len(values), low, high):
            why = "is not followed in calls, but of items that an enum lists and the like"
            raise refused(f"{where}.uniqueItems", why)
        found = unique_list([*map(literal, values)], low, high, self._name)
        return None if found is None else self._name(found)

    def _object(self, schema: Schema, where: str, depth: int) -> str | None:
        shape = self._reader.shape(schema, where)
        if shape.is_open:
            return "object"
        pairs: dict[str, str] = {}
        for name, inner in shape.properties.items():
            value = self._value(inner, f"{where}.{name}", depth + 1)
            if value is None and name in shape.required:
                return None
            if value is not None:
                pairs[name] = f"{_key(name)} {value}"
        free = self._free(shape.free, where, depth)
        needed = [pairs[name] for name in pairs if name in shape.required]
        others = [name for name in pairs if name not in shape.required]
        low = max((_count(schema, "minProperties", where) or 0) - len(needed), 0)
        high = _count(schema, "maxProperties", where)
        high = None if high is None else high - len(needed)
        if others and (low or (high is not None and high < len(others) + bool(free))):
            raise refused(where, "`minProperties` or `maxProperties` beside optional properties")
        if (low and not free) or (high is not None and high < 0):
            return None
        if self._longest is not None:
            high = max(MOST_ITEMS, low) if high is None else min(high, max(MOST_ITEMS, low))
        orders = {tuple(others), tuple(sorted(others))}  # templates sort what a call holds
        bodies = [
            self._members(needed, [pairs[n] for n in order], free, (low, high)) for order in orders
        ]
        return self._name(f'"{{" ({" | ".join(sorted(bodies))}) "}}"')

    def _members(
        self, needed: list[str], others: list[str], free: str, counts: tuple[int, int | None]
    ) -> str:
        """Pairs: those that must be there, then some of the others in their order, then any."""
        low, high = counts
        rests = [_repeated(free or None, low, high)]
        for pair in reversed(others):
            rests.insert(0, self._name(f'("," {pair})? {rests[0]}'.rstrip()))
        if needed:
            return f"{_joined(needed)} {rests[0]}".rstrip()
        firsts = [f"{pair} {rest}".rstrip() for pair, rest in zip(others, rests[1:], strict=True)]
        if free and high != 0:
            more = _repeated(free, max(low - 1, 0), None if high is None else high - 1)
            firsts.append(f"{free}{more}")
        found = " | ".join(firsts)
        return f"({found})" if low else (f"({found})?" if found else "")

    def _free(self, kinds: Sequence[tuple[Schema, object]], where: str, depth: int) -> str:
        """Pairs whose names are free but for a pattern, or the names that are taken."""
        found = []
        for names, inner in kinds:
            value = self._value(inner, f"{where}.*", depth + 1)
            if value is not None:
                found.append(f"{self._free_key(names, where)} {value}")
        return self._name(" | ".join(found)) if found else ""

    def _free_key(self, names: Schema, where: str) -> str:
        taken, patterns = names.get("taken", ()), names.get("patterns", ())
        assert isinstance(taken, (list, tuple)), "as `Shape` has it"
        assert isinstance(patterns, (list, tuple)), "as `Shape` has it"
        self._steps += sum(
            1 + len(str(one)) // 64 for one in patterns
        )  # each is told from all others
        outside = [f"~({pattern_of({'pattern': pattern}, where, refused)})" for pattern in patterns]
        outside += [f"~/{re.escape(name).replace('/', chr(92) + '/')}/" for name in taken]
        if set(names) & {"pattern", "minLength", "maxLength"}:
            letters = self._letters({"maxLength": 64, **names}, where)
            return f'{QUOTE} {self._terminal(" & ".join([letters, *outside]))} {QUOTE} ":"'
        if not outside:
            return f'{_KEYS} ":"'
        return f'{self._terminal(" & ".join([KEY, *outside]))} ":"'


KEY = r"/[A-Za-z0-9_$@.\/-]{1,64}/"


def literal(value: object) -> str:
    """A value that is known, as a call spells it."""
    if isinstance(value, str):
        return f"({QUOTE} {json.dumps(value)} {QUOTE})" if value else f"({QUOTE} {QUOTE})"
    if isinstance(value, Mapping):
        pairs = [f"{_key(key)} {literal(inner)}" for key, inner in value.items()]
        return f'("{{" {_joined(pairs)} "}}")'
    if isinstance(value, list):
        return f'("[" {_joined([literal(inner) for inner in value])} "]")'
    return json.dumps(json.dumps(value))


def _key(name: str) -> str:
    if _BARE_KEY.fullmatch(name):
        return json.dumps(name + ":")
    return f'{literal(name)} ":"'


def _joined(parts: Sequence[str | None]) -> str:
    return ' "," '.join(part for part in parts if part is not None)


def _repeated(part: str | None, low: int, high: int | None) -> str:
    """More of a list: each after a comma."""
    if part is None or high == 0:
        return ""
    return f' ("," {part}){{{low},{"" if high is None else high}}}'


def _count(schema: Schema, key: str, where: str) -> int | None:
    value = schema.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise refused(f"{where}.{key}", "expected a count")
