r"""Gemma 4's tool calls: what the model writes between its call tokens, as names and arguments.

A call is ``call:NAME{key:value,...}``: keys bare, objects in braces, lists in brackets, numbers,
`true`, `false` and `null` bare, strings between two quote tokens. A quote token is one id that no
text spells, so a string holds anything without escapes. The caller therefore splits the ids of a
call at the quote tokens and hands over the texts in between: every second one is a string.

Models drift from that form. Where one reading is certain it is taken:

- keys and strings between double quotes, with JSON's escapes, or single quotes, with Python's;
  an apostrophe between two letters ends none. So JSON and Python's dictionaries are read.
- ``=`` in place of ``:``, in all of an object's pairs.
- strings between three quotes or between backticks, if no backslash and no ``${`` is in them, and
  quotation marks around the quote tokens.
- `True`, `False` and `None`, a comma before a closing bracket, white space between the parts.
- bare texts: words, addresses (``https://example.org/a?b=1``), times (``10:30``). What looks like
  a number and is none in JSON (``02139``, ``+5``, ``0x1F``, ``1_000``) is a text as well.
- ``call:NAME(key=value)``, ``call:NAME({...})``, ``NAME{...}``,
  ``{"name": NAME, "arguments": {...}}``, also as OpenAI's API has it: in lists, below
  `tool_calls` and `function`, the arguments as the text of an object; ``call:NAME`` alone before
  the closing token, a colon after the name, an object's braces within the call's (``{{...}}``),
  and braces closed at the end that were not opened.
- several calls in one pair of call tokens, with nothing, a comma, a semicolon or a line between.
- a string of which one quote token is missing (``{query:weather in Tokyo<|"|>}``), or is another
  quotation mark, where one place for it alone gives a call; a comma missing after a string; the
  call's last bracket missing before the closing token; Markdown's marks around all.
- backslashes before what neither JSON nor Python escapes (``"\d+"``): they stay.

Everything else is refused, and the caller shows it as text: two values of one key, quotation marks
inside a string of the same, a comma that may be part of a bare text or the end of it, comments,
numbers without a comma in a list, a path or a regular expression whose backslashes may be escapes,
numbers beyond a double's range. A number that is read keeps its digits.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

from gemma4_compile.runtime.reply.call_reader import CallReader
from gemma4_compile.runtime.reply.tool_call import Number, ToolCall, ToolCallError

__all__ = ["Number", "ToolCall", "ToolCallError", "parse_tool_call", "parse_tool_calls"]

_HEAD = re.compile(r"\s*call\s*:\s*([^\s{}()\[\],'\"=]+)\s*(?=[{(])")
_NO_HEAD = re.compile(r"\s*call\s*:\s*(?=\{)")  # before an object that names the call
# Neither an address nor the end of a sentence; a colon after it announces what did not come.
_NAME_ALONE = re.compile(r"\s*call\s*:\s*(?!\w+://)([A-Za-z_](?:[\w./:-]*\w)?):?\s*")
_HEAD_WITHOUT_CALL = re.compile(r"\s*(?!call\b)([A-Za-z_][\w./-]*)\s*(?=[{(])")
_FENCE = re.compile(r"\s*(`{1,3})(?:\w+(?=\n))?")
_ENDS = re.compile(r"(?<!\s)\s*[,:=}\])]")  # white space is gone through once
_MOST_BRACES = 3  # that a call may have at its end and not at its beginning
_SPELLED_QUOTE = '<|"|>'
# What the search for a missing quote token may take: 32 Ki letters, some tenths of a second.
_MOST_LETTERS, _MOST_PLACES, _MOST_VALUES = 2**15, 256, 20_000


def parse_tool_call(texts: Sequence[str]) -> ToolCall:
    """Read one call; parameters and errors as of `parse_tool_calls`."""
    calls = parse_tool_calls(texts)
    if len(calls) != 1:
        raise ToolCallError(f"expected one call, found {len(calls)}")
    return calls[0]


def parse_tool_calls(texts: Sequence[str], *, is_whole: bool = True) -> list[ToolCall]:
    """Read the calls between two call tokens; see above for what is taken.

    Parameters
    ----------
    texts : the text before the first quote token, a string, the text after it, and so on
    is_whole : whether the model wrote the closing token; what it lacks is completed only then

    Raises
    ------
    ToolCallError
        If it is no call, or if it is not certain what it says.
    """
    if not texts:
        raise ToolCallError("expected `call:NAME{...}`")
    texts = _unfenced(texts)
    if is_whole and len(texts) == 1 and (alone := _NAME_ALONE.fullmatch(texts[0])):
        return [ToolCall(alone[1])]
    try:
        if len(texts) % 2:
            return _read_to_its_end(texts, is_whole=is_whole)
        raise ToolCallError("a string has no end")
    except ToolCallError:
        spelled = _SPELLED_QUOTE.join(texts).split(_SPELLED_QUOTE)
        if len(spelled) > len(texts):
            return parse_tool_calls(spelled, is_whole=is_whole)
        if len(texts) % 2 or not is_whole:
            raise
        return _with_a_quote_more(texts)


def _read_to_its_end(texts: Sequence[str], *, is_whole: bool) -> list[ToolCall]:
    """The calls, also where more braces are closed at the end than were opened."""
    try:
        return _read(CallReader(texts, is_whole=is_whole))
    except ToolCallError:
        *before, last = texts
        for _ in range(_MOST_BRACES):
            last, brace, after = last.rpartition("}")
            if not brace or after.strip():
                break
            with contextlib.suppress(ToolCallError):
                return _read(CallReader([*before, last]))
        raise


def _read(reader: CallReader) -> list[ToolCall]:
    calls: list[ToolCall] = []
    is_apart = True
    while True:
        call = reader.call(_HEAD) or (reader.call(_HEAD_WITHOUT_CALL) if is_apart else None)
        calls += reader.json_calls(_NO_HEAD) if call is None else [call]
        is_apart = reader.is_apart()
        if reader.at_end():
            return calls


def _unfenced(texts: Sequence[str]) -> Sequence[str]:
    """The texts without the marks of Markdown around all of them."""
    fence = _FENCE.match(texts[0])
    last = texts[-1].rstrip()
    if fence is None or not last.endswith(fence[1]) or len("".join(texts)) < 2 * len(fence[0]):
        return texts
    if len(texts) == 1:
        return [last[fence.end() : -len(fence[1])]]
    return [texts[0][fence.end() :], *texts[1:-1], last[: -len(fence[1])]]


def _with_a_quote_more(texts: Sequence[str]) -> list[ToolCall]:
    """The one reading that a quote token more gives, at the beginning or the end of a string."""
    reader = CallReader([*texts, ""])
    with contextlib.suppress(ToolCallError):
        _read(reader)
    places = [*_places(texts, reader)] if sum(map(len, texts)) <= _MOST_LETTERS else []
    if not places or len(places) > _MOST_PLACES or len(places) * len(reader.starts) > _MOST_VALUES:
        raise ToolCallError("a string has no end")
    found: list[list[ToolCall]] = []
    for index, at in places:
        text = texts[index]
        parts = [text[:at], text[at:]]
        string = 1 - index % 2  # of the two parts
        parts[string] = _unquoted(parts[string])
        try:
            calls = _read(CallReader([*texts[:index], *parts, *texts[index + 1 :]]))
        except ToolCallError:
            continue
        if calls not in found:
            found.append(calls)
    if len(found) != 1:
        raise ToolCallError("a string has no end, or no beginning")
    return found[0]


def _places(texts: Sequence[str], reader: CallReader) -> Iterator[tuple[int, int]]:
    """Where a quote token may be missing, as far as what was written can be read."""
    for index, at in reader.starts:
        if index < len(texts):
            yield index, at
    for index in range(1, min(reader.index + 2, len(texts)), 2):
        for found in _ENDS.finditer(texts[index]):
            yield index, found.start()


def _unquoted(text: str) -> str:
    """A string of which one end alone is a quote token, without other quotes in that place."""
    for quote in "\"'`":
        if len(text) > 1 and text[0] == text[-1] == quote:
            return text[1:-1]
        if text.count(quote) == 1 and quote in (text[:1], text[-1:]):
            return text.strip(quote)
    return text
