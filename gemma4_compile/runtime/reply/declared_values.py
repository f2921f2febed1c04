"""A call as its declaration has it: the tool's name, and the types of values.

A model that leaves the quotation marks out writes ``zip:90210``, which alone is a number. Where the
declaration says that it is a text, it is that one, with the digits that were written. The other way
round a text is the number, the constant, the list or the object that it is the JSON of, where the
declaration takes no texts. Names come back with the space of an MCP server before them
(``google:mcp:create`` for ``create``), or in other letters (``Read`` for ``read``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gemma4_compile.runtime.reply.declarations import type_of
from gemma4_compile.runtime.reply.references import referred
from gemma4_compile.runtime.reply.tool_call import DECODER, ToolCall, ToolCallError, check

_KINDS = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))
_MOST_STEPS = 32  # references and choices inside each other that are followed
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_CONSTANTS = {"true": True, "false": False}
_PARTS = re.compile(r"[:./]+")

Tools = Sequence[Mapping[str, object]]


def as_declared(call: ToolCall, tools: Tools) -> ToolCall:
    """The call by the name of its tool, with values of the types that the tool declares."""
    declared: dict[str, object] = {}
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            declared.setdefault(str(function["name"]), function.get("parameters"))
    name = call.name if call.name in declared else _meant(call.name, declared)
    if name is None:
        return call
    arguments = _Declaration(declared[name]).value(call.arguments, declared[name], 0)
    assert isinstance(arguments, Mapping), "an object stays one"
    return replace(call, name=name, arguments=arguments)


def _meant(name: str, declared: Mapping[str, object]) -> str | None:
    """The one tool whose name another one must be; None if none or several may be."""
    parts = _parts(name)
    folded = [part.casefold() for part in parts]
    if not parts:
        return None
    alike = (
        [other for other in declared if _parts(other) == parts],
        [other for other in declared if other == parts[-1]],
        [other for other in declared if [one.casefold() for one in _parts(other)] == folded],
        [other for other in declared if other.casefold() == folded[-1]],
    )
    found: list[str] = next(filter(None, alike), [])
    return found[0] if len(found) == 1 else None


def _parts(name: str) -> list[str]:
    return [part for part in _PARTS.split(name) if part]


class _Declaration:
    """The schema of a tool's arguments, and what its references lead to."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._known: dict[int, frozenset[str]] = {}  # kinds of its parts by their `id`

    def value(self, value: object, schema: object, depth: int) -> object:
        """A value with the type that a schema wants, if it has one reading in it."""
        schema = self._followed(schema)
        if not isinstance(schema, Mapping) or depth > _MOST_STEPS:
            return value
        if isinstance(value, str):
            value = self._from_text(value, schema)
        if isinstance(value, Mapping):
            inner = self._part(schema, "properties", "object")
            names = inner if isinstance(inner, Mapping) else {}
            return {
                name: self.value(one, names.get(name), depth + 1) for name, one in value.items()
            }
        if isinstance(value, list):
            items = self._part(schema, "items", "array")
            return [self.value(one, items, depth + 1) for one in value]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and not self._kinds(schema, 0) & {"number", "integer"}:
            return str(value) if "string" in self._kinds(schema, 0) else value
        return value

    def _from_text(self, text: str, schema: Mapping[str, object]) -> object:
        kinds = self._kinds(schema, 0)
        word = text.strip()
        if "string" in kinds:
            return text
        if kinds & {"number", "integer"} and (found := _NUMBER.fullmatch(word)):
            is_integer = word.lstrip("-").isdigit()
            if is_integer or "number" in kinds:
                return _json(found[0], text)
        if "boolean" in kinds and word.lower() in _CONSTANTS:
            return _CONSTANTS[word.lower()]
        for kind, mark in (("array", "["), ("object", "{")):
            if kind in kinds and word.startswith(mark):
                return _json(word, text)
        return text

    def _followed(self, schema: object) -> object:
        """What a reference within the declaration leads to."""
        for _ in range(_MOST_STEPS):
            if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
                return schema
            try:
                schema = referred(self._root, schema["$ref"])
            except LookupError:
                return None
        return None

    def _part(self, schema: Mapping[str, object], word: str, kind: str) -> object:
        """What a schema says of parts; of choices, what the one says that takes this kind."""
        if word in schema:
            return schema[word]
        taken = [one for one in self._choices(schema) if kind in self._kinds(one, 1)]
        found = self._followed(taken[0]) if len(taken) == 1 else None
        return found.get(word) if isinstance(found, Mapping) else None

    def _choices(self, schema: Mapping[str, object]) -> list[object]:
        choices = schema.get("anyOf", schema.get("oneOf", schema.get("allOf")))
        return choices if isinstance(choices, list) else []

    def _kinds(self, schema: object, depth: int) -> frozenset[str]:
        """The kinds of values that a schema may take; all where it does not say."""
        schema = self._followed(schema)
        if not isinstance(schema, Mapping) or depth > _MOST_STEPS:
            return _KINDS
        # Once each: choices that lead to the same, or back to where they stand, would double.
        found = self._known.get(id(schema))
        if found is None:
            self._known[id(schema)] = _KINDS
            found = self._known[id(schema)] = self._own_kinds(schema, depth)
        return found

    def _own_kinds(self, schema: Mapping[str, object], depth: int) -> frozenset[str]:
        kinds = _KINDS
        said = schema.get("type")
        if isinstance(said, str):
            kinds &= {said.lower()}
        elif isinstance(said, list):
            kinds &= {each.lower() for each in said if isinstance(each, str)}
        if schema.get("nullable") is True:
            kinds |= {"null"}
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list):
            taken = set(map(type_of, values))
            kinds &= taken | ({"number"} if "integer" in taken else set())
        for word in ("anyOf", "oneOf"):
            choices = schema.get(word)
            if isinstance(choices, list) and choices:
                kinds &= frozenset().union(*(self._kinds(each, depth + 1) for each in choices))
        every = schema.get("allOf")
        for each in every if isinstance(every, list) else ():
            kinds &= self._kinds(each, depth + 1)
        return kinds or _KINDS


def _json(word: str, text: str) -> object:
    """The value that a word is the JSON of; the text it stands in, if it is none."""
    try:
        value = DECODER.decode(word)
        check(value, 0)
    except (ValueError, RecursionError, ToolCallError):
        return text
    return value
