"""A grammar of tool calls as the model writes them, for replies that are held to one.

`gemma4_compile.runtime.reply.tool_calls` reads such a reply. The grammar is in `llguidance`'s
dialect of Lark, where `<[7]>` is the token with id 7.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.grammar.call_schema import KEY, MOST_ITEMS, QUOTE, CallRules
from gemma4_compile.runtime.reply.reply import MarkIds

_MOST_CALLS = 8


def call_grammar(
    tools: Sequence[Mapping[str, object]],
    marks: MarkIds,
    *,
    several: bool,
    longest_text: int | None = None,
    answer: Mapping[str, object] | None = None,
) -> str:
    """Return the grammar of a reply that calls one of these tools.

    Parameters
    ----------
    tools : declarations, as `read_tools` returns them; without parameters a tool takes none
    several : whether more calls may follow the first
    longest_text : characters of a string; one without an end would leave no room for the call's
    answer : the JSON schema that a reply without calls follows; None: it must call

    Raises
    ------
    UsageError
        If the tokenizer has no tokens that mark calls, or a declaration cannot be followed.
    """
    if None in (marks.open_call, marks.close_call, marks.quote):
        raise UsageError(
            "this model's tokenizer has no tokens for tool calls", hint="ask without tools"
        )
    bodies = []
    rules = CallRules(longest_text)
    for tool in tools:
        function = tool["function"]
        assert isinstance(function, Mapping), "a declaration as `read_tools` returns it"
        arguments = rules.arguments(function.get("parameters"), str(function["name"]))
        bodies.append(f"{json.dumps('call:' + str(function['name']))} {arguments}")
    call = f"<[{marks.open_call}]> ({' | '.join(bodies)}) <[{marks.close_call}]>"
    start = ("call+" if longest_text is None else f"call{{1,{_MOST_CALLS}}}") if several else "call"
    lines = [f"start: {start}" + ("" if answer is None else " | answer"), f"call: {call}"]
    if answer is not None:
        options = {"x-guidance": {"whitespace_flexible": False}}
        lines.append(f"answer: %json {json.dumps({**answer, **options})}")
    grammar = "\n".join([*lines, rules.text(), _common(longest_text)])
    return grammar.replace(QUOTE, f"<[{marks.quote}]>")


def _common(longest_text: int | None) -> str:
    """Rules of what may be anything."""
    most, more = ("", "") if longest_text is None else (longest_text, MOST_ITEMS - 1)
    return rf"""
text: {QUOTE} LETTERS {QUOTE}
LETTERS: /(?s:.){{0,{most}}}/
INTEGER: /-?(0|[1-9][0-9]{{0,17}})/
NUMBER: /-?(0|[1-9][0-9]{{0,17}})(\.[0-9]{{1,17}})?([eE][+-]?[0-9]{{1,2}})?/
KEY: {KEY}
value: text | NUMBER | "true" | "false" | "null" | list | object
list: "[" (value ("," value){{0,{more}}})? "]"
object: "{{" (KEY ":" value ("," KEY ":" value){{0,{more}}})? "}}"
"""
