"""Arguments of a call that a conversation has, as clients send them back."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

from gemma4_compile.runtime.reply.tool_calls import ToolCallError, parse_tool_calls
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.body import parse_json
from gemma4_compile.runtime.server.fields import Fields

_EXPECTED = "expected a JSON object, or one in a string"
_MOST_WRAPPINGS = 2  # the text of JSON, and the text of that as JSON


def read_arguments(function: Fields, field: str = "arguments") -> Mapping[str, object]:
    """The arguments of a call: an object, or its JSON; nothing where a function takes nothing.

    The text may be what a model wrote, whoever read it: JSON twice, a Python dictionary, or JSON
    with line breaks in its strings. It is read as replies are, but nothing is put in at its end:
    whether a text was cut there is not known, and `12` may have been `123`.
    """
    arguments = function.raw(field)
    for _ in range(_MOST_WRAPPINGS):
        if isinstance(arguments, str):
            arguments = _said_arguments(function, field, arguments.strip() or "{}")
    if arguments is None:  # also the text `null`
        return {}
    if not isinstance(arguments, Mapping):
        raise function.error(field, f"{_EXPECTED}; found {json.dumps(arguments)[:60]}")
    return arguments


def _said_arguments(function: Fields, field: str, text: str) -> object:
    try:
        return parse_json(text.encode())
    except (ApiError, UnicodeError) as error:
        if text.startswith("{"):
            with contextlib.suppress(ToolCallError):
                found = parse_tool_calls([f"call:f{text}"], is_whole=False)
                if len(found) == 1:
                    return found[0].arguments
        why = str(error).removeprefix("the body is not JSON: ")
        raise function.error(
            field, f"{_EXPECTED}, found other text ({why}): leave a call out that was cut"
        ) from error
