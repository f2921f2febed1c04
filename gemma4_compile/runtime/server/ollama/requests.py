"""Bodies of `/api/chat` and `/api/generate`, as requests of a chat or of a text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gemma4_compile.options.serve import LATEST
from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.sampling.sampling import SamplingOptions
from gemma4_compile.runtime.server import thinking
from gemma4_compile.runtime.server.begun import BEGUN, check_beside_begun
from gemma4_compile.runtime.server.call_arguments import read_arguments
from gemma4_compile.runtime.server.chat_tools import read_tools
from gemma4_compile.runtime.server.conversation import Conversation, Part
from gemma4_compile.runtime.server.fields import Fields, Ignored
from gemma4_compile.runtime.server.media import GivenMedium
from gemma4_compile.runtime.server.messages import (
    Tools,
    called_name,
    declare,
)
from gemma4_compile.runtime.server.ollama import asks
from gemma4_compile.runtime.server.requests import (
    MAX_TOP_LOGPROBS,
    SAMPLING,
    ChatRequest,
    CompletionRequest,
    Settings,
    read_cache_salt,
    read_limit,
    read_sampling_options,
    read_seed,
    read_stop,
)
from gemma4_compile.runtime.server.response_format import ANY_OBJECT

_COMMON = {
    "cache_salt",
    "format",
    "keep_alive",
    "logprobs",
    "model",
    "options",
    "shift",
    "stream",
    "think",
    "top_logprobs",
    "truncate",
}
_CHAT = _COMMON | {"messages", "tools"}
_GENERATE = _COMMON | {"images", "prompt", "raw", "system"}
_OPTIONS = {
    "num_predict",
    "repeat_last_n",  # of 0 none of the penalties is on, which a penalty contradicts
    "repetition_penalty",
    "seed",
    "stop",
    "temperature",
    *SAMPLING,
}
# How a model is loaded and run, which is settled here; `num_ctx` would be more or less room.
_SILENT_OPTIONS = {
    "embedding_only",
    "f16_kv",
    "logits_all",
    "low_vram",
    "main_gpu",
    "num_batch",
    "num_gpu",
    "num_keep",
    "num_thread",
    "numa",
    "use_mlock",
    "use_mmap",
    "vocab_only",
}
_MESSAGE = {"content", "images", "role", "thinking", "tool_call_id", "tool_calls", "tool_name"}
_ROLES = ("system", "developer", "user", "assistant", "tool")
_ZERO = r"0+(?:\.0*)?"
_NO_TIME = re.compile(rf"[+-]?(?:{_ZERO}|(?:{_ZERO}(?:[num\u00b5\u03bc]?s|m|h))+)")


def lets_go(keep_alive: object) -> bool:
    """Return whether a client lets a model go by this `keep_alive`: no seconds, or `0m0s`."""
    if isinstance(keep_alive, str):
        return _NO_TIME.fullmatch(keep_alive) is not None
    return not isinstance(keep_alive, bool) and keep_alive == 0


@dataclass(frozen=True)
class OllamaRequest:
    """A request of this protocol.

    Attributes
    ----------
    asked : None where a model is to be loaded, or let go, and nothing is asked
    model : its name, without what clients put behind it
    unloads : it is to be let go
    stream : whether the answer comes in pieces
    """

    asked: ChatRequest | CompletionRequest | None
    model: str
    unloads: bool
    stream: bool


def read_chat(
    body: object, defaults: SamplingOptions, most: int, ignored: Ignored | None = None
) -> OllamaRequest:
    """Read the body of `/api/chat`.

    Parameters
    ----------
    defaults : sampling options for what the request does not set
    most : most messages of a request
    ignored : where fields that cannot change the reply are counted

    Raises
    ------
    ApiError
        400 for a field that is damaged, or asks for what is not served.
    """
    fields = Fields(body, ignored=ignored)
    fields.skip_unknown(_CHAT, asks.CHAT)
    entries = fields.get("messages", list, [])
    if len(entries) > most:
        raise fields.error("messages", f"expected at most {most} messages, found {len(entries)}")
    if not entries:
        return _loading(fields)
    conversation, begun = _conversation(fields, entries)
    tools = read_tools(fields)
    return _request(fields, _chat(fields, defaults, conversation, tools, begun))


def read_generate(
    body: object, defaults: SamplingOptions, ignored: Ignored | None = None
) -> OllamaRequest:
    """Read the body of `/api/generate`; arguments and errors as of `read_chat`."""
    fields = Fields(body, ignored=ignored)
    fields.skip_unknown(_GENERATE, asks.GENERATE)
    prompt = fields.get("prompt", str, "")
    images = _images(fields)
    if not prompt and not images:
        return _loading(fields)
    if fields.get("raw", bool, False):
        return _request(fields, _text(fields, defaults, prompt))
    conversation = Conversation()
    system = fields.get("system", str, "")
    if system:
        conversation.add(Message("system", system))
    conversation.add(Message("user", ""), [*images, prompt])
    return _request(fields, _chat(fields, defaults, conversation, (), ""))


def _loading(fields: Fields) -> OllamaRequest:
    _model(fields)
    return _request(fields, None)


def _request(fields: Fields, asked: ChatRequest | CompletionRequest | None) -> OllamaRequest:
    return OllamaRequest(
        asked,
        _model(fields),
        unloads=lets_go(fields.raw("keep_alive")),
        stream=fields.get("stream", bool, True),
    )


def _model(fields: Fields) -> str:
    name: str = fields.need("model", str)
    return name.removesuffix(LATEST)


def _chat(
    fields: Fields,
    defaults: SamplingOptions,
    conversation: Conversation,
    tools: Tools,
    begun: str,
) -> ChatRequest:
    thinks, schema = thinking.read_switch(fields, "think"), _schema(fields)
    if begun:
        asked = {"`think`": bool(thinks), "`format`": schema is not None}
        check_beside_begun(fields, "messages", asked, BEGUN)
    return ChatRequest(
        model=_model(fields),
        settings=_settings(fields, defaults),
        replies=1,
        stream=fields.get("stream", bool, True),
        include_usage=True,
        cache_salt=read_cache_salt(fields),
        messages=tuple(conversation.messages),
        media=conversation.media(),
        tools=tools,
        declared=declare(fields, tools),
        thinking=False if begun else thinks,
        schema=schema,
        begun=begun,
    )


def _text(fields: Fields, defaults: SamplingOptions, prompt: str) -> CompletionRequest:
    """A text that is gone on with as it is."""
    for name in ("format", "images", "system", "think"):
        fields.only(name, ("", [], False), "a text is gone on with as it is, where it is `raw`")
    return CompletionRequest(
        model=_model(fields),
        settings=_settings(fields, defaults),
        replies=1,
        stream=fields.get("stream", bool, True),
        include_usage=True,
        cache_salt=read_cache_salt(fields),
        prompt=prompt,
    )


def _settings(fields: Fields, defaults: SamplingOptions) -> Settings:
    values = dict(fields.get("options", dict, {}))
    if values.get("repetition_penalty") is None and "repeat_penalty" in values:
        values["repetition_penalty"] = values.pop("repeat_penalty")
    limit = values.get("num_predict")
    if isinstance(limit, (int, float)) and not isinstance(limit, bool) and limit <= 0:
        del values["num_predict"]
    window = values.get("repeat_last_n")
    if type(window) is int and window > 0 and not fields.ignored.strict:
        # It is 64 there where nobody says so, too: penalties look at the whole in either case.
        del values["repeat_last_n"]
        fields.ignored.add("options.repeat_last_n")
    options = fields.inner("options", values)
    options.skip_unknown(_OPTIONS | _SILENT_OPTIONS, asks.OPTIONS)
    return Settings(
        read_sampling_options(options, defaults),
        None if options.raw("seed") == -1 else read_seed(options),  # Ollama's word for none
        read_limit(options, "num_predict"),
        read_stop(options),
        logprobs=_logprobs(fields),
    )


def _logprobs(fields: Fields) -> int | None:
    """With how many tokens each is compared, where log probabilities are to be told."""
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS, 0)
    if fields.get("logprobs", bool, False):
        return top
    if top:  # as Ollama has it
        fields.ignored.add("top_logprobs, without logprobs")
    return None


def _schema(fields: Fields) -> Mapping[str, object] | None:
    """The schema of `format`: of any object, or an own one, perhaps as its JSON."""
    value = fields.raw("format")
    if value in (None, "", [], {}):
        return None
    if isinstance(value, str) and value != "json":
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise fields.error("format", f"expected json or a JSON schema: {error}") from error
    if value == "json":
        return ANY_OBJECT
    if not isinstance(value, dict):
        raise fields.error("format", "expected json or a JSON schema")
    return value


def _conversation(fields: Fields, entries: list[object]) -> tuple[Conversation, str]:
    """The messages, and the text of a last one of the model: what the reply begins with."""
    conversation = Conversation()
    for index, entry in enumerate(entries):
        message, role = _message(fields.inner(f"messages[{index}]", entry))
        content = message.get("content", str, "")
        calls = _calls(message) if role == "assistant" else ()
        if role == "assistant" and index + 1 == len(entries) and not calls and index:
            return conversation, content
        images = _images(message)
        if images and role not in ("user", "tool"):
            raise message.error("images", "only a user's message or a tool's result holds them")
        call_id, name = _result_of(message, conversation) if role == "tool" else (None, None)
        conversation.add(
            Message(
                role,
                content,
                reasoning=message.get("thinking", str) if role == "assistant" else None,
                tool_calls=calls,
                tool_call_id=call_id,
                name=name,
            ),
            [*images, content] if images else (),
        )
    return conversation, ""


def _message(message: Fields) -> tuple[Fields, str]:
    """A message by the names of this protocol, and its role, which may be in any letters there."""
    role = message.need("role", str)
    known = role if message.ignored.strict else role.lower()
    if known not in _ROLES:
        raise message.error("role", f"expected one of {', '.join(_ROLES)}, found {role[:60]!r}")
    if known == "tool":  # as OpenAI's API had it, and clients of both write it
        message = message.with_synonyms({"name": "tool_name"})
    message.skip_unknown(_MESSAGE, asks.MESSAGE)
    return message, known


def _result_of(message: Fields, conversation: Conversation) -> tuple[str | None, str | None]:
    """The call that a result belongs to: by its id, by the tool's name, or by their order.

    Ollama's calls have no ids: a client that makes some (litellm) sends them with results alone.
    """
    call_id = message.get("tool_call_id", str) or None
    if call_id is not None and call_id in conversation.calls:
        return call_id, message.get("tool_name", str) or None
    before = conversation.messages
    last = next((i for i in reversed(range(len(before))) if before[i].tool_calls), None)
    calls = () if last is None else before[last].tool_calls
    if call_id is not None and all(call.call_id for call in calls):
        found = f"expected the id of a tool call before it, found {call_id[:60]!r}"
        raise message.error("tool_call_id", found)
    name = message.get("tool_name", str) or None
    if name is None:
        if last is None:
            raise message.error(
                "tool_name", "expected the name of a tool that was called before it"
            )
        answered = sum(each.role == "tool" for each in before[last + 1 :])
        name = calls[min(answered, len(calls) - 1)].name
    return None, name


def _calls(message: Fields) -> tuple[ToolCall, ...]:
    calls = []
    for index, entry in enumerate(message.get("tool_calls", list, [])):
        call = message.inner(f"tool_calls[{index}]", entry)
        call.skip_unknown({"function", "id", "type"}, {})
        function = call.inner("function", call.need("function", dict))
        function.skip_unknown({"arguments", "index", "name"}, {})
        name, arguments = called_name(function), read_arguments(function)
        calls.append(ToolCall(name, arguments, call.get("id", str, "")))
    return tuple(calls)


def _images(holder: Fields) -> list[Part]:
    """Pictures, which come before the text that they lie beside."""
    images: list[Part] = []
    for index, image in enumerate(holder.get("images", list, [])):
        name = f"images[{index}]"
        if not isinstance(image, str):
            raise holder.error(name, "expected a picture in base64")
        images.append(GivenMedium("image", holder.name(name), image))
    return images
