"""Tools of `/v1/responses`: what a client runs becomes a function, and calls go back as asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemma4_compile.runtime.server.custom_tools import custom_description, custom_parameters
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.foreign_tools import declared_tools
from gemma4_compile.runtime.server.messages import (
    CHOICES,
    MAX_TOOLS,
    Tools,
    followed,
    name_of,
    read_tool_choice,
    tool_name,
)
from gemma4_compile.runtime.server.openai_responses import asks
from gemma4_compile.types import JsonObject

_FUNCTION = {"description", "name", "parameters", "strict", "type"}
_NAMESPACE = {"description", "name", "tools", "type"}
_CUSTOM = {"description", "format", "name", "type"}
_SERVED = {"custom", "function", "namespace"}
_CHOSEN = ("custom", "function", "tool")
_WHY = "this server brings no tools: only functions and custom tools are served"


@dataclass(frozen=True)
class ToolForm:
    """How a client knows a function that is declared to the model.

    Attributes
    ----------
    name : the client's
    namespace : that the name is of; empty for none
    is_custom : it takes a text, and no arguments
    """

    name: str
    namespace: str = ""
    is_custom: bool = False


@dataclass(frozen=True)
class DeclaredTools:
    """What a request declares.

    Attributes
    ----------
    tools : functions, as chat templates take them
    strict : names of those whose calls must follow their declaration
    forms : of the functions that are others to the client, by their names
    """

    tools: Tools
    strict: frozenset[str]
    forms: Mapping[str, ToolForm]


def name_in(namespace: str, name: str) -> str:
    """A function's name for the model: without namespaces it is one word."""
    if not namespace:
        return name
    return namespace + ("" if namespace.endswith("__") else "__") + name


def read_tools(fields: Fields, more: Sequence[Fields] = ()) -> DeclaredTools:
    """Read `tools`; ApiError names the one that cannot be served.

    Parameters
    ----------
    more : items that declare others, of which those that are known already stay as they are
    """
    reader = _Reader()
    for holder in (fields, *more):
        entries = holder.get("tools", list, [])
        for tool in declared_tools(holder, _few(holder, entries), _SERVED, _WHY):
            if tool.need("type", str) != "namespace":
                reader.add(tool)
                continue
            tool.skip_unknown(_NAMESPACE, asks.TOOL)
            inner = _few(tool, tool.need("tools", list))
            for one in declared_tools(tool, inner, _SERVED - {"namespace"}, _WHY):
                reader.add(one, tool_name(tool))
        reader.known = frozenset(str(name_of(tool)) for tool in reader.tools)
    _few(fields, reader.tools)
    strict = followed(fields, reader.strict, "tools[].strict")
    return DeclaredTools(tuple(reader.tools), strict, reader.forms)


def read_choice(fields: Fields, tools: Tools) -> tuple[Tools, Tools, bool]:
    """Read `tool_choice`; returns what `messages.read_tool_choice` does.

    Of `allowed_tools` those of types that are left out of `tools` are left out, too.
    """
    choice = fields.raw("tool_choice")
    if not isinstance(choice, Mapping) or fields.ignored.strict:
        return read_tool_choice(fields, tools, _CHOSEN)
    if isinstance(listed := choice.get("tools"), list):
        kept = []
        for entry in listed:
            kind = entry.get("type") if isinstance(entry, Mapping) else None
            if isinstance(kind, str) and kind not in _CHOSEN:
                fields.ignored.add(f"tool_choice.tools[] of type {kind}")
            else:
                kept.append(entry)
        fields = Fields({"tool_choice": {**choice, "tools": kept}}, ignored=fields.ignored)
    return read_tool_choice(fields, tools, _CHOSEN)


def told_choice(choice: object) -> object:
    """A `tool_choice` that was read, in the words in which typed clients read it again."""
    if not isinstance(choice, Mapping):
        return "required" if choice == "any" else choice or "auto"
    kind, function = choice.get("type"), choice.get("function")
    if kind in CHOICES:
        return told_choice(kind)
    if isinstance(function, Mapping):
        choice = function
    elif kind in ("allowed_tools", "custom", "function"):
        return choice
    return {"type": "function", "name": choice.get("name")} if choice else "auto"


def _few(fields: Fields, entries: Sequence[object]) -> Sequence[object]:
    if len(entries) > MAX_TOOLS:
        raise fields.error("tools", f"expected at most {MAX_TOOLS}, found {len(entries)}")
    return entries


class _Reader:
    def __init__(self) -> None:
        self.tools: list[JsonObject] = []
        self.strict: list[str] = []
        self.known: frozenset[str] = frozenset()  # that are not declared again
        self.forms: dict[str, ToolForm] = {}

    def add(self, tool: Fields, namespace: str = "") -> None:
        if name_in(namespace, str(tool.raw("name"))) in self.known:
            return
        if tool.need("type", str) == "custom":
            self._add_custom(tool, namespace)
        else:
            self._add_function(tool, namespace)

    def _add_function(self, tool: Fields, namespace: str) -> None:
        tool.skip_unknown(_FUNCTION, asks.TOOL)
        own = tool_name(tool)
        name = name_in(namespace, own)
        if namespace:
            self.forms[name] = ToolForm(own, namespace)
        parameters = tool.get("parameters", dict) if tool.has("parameters") else None
        self._add(name, tool.get("description", str, ""), parameters)
        if tool.get("strict", bool, False):
            self.strict.append(name)

    def _add_custom(self, tool: Fields, namespace: str) -> None:
        tool.skip_unknown(_CUSTOM, asks.TOOL)
        own = tool_name(tool)
        name = name_in(namespace, own)
        self.forms[name] = ToolForm(own, namespace, is_custom=True)
        self._add(name, custom_description(tool), custom_parameters())

    def _add(self, name: str, description: str, parameters: Mapping[str, object] | None) -> None:
        function: dict[str, object] = {"name": name, "description": description}
        if parameters is not None:
            function["parameters"] = parameters
        self.tools.append({"type": "function", "function": function})
