"""Calls of tools other than functions among the items of `/v1/responses`, and their results.

A history that another server began holds them: what it found on the web or in files, what its code
said, what a client's shell or screen answered. To the model they are calls of a function of that
name.
"""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.call_arguments import read_arguments
from gemma4_compile.runtime.server.conversation import Part
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.foreign_tools import in_words
from gemma4_compile.runtime.server.messages import called_name
from gemma4_compile.runtime.server.openai_responses.content import read_image, read_part
from gemma4_compile.runtime.server.openai_responses.tools import name_in

_RESULTS = ("output", "outputs", "results", "tools", "error")  # the first that is there
_NO_ARGUMENTS = {
    "acknowledged_safety_checks",
    "approval_request_id",
    "call_id",
    "caller",
    "container_id",
    "created_by",
    "environment",
    "execution",
    "id",
    "name",
    "namespace",
    "pending_safety_checks",
    "result",  # a picture that was made, as data
    "server_label",
    "status",
    "type",
    *_RESULTS,
}
_WHOLE = ("action", "operation")  # whose fields are the arguments
_PARTS = ("input_image", "input_text", "output_text", "text")


def read_foreign_call(item: Fields, kind: str) -> tuple[ToolCall, list[Part] | None] | None:
    """Read an item `..._call`.

    Returns
    -------
    the call, and its result where the item holds it, being of a tool that the other server ran;
    None for a call without a result that nobody can answer: it tells the model nothing
    """
    result = read_result(item)
    call_id = item.get("call_id", str, "")
    if not call_id and (result is not None or kind == "local_shell_call"):
        call_id = item.get("id", str) or item.name("id")  # Codex sends no ids of items
    if not call_id:
        return None
    tool = item.inner("type", {"name": kind.removesuffix("_call")})
    if kind == "mcp_call":
        tool = item
    server = item.get("server_label", str, "")
    if server:
        called_name(item.inner("server_label", {"name": server}))
    return ToolCall(name_in(server, called_name(tool)), _arguments(item), call_id), result


def result_id(item: Fields) -> str:
    """The id of the call that an item `..._output` answers; shells' bear it as their own."""
    return item.get("call_id", str) or item.get("id", str, "")


def read_result(item: Fields) -> list[Part] | None:
    """What a tool found, as texts and pictures; None where the item says nothing of it."""
    name = next((name for name in _RESULTS if item.has(name)), None)
    if name is None:
        return None
    value = item.raw(name)
    entries = value if isinstance(value, list) else [value]
    found = [_found(item, f"{name}[{index}]", entry) for index, entry in enumerate(entries)]
    parts = [part for part in found if part]
    return ["Error:", *parts] if name == "error" else parts


def _found(item: Fields, name: str, entry: object) -> Part:
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, Mapping):
        return in_words({"output": entry})
    part, kind = item.inner(name, entry), entry.get("type")
    if kind == "computer_screenshot":
        return read_image(part)
    return read_part(part, "tool") if kind in _PARTS else in_words(entry)


def _arguments(item: Fields) -> Mapping[str, object]:
    if item.has("arguments"):
        return read_arguments(item)
    values = {name: item.raw(name) for name in item.names() if name not in _NO_ARGUMENTS}
    for name in _WHOLE:
        inner = values.get(name)
        if isinstance(inner, Mapping):
            del values[name]
            values |= {key: value for key, value in inner.items() if value is not None}
    return values
