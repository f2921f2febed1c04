"""Messages of a chat request, and what is asked of its tools."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.grammar.grammar import is_installed
from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.reply.declarations import SchemaWriter
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server import asks
from gemma4_compile.runtime.server.begun import BEGINS
from gemma4_compile.runtime.server.call_arguments import read_arguments
from gemma4_compile.runtime.server.call_ids import CallIds
from gemma4_compile.runtime.server.custom_tools import custom_arguments
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.media import GivenMedium, check_count
from gemma4_compile.runtime.server.media_parts import kind_of_part, read_medium, unserved_type

# Anthropic's API has no limit, and clients of many MCP servers declare some hundreds.
MAX_TOOLS = 1024
Tools = tuple[Mapping[str, object], ...]
"""Declarations of functions, as chat templates take them."""
_ROLES = ("system", "developer", "user", "assistant", "tool")
_MESSAGE = {
    "annotations",  # a client sends a reply back as it came
    "content",
    "name",
    *BEGINS,
    "reasoning",
    "reasoning_content",
    "refusal",
    "role",
    "tool_call_id",
    "tool_calls",
}
# What other servers call the reasoning, and a result's tool.
_OTHERS = {"thinking": "reasoning", "tool_name": "name"}
_OTHER_ROLES = {"function": "tool", "model": "assistant"}
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_THOUGHTS = {"thinking": "thinking", "reasoning": "text", "redacted_thinking": "text"}
# As `gemma4_compile.runtime.reply.tool_calls` reads it; without what a control token may hold.
_TOOL_NAME = re.compile(r"(?!.*(?:<\||\|>))[^\s{}()\[\],'\"=]{1,256}")
SERVED_TOOLS = "only functions and custom tools are served"
CHOICES = ("any", "auto", "none", "required")
_KINDS = ("custom", "function", "tool")
_CALLED_NAME = re.compile(r"[^\s{}]+")


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
    ids = CallIds()
    for index, entry in enumerate(entries):
        next_call = _next_call(messages)
        message, given = _read_message(fields.inner(f"messages[{index}]", entry), calls, next_call)
        media += [replace(each, message=index) for each in given]
        calls |= {call.call_id for call in message.tool_calls if call.call_id}
        messages.append(ids.told_apart(message))
    check_count(media)
    return tuple(messages), tuple(media)


def _next_call(messages: list[Message]) -> ToolCall | None:
    """The call that a result right behind these messages belongs to, without its id and its name.

    It is the only one, or the next of several that have no ids either.
    """
    results = 0
    while results < len(messages) and messages[-1 - results].role == "tool":
        results += 1
    calls = messages[-1 - results].tool_calls if results < len(messages) else ()
    is_told = len(calls) == 1 or not any(call.call_id for call in calls)
    return calls[results] if is_told and results < len(calls) else None


def _read_message(
    fields: Fields, calls: set[str], next_call: ToolCall | None
) -> tuple[Message, list[GivenMedium]]:
    fields = fields.with_synonyms(_OTHERS)
    role = fields.need("role", str)
    known = _MESSAGE
    if not fields.ignored.strict:
        role = _OTHER_ROLES.get(role, role)
        if role == "assistant" and not fields.has("tool_calls"):
            known = _MESSAGE | {"function_call"}
    fields.skip_unknown(known, asks.MESSAGE)
    if role not in _ROLES:
        raise fields.error("role", f"expected one of {', '.join(_ROLES)}, found {role!r}")
    tool_calls = _read_calls(fields) if role == "assistant" else ()
    call_id, name = fields.get("tool_call_id", str) or None, None
    if role == "tool":
        # Without an id a result belongs to the calls before it by its tool's name, as in Ollama,
        # and without either by its place.
        by_place = call_id is None and not fields.has("name") and not fields.ignored.strict
        if next_call is not None and by_place:
            call_id, name = next_call.call_id or None, next_call.name
        elif call_id not in calls and (call_id is not None or not fields.has("name")):
            raise fields.error(
                "tool_call_id", f"expected the id of a tool call before it, found {call_id!r}"
            )
        else:
            name = fields.get("name", str) if call_id is not None else called_name(fields)
    elif not (fields.has("content") or role == "assistant" or _says_nothing(fields, role)):
        raise fields.error("content", "is missing", code="missing_field")
    parts, media, thoughts = _read_content(fields, role)
    if media and role not in ("user", "tool"):
        raise fields.error(
            "content", "only a user's message or a tool's result holds media; here text is served"
        )
    message = Message(
        role,
        "".join(parts),
        parts=tuple(parts) if media else (),
        reasoning=fields.get("reasoning_content", str) or fields.get("reasoning", str) or thoughts,
        tool_calls=tool_calls,
        tool_call_id=call_id,
        name=name,
    )
    return message, media


def _says_nothing(fields: Fields, role: str) -> bool:
    """Return whether these are instructions that are none; a person's null is a fault."""
    return role != "user" and fields.is_null("content") and not fields.ignored.strict


def _read_content(fields: Fields, role: str) -> tuple[list[str], list[GivenMedium], str | None]:
    """The texts, empty ones in the places of media; the media; and reasoning among the parts."""
    content = fields.raw("content")
    if content is None:  # of a reply: what it said instead, if anything
        return [fields.get("refusal", str, "")], [], None
    if isinstance(content, str):
        return [content], [], None
    if role == "tool" and isinstance(content, (bool, int, float)):
        return [json.dumps(content)], [], None
    entries = [content] if isinstance(content, dict) else fields.get("content", list, [])
    if role == "tool" and not all(map(_is_part, entries)):
        raise fields.error(
            "content", "expected a text; an object or a list is sent as the text of its JSON"
        )
    texts: list[str] = []
    media: list[GivenMedium] = []
    thoughts: list[str] = []
    for index, entry in enumerate(entries):
        if isinstance(entry, str) and not fields.ignored.strict:
            texts.append(entry)
            continue
        part = fields.inner(f"content[{index}]", entry)
        medium = read_medium(part)
        if isinstance(medium, str):
            texts.append(medium)
            continue
        if medium is not None:
            media.append(replace(medium, part=index))
            texts.append("")
            continue
        kind = kind_of_part(part)
        if kind in _THOUGHTS and role == "assistant":
            part.skip_unknown({"type", _THOUGHTS[kind]}, {})
            thoughts.append(part.get(_THOUGHTS[kind], str, ""))
            texts.append("")
            continue
        if kind not in _TEXTS:
            raise part.error("type", unserved_type(part), code="unsupported_value")
        part.skip_unknown({"type", _TEXTS[kind]}, asks.PART)
        texts.append("" if part.is_null(_TEXTS[kind]) else part.need(_TEXTS[kind], str))
    return texts, media, "".join(thoughts) or None


def _is_part(content: object) -> bool:
    """Return whether a value is a part of a message, and no result of a tool."""
    kind = content.get("type") if isinstance(content, Mapping) else None
    return (
        isinstance(content, Mapping)
        and isinstance(kind, str)
        and isinstance(content.get(_TEXTS.get(kind, kind)), (str, dict))
    )


def _read_calls(fields: Fields) -> tuple[ToolCall, ...]:
    calls = []
    if fields.has("function_call"):  # the only call, as OpenAI's API had it before `tool_calls`
        function = fields.inner("function_call", fields.get("function_call", dict))
        function.skip_unknown({"arguments", "name"}, asks.CALLED)
        calls.append(ToolCall(called_name(function), read_arguments(function)))
    for index, entry in enumerate(fields.get("tool_calls", list, [])):
        call = fields.inner(f"tool_calls[{index}]", entry)
        call.only("type", ("", "custom", "function"), SERVED_TOOLS)
        call_id = call.get("id", str, "")
        if call.raw("type") == "custom":
            call.skip_unknown({"custom", "id", "index", "type"}, {})
            custom = call.inner("custom", call.need("custom", dict))
            custom.skip_unknown({"input", "name"}, asks.CALLED)
            given = custom_arguments(custom.need("input", str))
            calls.append(ToolCall(called_name(custom), given, call_id))
            continue
        call.skip_unknown({"function", "id", "index", "type"}, asks.CALL)
        function = call.inner("function", call.need("function", dict))
        function.skip_unknown({"arguments", "name"}, asks.CALLED)
        calls.append(ToolCall(called_name(function), read_arguments(function), call_id))
    return tuple(calls)


def followed(fields: Fields, names: Collection[str], place: str) -> frozenset[str]:
    """Names of strict tools; none, and a note of it, without the library that follows them."""
    if names and not is_installed():
        fields.ignored.add(f"{place}, without `llguidance`")
        return frozenset()
    return frozenset(names)


def declare(fields: Fields, tools: Tools, place: str = "function.parameters") -> Tools:
    """Tools as chat templates take them: without references, with one type for each argument.

    `place` is where an entry of `tools` has its schema, for messages.
    References that point nowhere are counted as ignored; ApiError for schemas that get too long.
    """
    writer = SchemaWriter()
    declared: list[Mapping[str, object]] = []
    for index, tool in enumerate(tools):
        function = tool["function"]
        assert isinstance(function, Mapping), "as `read_tools` returns it"
        if isinstance(parameters := function.get("parameters"), Mapping):
            name = f"tools[{index}].{place}"
            try:
                function = {**function, "parameters": writer.write_out(parameters)}
            except UsageError as error:
                raise fields.error(name, f"{error}; {error.hint}") from error
            for reference in writer.missing:
                fields.ignored.add(f"{name}: $ref {reference}")
            writer.missing.clear()
        declared.append({**tool, "function": function})
    return tuple(declared)


def read_tool_choice(
    fields: Fields, tools: Tools, kinds: Collection[str] = _KINDS
) -> tuple[Tools, Tools, bool]:
    """Read `tool_choice`.

    Parameters
    ----------
    kinds : types of a choice that names one of `tools`

    Returns
    -------
    tools to declare, those of which one must be called, and whether more calls may follow
    """
    choice = fields.raw("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") in CHOICES:
        choice = choice["type"]
    if choice in (None, "", "auto", [], {}):
        return tools, (), True
    if choice == "none":
        return (), (), True
    if not tools:
        raise fields.error("tool_choice", "needs `tools`")
    if choice in ("required", "any"):
        return tools, tools, True
    if isinstance(choice, str):
        raise fields.error(
            "tool_choice", "expected auto, none, required or a tool", code="unsupported_value"
        )
    named = fields.inner("tool_choice", choice)
    if named.raw("type") == "allowed_tools":
        return _read_allowed(named, tools, kinds)
    wanted = _chosen(named, tools, kinds)
    return tools, wanted, False


def _read_allowed(
    choice: Fields, tools: Tools, kinds: Collection[str]
) -> tuple[Tools, Tools, bool]:
    """OpenAI's choice of some tools: the others are not declared to the model."""
    allowed = choice
    if choice.has("allowed_tools"):
        allowed = choice.inner("allowed_tools", choice.get("allowed_tools", dict))
    mode = allowed.need("mode", str)
    if mode not in ("auto", "required"):
        raise allowed.error("mode", "expected auto or required", code="unsupported_value")
    names: set[object] = set()
    listed = allowed.need("tools", list)
    if len(listed) > MAX_TOOLS:
        raise allowed.error("tools", f"expected at most {MAX_TOOLS}, found {len(listed)}")
    for index, entry in enumerate(listed):
        (tool,) = _chosen(allowed.inner(f"tools[{index}]", entry), tools, kinds)
        names.add(name_of(tool))
    some = tuple(tool for tool in tools if name_of(tool) in names)
    if not some:
        raise allowed.error("tools", "expected one or more of `tools`")
    return some, some if mode == "required" else (), True


def _chosen(named: Fields, tools: Tools, kinds: Collection[str]) -> Tools:
    """The tool of a choice: `function.name`, or `name` as newer and other interfaces have it."""
    if named.raw("type") not in (None, *kinds):
        raise named.error("type", SERVED_TOOLS, code="unsupported_value")
    function = named
    if named.has("custom"):
        function = named.inner("custom", named.get("custom", dict))
    elif named.has("function") or not named.has("name"):
        function = named.inner("function", named.need("function", dict))
    name = tool_name(function)
    return declared_tool(function, name, tools)


def declared_tool(named: Fields, name: str, tools: Tools) -> Tools:
    """The tool of this name; ApiError if none is declared."""
    for tool in tools:
        if name_of(tool) == name:
            return (tool,)
    raise named.error("name", f"`tools` declares no `{name}`")


def name_of(tool: Mapping[str, object]) -> object:
    """The name in a declaration."""
    function = tool["function"]
    assert isinstance(function, Mapping), "as `read_tools` returns it"
    return function["name"]


def of_any_arguments(tool: Mapping[str, object]) -> Mapping[str, object]:
    """The declaration without what its arguments have to be."""
    any_of_them = {"type": "object", "additionalProperties": True}
    return {"type": "function", "function": {"name": name_of(tool), "parameters": any_of_them}}


def tool_name(function: Fields) -> str:
    """Name of a tool that is declared or chosen; ApiError for one that a call could not hold."""
    name: str = function.need("name", str)
    if not _TOOL_NAME.fullmatch(name) or not name.isprintable():
        raise function.error(
            "name",
            "expected 1 to 256 characters without spaces, brackets, quotation marks, `,`, `=`, "
            "`<|` and `|>`",
        )
    return name


def called_name(function: Fields) -> str:
    """Name of a tool that an earlier reply called: whatever a call can hold."""
    name: str = function.need("name", str)
    if not _CALLED_NAME.fullmatch(name):
        raise function.error("name", "expected a name without spaces and braces")
    return name
