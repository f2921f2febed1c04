"""`tools` of a chat: declarations of functions, and OpenAI's custom tools."""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.runtime.server import asks
from gemma4_compile.runtime.server.custom_tools import custom_description, custom_parameters
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.messages import (
    MAX_TOOLS,
    SERVED_TOOLS,
    Tools,
    followed,
    tool_name,
)

_DECLARED = {"description", "name", "parameters", "response", "strict"}


def read_tools(fields: Fields, *, custom: bool = False) -> Tools:
    """Read `tools`: declarations of functions, as chat templates take them.

    `custom` tools are served where the protocol has them.
    """
    entries = fields.get("tools", list, [])
    if len(entries) > MAX_TOOLS:
        raise fields.error("tools", f"expected at most {MAX_TOOLS}, found {len(entries)}")
    tools: list[Mapping[str, object]] = []
    for index, entry in enumerate(entries):
        tool = fields.inner(f"tools[{index}]", entry)
        if custom and _is_custom(tool):
            tools.append(_custom(tool))
            continue
        if custom:
            tool.only("type", ("custom", "function"), SERVED_TOOLS)
        else:
            tool.only("type", ("function",), "only functions are served")
        known, inner = {"function", "type"}, tool.raw("function")
        if isinstance(inner, Mapping) and inner.get("name") == tool.raw("name"):
            known.add("name")  # said twice
        tool.skip_unknown(known, asks.TOOL)
        function = tool.inner("function", tool.need("function", dict))
        function.skip_unknown(_DECLARED, asks.DECLARED)
        declared: dict[str, object] = {
            "name": tool_name(function),
            "description": function.get("description", str, ""),
        }
        if function.has("parameters"):
            declared["parameters"] = function.get("parameters", dict)
        if function.has("response"):  # what is returned: Gemma's templates tell the model
            declared["response"] = function.get("response", dict)
        tools.append({"type": "function", "function": declared})
    return tuple(tools)


def read_strict(fields: Fields) -> frozenset[str]:
    """Names of the tools with `strict`, as `followed` has them."""
    names = set()
    for index, entry in enumerate(fields.get("tools", list, [])):
        tool = fields.inner(f"tools[{index}]", entry)
        if _is_custom(tool):
            continue
        function = tool.inner("function", tool.need("function", dict))
        if function.get("strict", bool, False):
            names.add(tool_name(function))
    return followed(fields, names, "tools[].function.strict")


def read_custom(fields: Fields) -> frozenset[str]:
    """Names of the custom tools, whose calls are given out as such."""
    tools = [
        fields.inner(f"tools[{index}]", entry)
        for index, entry in enumerate(fields.get("tools", list, []))
    ]
    return frozenset(
        tool_name(tool.inner("custom", tool.raw("custom"))) for tool in tools if _is_custom(tool)
    )


def _is_custom(tool: Fields) -> bool:
    return tool.raw("type") == "custom"


def _custom(tool: Fields) -> Mapping[str, object]:
    """A custom tool as a function of one text."""
    tool.skip_unknown({"custom", "type"}, asks.TOOL)
    custom = tool.inner("custom", tool.need("custom", dict))
    custom.skip_unknown({"description", "format", "name"}, asks.DECLARED)
    function: dict[str, object] = {
        "name": tool_name(custom),
        "description": custom_description(custom),
        "parameters": custom_parameters(),
    }
    return {"type": "function", "function": function}
