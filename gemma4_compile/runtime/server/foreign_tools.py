"""Tools that a server or a client's maker brings, among those that a request declares."""

from __future__ import annotations

from collections.abc import Sequence, Set

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
