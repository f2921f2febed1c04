"""Bodies of `/v1/messages` and of `/v1/messages/count_tokens`, as requests of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemma4_compile.runtime.sampling.sampling import SamplingOptions
from gemma4_compile.runtime.server.anthropic import asks
from gemma4_compile.runtime.server.anthropic.content import read_conversation
from gemma4_compile.runtime.server.anthropic.errors import NO_THREADS
from gemma4_compile.runtime.server.begun import BEGUN, check_beside_begun
from gemma4_compile.runtime.server.fields import Fields, Ignored
from gemma4_compile.runtime.server.foreign_tools import declared_tools
from gemma4_compile.runtime.server.messages import (
    MAX_TOOLS,
    Tools,
    declare,
    declared_tool,
    followed,
    tool_name,
)
from gemma4_compile.runtime.server.requests import (
    SAMPLING,
    ChatRequest,
    Settings,
    read_cache_salt,
    read_limit,
    read_sampling_options,
    read_seed,
    read_stop,
)

# Fields that cannot change a reply of this server.
_SILENT = {
    "cache_control",
    "metadata",
    "service_tier",
    "user_profile_id",
    "workspace_id",
}
_REQUEST = {
    "cache_salt",
    "max_tokens",
    "messages",
    "model",
    "output_config",
    "output_format",
    "seed",
    "stop_sequences",
    "stream",
    "system",
    "temperature",
    "thinking",
    "thread",
    "tool_choice",
    "tools",
    *_SILENT,
    *SAMPLING,
}
_TOOL = {
    "cache_control",
    "description",
    "eager_input_streaming",
    "input_schema",
    "name",
    "strict",
    "type",
}
_THINKS = {"adaptive": True, "enabled": True, "disabled": False}
_DISPLAYS = ("omitted", "summarized")
_MAX_BUDGET = 2**31 - 1


@dataclass(frozen=True)
class MessagesRequest:
    """A request for a message of the model.

    Attributes
    ----------
    shows_thinking : whether the answer says what the model thought
    """

    chat: ChatRequest
    shows_thinking: bool


def read_messages_request(
    body: object,
    defaults: SamplingOptions,
    max_messages: int,
    ignored: Ignored | None = None,
    *,
    counts: bool = False,
) -> MessagesRequest:
    """Read a body.

    Parameters
    ----------
    defaults : sampling options for what the request does not set
    max_messages : most messages of a request
    ignored : where fields that cannot change the reply are counted
    counts : only the prompt's tokens are to be counted, so that it needs no `max_tokens`

    Raises
    ------
    ApiError
        400 for a field that is damaged, or asks for what is not served.
    """
    fields = Fields(body, ignored=ignored)
    fields.skip_unknown(_REQUEST, asks.REQUEST)
    if fields.has("thread"):  # the clients' tool runners ask for it until they are told
        why = "this server holds no conversations: send all messages, or ask /v1/responses"
        raise fields.error("thread", why, code=NO_THREADS)
    if not counts and not fields.has("max_tokens"):
        raise fields.error("max_tokens", "is missing", code="missing_field")
    tools, strict = _tools(fields)
    declared, must_call, several = _tool_choice(fields, tools)
    conversation, begun = read_conversation(fields, max_messages)
    thinking, shows = _thinking(fields)
    schema = _schema(fields)
    if begun:
        asked = {"`thinking`": bool(thinking), "a JSON schema": schema is not None}
        check_beside_begun(fields, "messages", asked, BEGUN)
    chat = ChatRequest(
        model=fields.get("model", str),
        settings=Settings(
            read_sampling_options(fields, defaults),
            read_seed(fields),
            read_limit(fields, "max_tokens"),
            read_stop(fields, "stop_sequences"),
        ),
        replies=1,
        stream=fields.get("stream", bool, False),
        include_usage=True,
        cache_salt=read_cache_salt(fields),
        messages=tuple(conversation.messages),
        media=conversation.media(),
        tools=declared,
        declared=declare(fields, declared, "input_schema"),
        must_call=must_call,
        strict=strict,
        several_calls=several,
        thinking=False if begun else thinking,
        schema=schema,
        begun=begun,
    )
    return MessagesRequest(chat, shows)


def _tools(fields: Fields) -> tuple[Tools, frozenset[str]]:
    """The tools that a client runs; and the names of those with `strict`."""
    entries = fields.get("tools", list, [])
    if len(entries) > MAX_TOOLS:
        raise fields.error("tools", f"expected at most {MAX_TOOLS}, found {len(entries)}")
    tools: list[Mapping[str, object]] = []
    strict: list[str] = []
    why = "this server brings no tools: those with an `input_schema` of their own are served"
    for tool in declared_tools(fields, entries, {"custom"}, why):
        callers = tool.raw("allowed_callers")
        is_direct = isinstance(callers, list) and "direct" in callers  # code is another caller
        known = _TOOL | {"allowed_callers"} if is_direct else _TOOL
        tool.skip_unknown(known, asks.TOOL)
        name = tool_name(tool)
        function: dict[str, object] = {
            "name": name,
            "description": tool.get("description", str, ""),
            "parameters": tool.need("input_schema", dict),
        }
        tools.append({"type": "function", "function": function})
        if tool.get("strict", bool, False):
            strict.append(name)
    return tuple(tools), followed(fields, strict, "tools[].strict")


def _tool_choice(fields: Fields, tools: Tools) -> tuple[Tools, Tools, bool]:
    """Read `tool_choice`; returns what `messages.read_tool_choice` does."""
    if not fields.has("tool_choice"):
        return tools, (), True
    choice = fields.inner("tool_choice", fields.get("tool_choice", dict))
    choice.skip_unknown({"disable_parallel_tool_use", "name", "type"}, {})
    kind = choice.need("type", str)
    several = not choice.get("disable_parallel_tool_use", bool, False)
    if kind == "none":
        return (), (), True
    if kind == "auto":
        return tools, (), several
    if kind not in ("any", "tool"):
        raise choice.error("type", f"expected auto, any, tool or none, found {kind[:60]!r}")
    if not tools:
        raise fields.error("tool_choice", "needs `tools`")
    if kind == "any":
        return tools, tools, several
    return tools, declared_tool(choice, choice.need("name", str), tools), False


def _thinking(fields: Fields) -> tuple[bool | None, bool]:
    """Whether the model is to think, None where that is left to the server; and to say it."""
    if not fields.has("thinking"):
        return None, True
    config = fields.inner("thinking", fields.get("thinking", dict))
    config.skip_unknown({"budget_tokens", "display", "type"}, {})
    kind = config.need("type", str)
    if kind not in _THINKS:
        raise config.error("type", f"expected {', '.join(_THINKS)}", code="unsupported_value")
    if config.integer("budget_tokens", 1, _MAX_BUDGET, None) is not None:
        # The protocol asks for it; `max_tokens` counts reasoning with the rest.
        config.ignored.add(config.name("budget_tokens"))
    display = config.get("display", str, "summarized")
    if display not in _DISPLAYS:
        raise config.error("display", f"expected {' or '.join(_DISPLAYS)}")
    return _THINKS[kind], display != "omitted"


def _schema(fields: Fields) -> Mapping[str, object] | None:
    """The schema of `output_config.format`, or of `output_format` as it was before."""
    config = fields.inner("output_config", fields.get("output_config", dict, {}))
    config.skip_unknown({"effort", "format"}, {})
    if config.get("effort", str) is not None:
        config.ignored.add(config.name("effort"))
    for holder, name in ((config, "format"), (fields, "output_format")):
        if holder.has(name):
            form = holder.inner(name, holder.get(name, dict))
            form.only("type", ("json_schema",), "only a JSON schema can be followed")
            form.skip_unknown({"schema", "type"}, {})
            schema: Mapping[str, object] = form.need("schema", dict)
            return schema
    return None
