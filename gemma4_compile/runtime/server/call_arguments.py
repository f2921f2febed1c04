"""Arguments of a call that a conversation has, as clients send them back."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

from gemma4_compile.runtime.reply.tool_calls import ToolCallError, parse_tool_calls
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.body import parse_json
from gemma4_compile.runtime.server.fields import Fields

UNREAD = "INVALID_JSON"
"""The argument that holds what cannot be read, by the name that Anthropic's documentation has."""
_EXPECTED = "expected a JSON object, or one in a string"
_MOST_WRAPPINGS = 2  # the text of JSON, and the text of that as JSON


def read_arguments(function: Fields, field: str = "arguments") -> Mapping[str, object]:
    """The arguments of a call: an object, or its JSON; nothing where a function takes nothing.

    The text may be what a model wrote, whoever read it: JSON twice, a Python dictionary, or JSON
    with line breaks in its strings. It is read as replies are, but nothing is put in at its end:
    whether a text was cut there is not known, and `12` may have been `123`. A text that cannot be
    read so is one argument, `INVALID_JSON`: OpenAI's API takes any, and an agent whose call was cut
    sends it back with what its tool said of it in every request from then on.

    Raises
    ------
    ApiError
        400 for what is neither an object nor a text; in a strict request for a text that cannot be
        read, too.
    """
    arguments = function.raw(field)
    for _ in range(_MOST_WRAPPINGS):
        if not isinstance(arguments, str):
            break
        text = arguments
        arguments = _said_arguments(function, field, text)
        if arguments == []:  # as programs in PHP write an object without fields
            return {}
        if arguments is not None and not isinstance(arguments, (str, Mapping)):
            arguments = _unread(function, field, text, f"found {json.dumps(arguments)[:60]}")
    if isinstance(arguments, str):
        arguments = _unread(function, field, arguments, "found a text in a text in a text")
    if arguments is None or (arguments == [] and not function.ignored.strict):  # also as texts
        return {}
    if not isinstance(arguments, Mapping):
        raise function.error(field, f"{_EXPECTED}; found {json.dumps(arguments)[:60]}")
    return arguments


def _said_arguments(function: Fields, field: str, said: str) -> object:
    text = said.strip() or "{}"
    try:
        return parse_json(text.encode())
    except UnicodeError as error:
        raise function.error(field, f"{_EXPECTED}, found half of a character") from error
    except ApiError as error:
        if text.startswith("{"):
            with contextlib.suppress(ToolCallError):
                found = parse_tool_calls([f"call:f{text}"], is_whole=False)
                if len(found) == 1:
                    return found[0].arguments
        why = error.message.removeprefix("the body is not JSON: ")
        return _unread(function, field, said, f"found other text ({why})")


def _unread(function: Fields, field: str, text: str, found: str) -> Mapping[str, object]:
    if function.ignored.strict:
        raise function.error(field, f"{_EXPECTED}; {found}: leave a call out that was cut")
    return {UNREAD: text}
