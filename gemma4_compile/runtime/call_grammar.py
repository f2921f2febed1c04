"""A grammar of tool calls as the model writes them, for replies that must hold one.

`gemma4_compile.runtime.tool_calls` reads such a reply. The grammar is in `llguidance`'s
dialect of Lark, where `<[7]>` is the token with id 7.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.reply import MarkIds

_BARE = re.compile(r"[A-Za-z0-9_.-]+")
_MAX_DEPTH = 8  # of declared arguments; what lies deeper may be anything
_QUOTE = "\ue000"  # until the id of the token is put in
_MOST_ITEMS = 63  # besides the first, of a list
_MOST_CALLS = 8
_COMMON = rf"""
text: {_QUOTE} LETTERS {_QUOTE}
INTEGER: /-?(0|[1-9][0-9]{{0,17}})/
NUMBER: /-?(0|[1-9][0-9]{{0,17}})(\.[0-9]{{1,17}})?([eE][+-]?[0-9]{{1,2}})?/
KEY: /[A-Za-z0-9_.-]{{1,64}}/
value: text | NUMBER | "true" | "false" | "null" | list | object
list: "[" (value ("," value){{0,{_MOST_ITEMS}}})? "]"
object: "{{" (KEY ":" value ("," KEY ":" value){{0,{_MOST_ITEMS}}})? "}}"
"""


def call_grammar(
    tools: Sequence[Mapping[str, object]], marks: MarkIds, *, several: bool, longest_text: int
) -> str:
    """Return the grammar of a reply that calls one of these tools.

    Parameters
    ----------
    tools : declarations, as `read_tools` returns them
    several : whether more calls may follow the first
    longest_text : characters of a string; one without an end would leave no room for the call's

    Raises
    ------
    UsageError
        If the tokenizer has no tokens that mark calls.
    """
    if None in (marks.open_call, marks.close_call, marks.quote):
        raise UsageError(
            "this model's tokenizer has no tokens for tool calls", hint="ask without tools"
        )
    bodies = []
    rules = _Rules()
    for tool in tools:
        function = tool["function"]
        assert isinstance(function, Mapping), "a declaration as `read_tools` returns it"
        parameters = function.get("parameters", {})
        bodies.append(f"{json.dumps('call:' + function['name'])} {rules.arguments(parameters, 0)}")
    call = f"<[{marks.open_call}]> ({' | '.join(bodies)}) <[{marks.close_call}]>"
    calls = f"call{{1,{_MOST_CALLS}}}" if several else "call"
    letters = f"LETTERS: /(.|\\n){{0,{longest_text}}}/"
    grammar = f"start: {calls}\ncall: {call}\n{letters}\n{rules.text()}{_COMMON}"
    return grammar.replace(_QUOTE, f"<[{marks.quote}]>")


class _Rules:
    """Rules with names: what is in a grammar twice would double at each level of nesting."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def text(self) -> str:
        """Return the rules, a line each."""
        return "".join(f"{name}: {body}\n" for body, name in self._names.items())

    def _name(self, body: str) -> str:
        return self._names.setdefault(body, f"part{len(self._names)}")

    def arguments(self, schema: object, depth: int) -> str:
        """Arguments: those that are required in their order, then any of the others."""
        if not isinstance(schema, Mapping):
            return "object"
        properties = schema.get("properties")
        if depth > _MAX_DEPTH or not isinstance(properties, Mapping):
            return "object"
        if not all(_BARE.fullmatch(name) for name in properties):
            return "object"
        required = schema.get("required")
        needed = {n for n in properties if isinstance(required, list) and n in required}
        pair = {
            name: f"{json.dumps(name + ':')} {self._value(inner, depth + 1)}"
            for name, inner in properties.items()
        }
        fixed = ' "," '.join(pair[name] for name in properties if name in needed)
        others = " | ".join(text for name, text in pair.items() if name not in needed)
        if not others:
            return f'"{{" {fixed} "}}"'
        other, most = self._name(others), len(properties) - len(needed)
        if needed:
            return f'"{{" {fixed} ("," {other}){{0,{most}}} "}}"'
        rest = f' ("," {other}){{0,{most - 1}}}' if most > 1 else ""
        return f'"{{" ({other}{rest})? "}}"'

    def _value(self, schema: object, depth: int) -> str:
        if not isinstance(schema, Mapping):
            return "value"
        choices = schema.get("enum")
        if isinstance(choices, list) and choices and all(isinstance(c, str) for c in choices):
            return f"({_QUOTE} ({' | '.join(json.dumps(c) for c in choices)}) {_QUOTE})"
        kind = schema.get("type")
        if kind == "array" and depth <= _MAX_DEPTH:
            item = self._name(self._value(schema.get("items"), depth + 1))
            return f'("[" ({item} ("," {item}){{0,{_MOST_ITEMS}}})? "]")'
        if kind == "object":
            return f"({self.arguments(schema, depth)})"
        known = {"string": "text", "integer": "INTEGER", "number": "NUMBER", "null": '"null"'}
        if kind == "boolean":
            return '("true" | "false")'
        return known.get(kind, "value") if isinstance(kind, str) else "value"
