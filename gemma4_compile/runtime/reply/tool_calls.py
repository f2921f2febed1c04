r"""Gemma 4's tool calls: what the model writes between its call tokens, as names and arguments.

A call is ``call:NAME{key:value,...}``: keys bare, objects in braces, lists in brackets, numbers,
`true`, `false` and `null` bare, strings between two quote tokens. A quote token is one id that no
text spells, so a string holds anything without escapes. The caller therefore splits the ids of a
call at the quote tokens and hands over the texts in between: every second one is a string.

Models drift from that form. Where one reading is certain it is taken:

- keys and strings between double quotes, with JSON's escapes, or single quotes, with Python's;
  an apostrophe between two letters ends none. So JSON and Python's dictionaries are read.
- ``=`` in place of ``:``, in all of an object's pairs.
- `True`, `False` and `None`, a comma before a closing bracket, white space between the parts.
- bare texts: words, addresses (``https://example.org/a?b=1``), times (``10:30``). What looks like
  a number and is none in JSON (``02139``, ``+5``, ``0x1F``, ``1_000``) is a text as well.
- ``call:NAME(key=value)``, ``call:NAME({...})``, ``NAME{...}``,
  ``{"name": NAME, "arguments": {...}}``, also as OpenAI's API has it: in lists, below
  `tool_calls` and `function`, the arguments as the text of an object.
- several calls in one pair of call tokens, with nothing, a comma, a semicolon or a line between.

Everything else is refused, and the caller shows it as text: two values of one key, quotation marks
inside a string of the same, a comma that may be part of a bare text or the end of it, comments,
numbers without a comma in a list, a path or a regular expression whose backslashes may be escapes,
numbers beyond a double's range. A number that is read keeps its digits.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from gemma4_compile.errors import Gemma4CompileError

_MAX_DEPTH = 64
_MAX_DIGITS = 1000
_HEAD = re.compile(r"\s*call\s*:\s*([^\s{}()\[\],'\"=]+)\s*(?=[{(])")
_HEAD_WITHOUT_CALL = re.compile(r"\s*(?!call\b)([A-Za-z_][\w./-]*)\s*(?=[{(])")
_SPACE = re.compile(r"\s*")
_BETWEEN = re.compile(r"[ \t]*[,;\n\r]")
_KEY = re.compile(r"[^\s{}\[\],:='\"]+(?: +[^\s{}\[\],:='\"]+)*")
_SEPARATOR = re.compile(r":(?!=)|=(?![=>])")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_SINGLE = re.compile(r"'((?:[^'\\]|\\.|(?<=\w)'(?=\w))*)'", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"'": "'", '"': '"', "\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
# A Windows path, the name of a shared folder, or a regular expression's word boundary.
_NO_ESCAPES = re.compile(r"[A-Za-z]:\\(?!\\)|\\\\\w|(?:[^\\]|\\[^bf])*\\[bf]", re.DOTALL)
_BARE = re.compile(r"[^{}\[\],\r\n]+")
_BARE_IN_PARENTHESES = re.compile(r"[^{}\[\],\r\n)]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_JSON_CONSTANTS = {"true": True, "false": False, "null": None}
_CONSTANTS = {**_JSON_CONSTANTS, "True": True, "False": False, "None": None}
_QUOTES_IN_A_WORD = re.compile(r"[\"`\u201c\u201d]|(?<!\w)['\u2018\u2019]|['\u2018\u2019](?!\w)")
_TIME = re.compile(r"(?<![\w:])\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?![\w:])")
_COMMENT = re.compile(r"(?:^|\s)(?://|/\*|#\s)|\*/(?:\s|$)")
_PAIR = re.compile(r"[A-Za-z_]\w*[:=](?!//)")


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
        return _json(self.arguments)


class Number(float):
    """A number with a fraction or an exponent; its text is the one that the model wrote."""

    text: str

    def __new__(cls, text: str) -> Number:
        """Read a number as JSON spells it; ToolCallError for one that no double is near to."""
        number = super().__new__(cls, text)
        mantissa = re.split("[eE]", text)[0]
        if math.isinf(number) or (not number and re.search("[1-9]", mantissa)):
            raise ToolCallError(f"`{text[:40]}` is beyond the range of numbers")
        number.text = text
        return number

    def __str__(self) -> str:
        """As it was written."""
        return self.text


def parse_tool_call(texts: Sequence[str]) -> ToolCall:
    """Read one call; parameters and errors as of `parse_tool_calls`."""
    calls = parse_tool_calls(texts)
    if len(calls) != 1:
        raise ToolCallError(f"expected one call, found {len(calls)}")
    return calls[0]


def parse_tool_calls(texts: Sequence[str]) -> list[ToolCall]:
    """Read the calls between two call tokens; see above for what is taken.

    Parameters
    ----------
    texts : the text before the first quote token, a string, the text after it, and so on

    Raises
    ------
    ToolCallError
        If it is no call, or if it is not certain what it says.
    """
    if len(texts) % 2 == 0:
        raise ToolCallError("a string has no end" if texts else "expected `call:NAME{...}`")
    reader = _Reader(texts)
    calls: list[ToolCall] = []
    is_apart = True
    while True:
        call = reader.call(_HEAD) or (reader.call(_HEAD_WITHOUT_CALL) if is_apart else None)
        calls += reader.json_calls() if call is None else [call]
        is_apart = reader.is_apart()
        if reader.at_end():
            return calls


class _Reader:
    """Reads values by recursive descent, from texts between which there are strings."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._index = 0  # of a text that is no string
        self._at = 0

    def at_end(self) -> bool:
        self._skip()
        return self._index == len(self._texts) - 1 and self._at == len(self._text)

    def take(self, mark: str) -> bool:
        """Go on after a mark, if it is the next one."""
        self._skip()
        found = self._text.startswith(mark, self._at)
        if found:
            self._at += len(mark)
        return found

    def is_apart(self) -> bool:
        """Go on after what stands between two calls, if anything does."""
        return self._match(_BETWEEN) is not None

    def call(self, head: re.Pattern[str]) -> ToolCall | None:
        """A call that begins so; None if what comes next does not."""
        found = self._match(head)
        if found is None:
            return None
        if not self.take("("):
            return ToolCall(found[1], self._arguments())
        self._skip()
        if not self._text.startswith("{", self._at):
            return ToolCall(found[1], self._object(0, ")"))
        arguments = self._arguments()
        self._need(")")
        return ToolCall(found[1], arguments)

    def json_calls(self) -> list[ToolCall]:
        """Calls as other models write them, with the name among the values of an object."""
        self._skip()
        if not self._text.startswith(("{", "["), self._at):
            raise ToolCallError("expected `call:NAME{...}`")
        said = self._json_or_nearly()
        if isinstance(said, dict) and list(said) == ["tool_calls"]:
            said = said["tool_calls"]
        return [_named_call(each) for each in (said if isinstance(said, list) else [said])]

    def _arguments(self) -> dict[str, object]:
        self._skip()
        if not self._text.startswith("{", self._at):
            raise ToolCallError(f"expected `{{`, found `{self._text[self._at :][:20]}`")
        return cast("dict[str, object]", self._json_or_nearly())

    def _json_or_nearly(self) -> object:
        """An object or a list: JSON if it is, else as Gemma writes it or nearly so."""
        try:
            values, self._at = _DECODER.raw_decode(self._text, self._at)
        except (ValueError, RecursionError):
            return self._value(0, "")
        _check(values, 0)
        return values

    @property
    def _text(self) -> str:
        return self._texts[self._index]

    def _skip(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None, "no space is a match, too"
        self._at = found.end()

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def _need(self, mark: str) -> None:
        if not self.take(mark):
            raise ToolCallError(f"expected `{mark}`, found `{self._text[self._at :][:20]}`")

    def _value(self, depth: int, parent: str) -> object:
        """A value inside an object or a list, which ends with the mark `parent`."""
        if depth > _MAX_DEPTH:
            raise ToolCallError(f"more than {_MAX_DEPTH} brackets inside each other")
        string = self._string()
        if string is not None:
            return string
        if self.take("{"):
            return self._object(depth, "}")
        return self._list(depth) if self.take("[") else self._bare(parent)

    def _string(self) -> str | None:
        """A string between quote tokens or quotes; None if there is none."""
        self._skip()
        if self._at == len(self._text) and self._index + 1 < len(self._texts):
            string = self._texts[self._index + 1]
            self._index, self._at = self._index + 2, 0
            return string
        double = self._match(_DOUBLE)
        single = None if double else self._match(_SINGLE)
        found = double or single
        if found is None:
            return None
        if _NO_ESCAPES.match(found[1]):
            raise ToolCallError(f"`{found[1][:40]}`: its backslashes may be escapes or not")
        return _unescaped_json(found[0]) if double else _unescaped_python(found[1])

    def _object(self, depth: int, close: str) -> dict[str, object]:
        values: dict[str, object] = {}
        separators = set()
        while not self.take(close):
            key, bare = self._string(), None
            if key is None:
                bare = self._match(_KEY)
                key = bare and bare[0]
            self._skip()
            separator = self._match(_SEPARATOR)
            if key is None or separator is None or (bare and _COMMENT.search(bare[0])):
                raise ToolCallError("expected a key and a value")
            separators.add(separator[0])
            if key in values or len(separators) > 1:
                raise ToolCallError(f"`{key[:40]}`: it is not certain what belongs to it")
            values[key] = self._value(depth + 1, close)
            if not self.take(","):
                self._need(close)
                break
        return values

    def _list(self, depth: int) -> list[object]:
        values: list[object] = []
        while not self.take("]"):
            values.append(self._value(depth + 1, "]"))
            if not self.take(","):
                self._need("]")
                break
        return values

    def _bare(self, parent: str) -> object:
        found = self._match(_BARE_IN_PARENTHESES if parent == ")" else _BARE)
        word = found[0].strip() if found else ""
        if not word:
            raise ToolCallError("expected a value")
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        number = _NUMBER.fullmatch(word)
        if number is not None:
            return Number(word) if number[1] or number[2] else _integer(word)
        if not _is_one_text(word, parent):
            raise ToolCallError(f"`{word[:40]}`: it is not certain where it ends")
        return word


def _is_one_text(word: str, parent: str) -> bool:
    """Return whether a bare text can only be that, and no two values without a comma."""
    if _QUOTES_IN_A_WORD.search(word) or word.count("(") != word.count(")"):
        return False
    if _COMMENT.search(word) or word[-1] == ";":
        return False
    if parent == "]" and (";" in word or all(map(_is_no_text, word.split()))):
        return False
    if not re.search("[:=]", _TIME.sub("", word)):
        return True
    if re.search(r"[\s;]", word) or word[0] in ":=" or word[-1] == ":":
        return False
    return parent != "]" or not _PAIR.match(word)


def _is_no_text(word: str) -> bool:
    return word in _CONSTANTS or _NUMBER.fullmatch(word) is not None


def _named_call(said: object) -> ToolCall:
    """A call of an object that names it; OpenAI's API has `type`, `id` and `function` as well."""
    call = dict(said) if isinstance(said, dict) else {}
    if call.get("type") == "function":
        del call["type"]
    if isinstance(call.get("id"), str):
        del call["id"]
    if list(call) == ["function"] and isinstance(call["function"], dict):
        call = call["function"]
    name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments = _DECODER.decode(arguments)
        except (ValueError, RecursionError) as error:
            raise ToolCallError("expected arguments, or the JSON of them") from error
        _check(arguments, 0)
    if len(call) != 2 or not isinstance(name, str) or not isinstance(arguments, dict):
        raise ToolCallError("expected `call:NAME{...}`")
    return ToolCall(name, arguments)


def _unescaped_json(quoted: str) -> str:
    try:
        text = json.loads(quoted, strict=False)
    except ValueError as error:
        raise ToolCallError(f"`{quoted[:40]}`: expected JSON's escapes") from error
    assert isinstance(text, str), "it is between quotes"
    _check(text, 0)
    return text


def _unescaped_python(text: str) -> str:
    if not all(letter in _ESCAPED for letter in _ESCAPE.findall(text)):
        raise ToolCallError(f"`{text[:40]}`: its backslashes may be escapes or not")
    return _ESCAPE.sub(lambda escape: _ESCAPED[escape[1]], text)


def _integer(word: str) -> int:
    if len(word) > _MAX_DIGITS:
        raise ToolCallError(f"an integer of {len(word)} digits")
    return int(word)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ToolCallError("a key with two values")
    return values


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_float=Number,
    parse_int=_integer,
    parse_constant=_no_constant,
)


def _check(value: object, depth: int) -> None:
    """ToolCallError for what was nested too deep, or half of a pair of surrogates."""
    if depth > _MAX_DEPTH:
        raise ToolCallError(f"more than {_MAX_DEPTH} brackets inside each other")
    if isinstance(value, dict):
        for key, inner in value.items():
            _check(key, depth)
            _check(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check(inner, depth + 1)
    elif isinstance(value, str) and re.search("[\ud800-\udfff]", value):
        raise ToolCallError("half of a character")


def _json(value: object) -> str:
    if isinstance(value, Number):
        return value.text
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(k, ensure_ascii=False)}: {_json(v)}" for k, v in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
