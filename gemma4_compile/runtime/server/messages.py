"""Messages and tool declarations of a chat request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from gemma4_compile.runtime.prompt import Message
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.body import parse_json
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.media import GivenMedium, check_count, read_medium
from gemma4_compile.runtime.tool_calls import ToolCall

MAX_TOOLS = 128
_ROLES = ("system", "developer", "user", "assistant", "tool")
_MESSAGE = {
    "annotations",  # a client sends a reply back as it came
    "audio",
    "content",
    "function_call",
    "name",
    "reasoning",
    "reasoning_content",
    "refusal",
    "role",
    "tool_call_id",
    "tool_calls",
}
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def read_messages(fields: Fields, most: int) -> tuple[tuple[Message, ...], tuple[GivenMedium, ...]]:
    """Read `messages`; ApiError names the one that is damaged or cannot be served.

    Returns
    -------
    the messages, empty parts in the places of media; the media
    """
    entries = fields.need("messages", list)
    if not 1 <= len(entries) <= most:
        raise fields.error("messages", f"expected 1 to {most} messages, found {len(entries)}")
    messages: list[Message] = []
    media: list[GivenMedium] = []
    calls: set[str] = set()
    for index, entry in enumerate(entries):
        message, given = _read_message(Fields(entry, f"messages[{index}]"), calls)
        media += [replace(each, message=index) for each in given]
        calls |= {call.call_id for call in message.tool_calls}
        messages.append(message)
    check_count(media)
    return tuple(messages), tuple(media)


def _read_message(fields: Fields, calls: set[str]) -> tuple[Message, list[GivenMedium]]:
    fields.refuse_unknown(_MESSAGE)
    fields.only("function_call", (), "use `tool_calls`")
    fields.only("audio", (), "replies are text")
    role = fields.need("role", str)
    if role not in _ROLES:
        raise fields.error("role", f"expected one of {', '.join(_ROLES)}, found {role!r}")
    tool_calls = _read_calls(fields) if role == "assistant" else ()
    call_id = fields.get("tool_call_id", str)
    if role == "tool" and call_id not in calls:
        raise fields.error(
            "tool_call_id", f"expected the id of a tool call before it, found {call_id!r}"
        )
    if not fields.has("content") and not tool_calls:
        raise fields.error("content", "is missing", code="missing_field")
    parts, media = _read_content(fields)
    if media and role != "user":
        raise fields.error("content", "only a user's message holds media; here text is served")
    message = Message(
        role,
        "".join(parts),
        parts=tuple(parts) if media else (),
        reasoning=fields.get("reasoning_content", str) or fields.get("reasoning", str),
        tool_calls=tool_calls,
        tool_call_id=call_id,
        name=fields.get("name", str) if role == "tool" else None,
    )
    return message, media


def _read_content(fields: Fields) -> tuple[list[str], list[GivenMedium]]:
    """The texts, empty ones in the places of media, and the media."""
    content = fields.raw("content")
    if content is None or isinstance(content, str):
        return [content or ""], []
    texts: list[str] = []
    media: list[GivenMedium] = []
    for index, entry in enumerate(fields.get("content", list, [])):
        part = Fields(entry, f"{fields.name('content')}[{index}]")
        medium = read_medium(part)
        if medium is not None:
            media.append(replace(medium, part=index))
            texts.append("")
            continue
        if part.need("type", str) != "text":
            raise part.error(
                "type", "expected text, image_url or input_audio", code="unsupported_value"
            )
        texts.append(part.need("text", str))
    return texts, media


def _read_calls(fields: Fields) -> tuple[ToolCall, ...]:
    calls = []
    for index, entry in enumerate(fields.get("tool_calls", list, [])):
        call = Fields(entry, f"{fields.name('tool_calls')}[{index}]")
        call.only("type", ("function",), "only functions are served")
        function = Fields(call.need("function", dict), call.name("function"))
        text = function.get("arguments", str, "{}")
        try:
            arguments = parse_json((text or "{}").encode())
        except ApiError as error:
            raise function.error("arguments", error.message) from error
        if not isinstance(arguments, dict):
            raise function.error("arguments", "expected a JSON object in a string")
        calls.append(ToolCall(_tool_name(function), arguments, call.need("id", str)))
    return tuple(calls)


def read_tools(fields: Fields) -> tuple[Mapping[str, object], ...]:
    """Read `tools`: declarations of functions, as chat templates take them."""
    entries = fields.get("tools", list, [])
    if len(entries) > MAX_TOOLS:
        raise fields.error("tools", f"expected at most {MAX_TOOLS}, found {len(entries)}")
    tools = []
    for index, entry in enumerate(entries):
        tool = Fields(entry, f"tools[{index}]")
        if tool.need("type", str) != "function":
            raise tool.error("type", "only functions are served", code="unsupported_value")
        function = Fields(tool.need("function", dict), tool.name("function"))
        function.refuse_unknown({"name", "description", "parameters", "strict"})
        declared: dict[str, object] = {
            "name": _tool_name(function),
            "description": function.get("description", str, ""),
        }
        if function.has("parameters"):
            declared["parameters"] = function.get("parameters", dict)
        tools.append({"type": "function", "function": declared})
    return tuple(tools)


Tools = tuple[Mapping[str, object], ...]


def read_tool_choice(fields: Fields, tools: Tools) -> tuple[Tools, Tools, bool]:
    """Read `tool_choice`.

    Returns
    -------
    tools to declare, those of which one must be called, and whether more calls may follow
    """
    choice = fields.raw("tool_choice")
    if choice is None or choice == "auto":
        return tools, (), True
    if choice == "none":
        return (), (), True
    if not tools:
        raise fields.error("tool_choice", "needs `tools`")
    if choice == "required":
        return tools, tools, True
    if isinstance(choice, str):
        raise fields.error(
            "tool_choice", "expected auto, none, required or a function", code="unsupported_value"
        )
    named = Fields(choice, "tool_choice")
    if named.need("type", str) != "function":
        raise named.error("type", "only functions are served", code="unsupported_value")
    function = Fields(named.need("function", dict), "tool_choice.function")
    name = _tool_name(function)
    wanted = tuple(tool for tool in tools if _declares(tool, name))
    if not wanted:
        raise function.error("name", f"`tools` declares no `{name}`")
    return tools, wanted[:1], False


def _declares(tool: Mapping[str, object], name: str) -> bool:
    function = tool["function"]
    return isinstance(function, Mapping) and function["name"] == name


def _tool_name(function: Fields) -> str:
    name: str = function.need("name", str)
    if not _TOOL_NAME.fullmatch(name):
        raise function.error("name", "expected 1 to 64 letters, digits, `_`, `-` or `.`")
    return name
