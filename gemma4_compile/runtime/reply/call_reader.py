"""Reads calls by recursive descent; `tool_calls` says what is taken and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import cast

from gemma4_compile.runtime.reply.tool_call import (
    DECODER,
    MAX_DEPTH,
    Number,
    ToolCall,
    ToolCallError,
    check,
    integer,
)

_SPACE = re.compile(r"\s*")
_BETWEEN = re.compile(r"[ \t]*[,;\n\r]")
_KEY = re.compile(r"[^\s{}\[\],:='\"]+(?: +[^\s{}\[\],:='\"]+)*")
_SEPARATOR = re.compile(r":(?!=)|=(?![=>])")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_SINGLE = re.compile(r"'((?:[^'\\]|\\.|(?<=\w)'(?=\w))*)'", re.DOTALL)
# Python's long strings and JavaScript's templates, as far as they hold no escape and no value.
_LONG = re.compile(r"""(\"{3}|'{3})((?:(?!\1)[^\\])*)\1""")
_TEMPLATE = re.compile(r"()`((?:(?!\$\{)[^`\\])*)`(?!`)")
# A backslash before what is no escape in JSON nor in Python: it is one of a regular expression.
_NO_ESCAPE_AT_ALL = re.compile(r"(?:[^\\]|\\[^\"'\\/abfnrtuvxUN0-7\n])*", re.DOTALL)
_TWICE = re.compile(r"\{\s*(?=\{)")  # the call's own braces around an object in braces
_KEY_FOLLOWS = re.compile(r"\s*[A-Za-z_$@][\w.$@-]*\s*(?::(?!=)|=(?![=>]))")
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
_NAMES = ("name", "function", "tool", "tool_name", "function_name", "action")
_ARGUMENTS = (
    *("arguments", "parameters", "args", "input", "tool_input", "tool_args", "action_input"),
)
_WRAPPERS = ("tool_calls", "tool_call", "function_call")
_NAME = re.compile(r"[^\s{}()\[\],'\"=]+")  # as after `call:`
_PAIR = re.compile(r"[A-Za-z_]\w*[:=](?!//)")


class CallReader:
    """Reads values by recursive descent, from texts between which there are strings.

    Attributes
    ----------
    starts : (text, place in it) of every value that was begun
    """

    def __init__(self, texts: Sequence[str], *, is_whole: bool = False) -> None:
        """Read `texts`; with `is_whole` they may lack the call's last bracket."""
        self._texts = texts
        self._is_whole = is_whole
        self._index = 0  # of a text that is no string
        self._at = 0
        self.starts: list[tuple[int, int]] = []

    @property
    def index(self) -> int:
        """The text, of those that are no strings, that is read."""
        return self._index

    def at_end(self) -> bool:
        """Return whether all is read."""
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
        name = found[1].rstrip(":") or found[1]
        if not self.take("("):
            return ToolCall(name, self._arguments())
        self._skip()
        if not self._text.startswith("{", self._at):
            return ToolCall(name, self._object(0, ")"))
        arguments = self._arguments()
        self._need(")")
        return ToolCall(name, arguments)

    def json_calls(self, head: re.Pattern[str]) -> list[ToolCall]:
        """Calls as other models write them, with the name among the values of an object.

        What `head` matches may stand before them.
        """
        self._match(head)
        self._skip()
        if not self._text.startswith(("{", "["), self._at):
            raise ToolCallError("expected `call:NAME{...}`")
        said = self._json_or_nearly()
        if isinstance(said, dict) and len(said) == 1 and next(iter(said)) in _WRAPPERS:
            said = next(iter(said.values()))
        return [_named_call(each) for each in (said if isinstance(said, list) else [said])]

    def _arguments(self) -> dict[str, object]:
        self._skip()
        if not self._text.startswith("{", self._at):
            raise ToolCallError(f"expected `{{`, found `{self._text[self._at :][:20]}`")
        if self._match(_TWICE) is None:
            return cast("dict[str, object]", self._json_or_nearly())
        inner = cast("dict[str, object]", self._json_or_nearly())
        self._need("}")
        return inner

    def _json_or_nearly(self) -> object:
        """An object or a list: JSON if it is, else as Gemma writes it or nearly so."""
        try:
            values, self._at = DECODER.raw_decode(self._text, self._at)
        except (ValueError, RecursionError):
            return self._value(0, "")
        check(values, 0)
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
        if depth > MAX_DEPTH:
            raise ToolCallError(f"more than {MAX_DEPTH} brackets inside each other")
        self._skip()
        self.starts.append((self._index, self._at))
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
            return self._between_quote_tokens(0)
        if self._at == len(self._text) - 1 and self._is_quoted_twice():
            return self._between_quote_tokens(1)
        plain = self._match(_LONG) or self._match(_TEMPLATE)
        if plain is not None:
            return plain[2]
        double = self._match(_DOUBLE)
        single = None if double else self._match(_SINGLE)
        found = double or single
        if found is None:
            return None
        if "\\" in found[1] and _NO_ESCAPE_AT_ALL.fullmatch(found[1]):
            return found[1]
        if _NO_ESCAPES.match(found[1]):
            raise ToolCallError(f"`{found[1][:40]}`: its backslashes may be escapes or not")
        return _unescaped_json(found[0]) if double else _unescaped_python(found[1])

    def _is_quoted_twice(self) -> bool:
        """Return whether what is left is a quotation mark that the string's end has, too."""
        mark = self._text[self._at]
        following = self._texts[self._index + 2 : self._index + 3]
        return mark in "\"'`" and bool(following) and following[0].startswith(mark)

    def _between_quote_tokens(self, marks: int) -> str:
        """The string that comes next, without so many marks on either side of its tokens."""
        string = self._texts[self._index + 1]
        self._index, self._at = self._index + 2, marks
        return string

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
            is_after_quote = self._at == 0
            if self.take(",") or (is_after_quote and _KEY_FOLLOWS.match(self._text, self._at)):
                continue
            if depth or not self._lacks_its_end(values[key]):
                self._need(close)
            break
        return values

    def _lacks_its_end(self, last: object) -> bool:
        """Return whether the call's own bracket alone is missing, after its last value.

        Not so where that is an object of several pairs: the last ones may be the call's.
        """
        is_one = not (isinstance(last, dict) and len(last) > 1)
        return self._is_whole and is_one and self.at_end()

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
            return Number(word) if number[1] or number[2] else integer(word)
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
    if call.get("type") in ("function", "function_call", "tool_call", "tool_use"):
        del call["type"]
    for label in ("id", "call_id", "index"):
        if isinstance(call.get(label), (str, int)):
            del call[label]
    if list(call) == ["function"] and isinstance(call["function"], dict):
        call = call["function"]
    names = [call.pop(word) for word in _NAMES if isinstance(call.get(word), str)]
    arguments = [call.pop(word) for word in _ARGUMENTS if word in call]
    if call or len(names) != 1 or len(arguments) > 1:
        raise ToolCallError("expected `call:NAME{...}`")
    values = _said_arguments(arguments[0]) if arguments else {}
    if not isinstance(values, dict) or not _NAME.fullmatch(names[0]):
        raise ToolCallError("expected `call:NAME{...}`")
    return ToolCall(names[0], values)


def _said_arguments(said: object) -> object:
    """Arguments of an object that names a call: an object, the JSON of one, or nothing."""
    if said is None or said == "":
        return {}
    if not isinstance(said, str):
        return said
    try:
        values = DECODER.decode(said)
    except (ValueError, RecursionError) as error:
        raise ToolCallError("expected arguments, or the JSON of them") from error
    check(values, 0)
    return values


def _unescaped_json(quoted: str) -> str:
    try:
        text = json.loads(quoted, strict=False)
    except ValueError as error:
        raise ToolCallError(f"`{quoted[:40]}`: expected JSON's escapes") from error
    assert isinstance(text, str), "it is between quotes"
    check(text, 0)
    return text


def _unescaped_python(text: str) -> str:
    if not all(letter in _ESCAPED for letter in _ESCAPE.findall(text)):
        raise ToolCallError(f"`{text[:40]}`: its backslashes may be escapes or not")
    return _ESCAPE.sub(lambda escape: _ESCAPED[escape[1]], text)
