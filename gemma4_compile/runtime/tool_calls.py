"""Gemma 4's tool calls: what the model writes between its call tokens, as a name and arguments.

A call is ``call:NAME{key:value,...}``: keys bare, objects in braces, lists in brackets, numbers,
`true`, `false` and `null` bare, strings between two quote tokens. A quote token is one id that no
text spells, so a string holds anything without escapes. The caller therefore splits the ids of a
call at the quote tokens and hands over the texts in between: every second one is a string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gemma4_compile.errors import Gemma4CompileError

_HEAD = re.compile(r"\s*call:\s*([^\s{}]+)\s*(?=\{)")
_MARKS = "{}[],:"
_WORD = re.compile(r"[^{}\[\],:]+")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_CONSTANTS = {"true": True, "false": False, "null": None}
_MAX_DEPTH = 64


class ToolCallError(Gemma4CompileError):
    """Error: the model wrote no valid tool call."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool.

    Attributes
    ----------
    name : the tool
    arguments : values by name, as JSON has them
    call_id : what the tool's result is sent back under; empty where nobody needs it
    """

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    call_id: str = ""

    def arguments_json(self) -> str:
        """The arguments as a JSON object."""
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True)
class _Token:
    """A mark, a bare word or a string of a call."""

    kind: str  # one of the marks, "word", "string" or "end"
    text: str = ""


def parse_tool_call(texts: Sequence[str]) -> ToolCall:
    """Read one call.

    A value that is neither a string nor a number, `true`, `false` or `null` is taken as the text
    that it is; quotation marks around it are dropped.

    Parameters
    ----------
    texts : the text before the first quote token, a string, the text after it, and so on

    Raises
    ------
    ToolCallError
        If it is no call: no name, a bracket or a string without its end, text after the end.
    """
    head = _HEAD.match(texts[0]) if texts else None
    if head is None:
        raise ToolCallError("expected `call:NAME{...}`")
    if len(texts) % 2 == 0:
        raise ToolCallError("a string has no end")
    reader = _Reader(_tokens([texts[0][head.end() :], *texts[1:]]))
    arguments = reader.value(0)
    assert isinstance(arguments, dict), "the head ends before a brace"
    reader.take("end")
    return ToolCall(head[1], arguments)


def _tokens(texts: Sequence[str]) -> Iterator[_Token]:
    for index, text in enumerate(texts):
        if index % 2:
            yield _Token("string", text)
            continue
        position = 0
        while position < len(text):
            if text[position] in _MARKS:
                yield _Token(text[position])
                position += 1
                continue
            word = _WORD.match(text, position)
            assert word is not None, "what is no mark belongs to a word"
            position = word.end()
            if word[0].strip():
                yield _Token("word", word[0].strip())
    yield _Token("end")


class _Reader:
    """Reads values by recursive descent."""

    def __init__(self, tokens: Iterator[_Token]) -> None:
        self._tokens = tokens
        self._next = next(tokens)

    def take(self, *kinds: str) -> _Token:
        token = self._next
        if token.kind not in kinds:
            found = token.text or token.kind
            raise ToolCallError(f"expected {' or '.join(kinds)}, found `{found}`")
        if token.kind != "end":
            self._next = next(self._tokens)
        return token

    def value(self, depth: int) -> object:
        if depth > _MAX_DEPTH:
            raise ToolCallError(f"more than {_MAX_DEPTH} brackets inside each other")
        token = self.take("{", "[", "string", "word")
        if token.kind == "string":
            return token.text
        if token.kind == "word":
            return _bare(token.text)
        return self._object(depth) if token.kind == "{" else self._list(depth)

    def _object(self, depth: int) -> dict[str, object]:
        values: dict[str, object] = {}
        while self._next.kind != "}":
            key = self.take("word", "string")
            self.take(":")
            values[_unquoted(key.text)] = self.value(depth + 1)
            if self._next.kind != "}":
                self.take(",")
        self.take("}")
        return values

    def _list(self, depth: int) -> list[object]:
        values: list[object] = []
        while self._next.kind != "]":
            values.append(self.value(depth + 1))
            if self._next.kind != "]":
                self.take(",")
        self.take("]")
        return values


def _bare(word: str) -> object:
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    number = _NUMBER.fullmatch(word)
    if number is None:
        return _unquoted(word)
    return float(word) if number[1] or number[2] else int(word)


def _unquoted(word: str) -> str:
    quoted = len(word) > 1 and word[0] == word[-1] == '"'
    return word[1:-1] if quoted else word
