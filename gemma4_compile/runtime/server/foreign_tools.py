"""Tools that a server or a client's maker brings: declared in a request, or used before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.fields import Fields

_DECLARATIONS = ("function", "inputSchema", "input_schema", "parameters")


def declared_tools(
    fields: Fields, entries: Sequence[object], served: Set[str], why: str
) -> list[Fields]:
    """The entries of `tools` that declare a function.

    Agents list tools of their protocol's maker (`web_search`) beside their own in every request,
    whoever answers, and a model need not call what it has: these are left out, and counted.

    Parameters
    ----------
    served : types of declarations; the reader looks at an entry without a type
    why : the reason why others are not served, for messages

    Raises
    ------
    ApiError
        400 where nothing else is declared, so that the request is about them; for arguments
        declared in a tool of another type; and for all of them in a strict request.
    """
    kept: list[Fields] = []
    others: list[tuple[str, Fields]] = []
    for index, entry in enumerate(entries):
        tool = fields.inner(f"tools[{index}]", entry)
        kind = tool.get("type", str)
        if kind is None or kind in served:
            kept.append(tool)
        else:
            others.append((kind, tool))
    for kind, tool in others:
        if not kept or tool.ignored.strict or any(map(tool.has, _DECLARATIONS)):
            tool.only("type", tuple(served), why)
        fields.ignored.add(f"tools[] of type {kind}")
    return kept


def leave_out(fields: Fields) -> None:
    """Count an entry of a conversation that says nothing to this model; ApiError if strict."""
    kind = str(fields.raw("type"))
    if fields.ignored.strict:
        raise fields.error("type", f"{kind[:60]!r} says nothing here", code="unsupported_value")
    fields.ignored.add(f"{fields.name('type')} {kind}")


def in_words(result: Mapping[str, object]) -> str:
    """What such a tool found, as text: its fields as JSON, or the text of its only one.

    Nulls, the kind, and what nobody here can read (`encrypted_content`, data of files) are not in
    it: the prompt would be full of it. ApiError 400 for what is nested deeper than a call's
    arguments can be.
    """
    said = {
        name: value
        for name, value in result.items()
        if value is not None and name != "type" and not name.startswith("encrypted_")
        if not (isinstance(value, str) and value.startswith("data:"))
    }
    if len(said) == 1 and isinstance(only := next(iter(said.values())), str):
        return only
    try:
        return ToolCall("", said).arguments_json() if said else ""
    except RecursionError as error:
        raise ApiError(400, "a result of a tool is nested too deeply") from error
