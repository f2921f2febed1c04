"""Bodies of `/v1/responses`, as requests of a chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gemma4_compile.runtime.sampling.sampling import SamplingOptions
from gemma4_compile.runtime.server import thinking
from gemma4_compile.runtime.server.fields import Fields, Ignored
from gemma4_compile.runtime.server.messages import declare
from gemma4_compile.runtime.server.openai_responses import asks
from gemma4_compile.runtime.server.openai_responses.items import ADDITIONAL_TOOLS, ItemReader
from gemma4_compile.runtime.server.openai_responses.reasoning import ReasoningForm
from gemma4_compile.runtime.server.openai_responses.tools import (
    ToolForm,
    read_choice,
    read_tools,
    told_choice,
)
from gemma4_compile.runtime.server.requests import (
    MAX_TOP_LOGPROBS,
    SAMPLING,
    ChatRequest,
    Settings,
    read_cache_salt,
    read_limit,
    read_sampling_options,
    read_seed,
)
from gemma4_compile.runtime.server.response_format import schema_of
from gemma4_compile.types import JsonObject

# Fields that cannot change a reply of this server.
_SILENT = {
    "access_programs",
    "client_metadata",
    "max_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "stream_options",
    "user",
}
_REQUEST = {
    "cache_salt",
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "metadata",
    "model",
    "parallel_tool_calls",
    "previous_response_id",
    "reasoning",
    "seed",
    "store",
    "stream",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    *_SILENT,
    *SAMPLING,
}
_LOGPROBS = "message.output_text.logprobs"
_SEALED = "reasoning.encrypted_content"
# Of the others there is nothing here.
_INCLUDABLE = (
    _LOGPROBS,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    _SEALED,
    "web_search_call.action.sources",
    "web_search_call.results",
)
_MAX_METADATA = 16
_MAX_METADATA_CHARACTERS = 512

Referred = Callable[[str, str], object]
"""The item of an id that a field names; raises ApiError for an unknown one."""
Previous = Callable[[str], Sequence[object]]
"""Items of the conversation that ended with a response; raises ApiError for an unknown one."""


@dataclass(frozen=True)
class ResponseRequest:
    """A request for a response.

    Attributes
    ----------
    items : of the whole conversation, as they were sent
    echoed : fields that the response repeats
    stored : whether others may go on from it
    forms : functions that are other tools to the client, by their names
    reasoning : how the model's is given out
    """

    chat: ChatRequest
    items: tuple[object, ...]
    echoed: JsonObject
    stored: bool
    forms: Mapping[str, ToolForm] = field(default_factory=dict)
    reasoning: ReasoningForm = field(default_factory=ReasoningForm)


def read_response_request(
    body: object,
    defaults: SamplingOptions,
    max_items: int,
    previous: Previous,
    ignored: Ignored | None = None,
    referred: Referred | None = None,
) -> ResponseRequest:
    """Read a body.

    Parameters
    ----------
    defaults : sampling options for what the request does not set
    max_items : most items of a conversation
    previous : finds the items before those of the request
    ignored : where fields that cannot change the reply are counted
    referred : finds items that are named by their ids; None: there are none

    Raises
    ------
    ApiError
        400 for a field that is damaged, or asks for what is not served.
    """
    fields = Fields(body, ignored=ignored)
    fields.skip_unknown(_REQUEST, asks.REQUEST)
    before, items = _items(fields, previous)
    if len(before) + len(items) > max_items:
        found = len(before) + len(items)
        raise fields.error("input", f"expected at most {max_items} items, found {found}")
    if referred is not None:
        items = _resolved(fields, items, referred)
    more = [*_of_tools(fields, "previous_response_id", before), *_of_tools(fields, "input", items)]
    given = read_tools(fields, more)
    declared, must_call, several = read_choice(fields, given.tools)
    parallel = fields.get("parallel_tool_calls", bool, True)
    reader = ItemReader(fields.get("instructions", str))
    reader.read(fields, "previous_response_id", before)
    reader.read(fields, "input", items)
    conversation = reader.close()
    if not conversation.messages:
        raise fields.error("input", "is empty")
    chat = ChatRequest(
        model=fields.get("model", str),
        settings=Settings(
            read_sampling_options(fields, defaults),
            read_seed(fields),
            read_limit(fields, "max_output_tokens"),
            (),
            logprobs=_logprobs(fields),
        ),
        replies=1,
        stream=fields.get("stream", bool, False),
        include_usage=True,
        cache_salt=read_cache_salt(fields),
        messages=tuple(conversation.messages),
        media=conversation.media(),
        tools=declared,
        declared=declare(fields, declared, "parameters"),
        must_call=must_call,
        strict=given.strict,
        several_calls=several and parallel,
        thinking=_thinking(fields),
        schema=_schema(fields),
    )
    stored = fields.get("store", bool, True)
    echoed = _echoed(fields, chat, parallel=parallel)
    items = (*before, *items)
    form = ReasoningForm(_in_summary(fields), _SEALED in fields.get("include", list, []))
    return ResponseRequest(chat, items, echoed | {"store": stored}, stored, given.forms, form)


def _items(fields: Fields, previous: Previous) -> tuple[Sequence[object], Sequence[object]]:
    """The items that were there, and those of the request."""
    before: Sequence[object] = ()
    if name := fields.get("previous_response_id", str):
        before = previous(name)
    value = fields.raw("input")
    if isinstance(value, str):
        return before, [{"type": "message", "role": "user", "content": value}]
    if isinstance(value, Mapping) and not fields.ignored.strict:  # one in place of a list
        return before, [value]
    if value is None and before:
        return before, []
    return before, fields.need("input", list)


def _of_tools(fields: Fields, name: str, items: Sequence[object]) -> list[Fields]:
    """The items that declare tools; to the model they are there from the beginning."""
    return [
        fields.inner(f"{name}[{index}]", item)
        for index, item in enumerate(items)
        if isinstance(item, Mapping) and item.get("type") == ADDITIONAL_TOOLS
    ]


def _resolved(fields: Fields, items: Sequence[object], referred: Referred) -> Sequence[object]:
    """The items, those that were referred to in their places; each may be named once."""
    found: list[object] = []
    named: set[str] = set()
    for index, entry in enumerate(items):
        if isinstance(entry, Mapping) and entry.get("type") == "item_reference":
            item = fields.inner(f"input[{index}]", entry)
            name = item.need("id", str)
            if name in named:
                raise item.error("id", "was referred to before")
            named.add(name)
            entry = referred(name, item.name("id"))
        found.append(entry)
    return found


def _thinking(fields: Fields) -> bool | None:
    reasoning = fields.inner("reasoning", fields.get("reasoning", dict, {}))
    reasoning.skip_unknown({"effort", "generate_summary", "summary"}, {})
    return thinking.read_effort(reasoning, "effort")


def _in_summary(fields: Fields) -> bool:
    """Whether a summary is asked for, in whose place the reasoning itself stands, however long."""
    reasoning = fields.inner("reasoning", fields.get("reasoning", dict, {}))
    wanted = [reasoning.get(name, str) for name in ("summary", "generate_summary")]
    return any(each not in (None, "none") for each in wanted)


def _schema(fields: Fields) -> Mapping[str, object] | None:
    text = fields.inner("text", fields.get("text", dict, {}))
    text.skip_unknown({"format", "verbosity"}, {})
    if text.get("verbosity", str, "medium") != "medium":  # Codex asks for it; a model is not bound
        text.ignored.add(text.name("verbosity"))
    return schema_of(text, "format")


def _logprobs(fields: Fields) -> int | None:
    """With how many tokens each is compared, where log probabilities are to be told."""
    wanted = False
    for entry in fields.get("include", list, []):
        if entry not in _INCLUDABLE:
            raise fields.error("include", f"expected some of {', '.join(_INCLUDABLE)}")
        wanted = wanted or entry == _LOGPROBS
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS, 0)
    return top if wanted or top else None


def _echoed(fields: Fields, chat: ChatRequest, *, parallel: bool) -> JsonObject:
    metadata = fields.get("metadata", dict, {})
    if len(metadata) > _MAX_METADATA or not all(
        isinstance(value, str) and len(key) + len(value) <= _MAX_METADATA_CHARACTERS
        for key, value in metadata.items()
    ):
        raise fields.error(
            "metadata",
            f"expected at most {_MAX_METADATA} texts of {_MAX_METADATA_CHARACTERS} characters",
        )
    return {
        "instructions": fields.raw("instructions"),
        "max_output_tokens": chat.settings.max_tokens,
        "metadata": metadata,
        "parallel_tool_calls": parallel,
        "previous_response_id": fields.raw("previous_response_id"),
        "reasoning": fields.raw("reasoning") or {"effort": None, "summary": None},
        "temperature": chat.settings.sampling.temperature,
        "text": fields.raw("text") or {"format": {"type": "text"}},
        "tool_choice": told_choice(fields.raw("tool_choice")),
        "tools": fields.raw("tools") or [],
        "top_p": chat.settings.sampling.top_p,
        "truncation": "disabled",
    }
