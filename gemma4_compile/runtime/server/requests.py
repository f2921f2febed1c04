"""Bodies of the API's requests, parsed once into frozen values; what is not served is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

from gemma4_compile.runtime.prompt import Message
from gemma4_compile.runtime.sampling import PENALTIES, SamplingOptions
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.media import GivenMedium
from gemma4_compile.runtime.server.messages import (
    read_messages,
    read_tool_choice,
    read_tools,
)
from gemma4_compile.sampling_ranges import API_MAX_TEMPERATURE

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 256
MAX_SEED = 2**63 - 1
MAX_REPLIES = 16
MAX_TOP_LOGPROBS = 20
MAX_TEXT_LOGPROBS = 5
MAX_BIASES = 1024
_MAX_TOKENS = 2**31 - 1

# Fields that cannot change a reply of this server.
_IGNORED = {
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
_SAMPLING = ("top_k", "top_p", *PENALTIES)
_COMMON = {
    "logit_bias",
    "logprobs",
    "max_tokens",
    "model",
    "n",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "temperature",
    *_IGNORED,
    *_SAMPLING,
}
_CHAT = _COMMON | {
    "chat_template_kwargs",
    "max_completion_tokens",
    "messages",
    "modalities",
    "parallel_tool_calls",
    "reasoning_effort",
    "response_format",
    "tool_choice",
    "tools",
    "top_logprobs",
}
_COMPLETION = _COMMON | {"best_of", "echo", "prompt", "suffix"}
_TOKEN_ID = re.compile(r"[0-9]{1,9}")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")

ANY_OBJECT: Mapping[str, object] = {"type": "object"}


@dataclass(frozen=True)
class Settings:
    """Options of a reply's generation.

    Attributes
    ----------
    max_tokens : most tokens of the reply; None for as many as fit
    stop : texts that end it
    logit_bias : what is added to the logits of some token ids
    logprobs : with how many others each token is compared; None: no log probabilities
    """

    sampling: SamplingOptions
    seed: int | None
    max_tokens: int | None
    stop: tuple[str, ...]
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None

    def of_reply(self, index: int) -> Settings:
        """The settings of one of several replies: a seed gives each its own draws."""
        return self if self.seed is None else replace(self, seed=(self.seed + index) % (1 << 64))


@dataclass(frozen=True)
class Request:
    """Fields that both endpoints share.

    Attributes
    ----------
    model : the model that was asked for; None if the request names none
    replies : how many there are to be
    include_usage : whether a stream ends with a chunk that counts tokens
    """

    model: str | None
    settings: Settings
    replies: int
    stream: bool
    include_usage: bool


@dataclass(frozen=True)
class ChatRequest(Request):
    """A request for a reply.

    Attributes
    ----------
    thinking : None where the request leaves it to the server
    schema : the JSON schema that the reply must follow, or None
    must_call : tools of which the reply must call one; none: it need not
    several_calls : whether it may call more than once
    media : of the messages, in order, not decoded yet
    """

    messages: tuple[Message, ...]
    media: tuple[GivenMedium, ...] = ()
    tools: tuple[Mapping[str, object], ...] = ()
    thinking: bool | None = None
    schema: Mapping[str, object] | None = field(default=None)
    must_call: tuple[Mapping[str, object], ...] = ()
    several_calls: bool = True


@dataclass(frozen=True)
class CompletionRequest(Request):
    """A request to go on with a text, or with token ids."""

    prompt: str | tuple[int, ...]


def read_chat_request(body: object, defaults: SamplingOptions, max_messages: int) -> ChatRequest:
    """Read the body of `/v1/chat/completions`.

    Parameters
    ----------
    defaults : sampling options for what the request does not set
    max_messages : most messages of a request

    Raises
    ------
    ApiError
        400 for a field that is unknown, damaged, or asks for what is not served.
    """
    fields = Fields(body)
    fields.refuse_unknown(_CHAT)
    fields.only("modalities", (["text"],), "replies are text")
    tools, must_call, several = read_tool_choice(fields, read_tools(fields))
    messages, media = read_messages(fields, max_messages)
    return ChatRequest(
        messages=messages,
        media=media,
        tools=tools,
        must_call=must_call,
        several_calls=several and fields.get("parallel_tool_calls", bool, True),
        thinking=_thinking(fields),
        schema=_schema(fields),
        **_common(fields, defaults, "max_completion_tokens", _chat_logprobs(fields)),
    )


def read_completion_request(body: object, defaults: SamplingOptions) -> CompletionRequest:
    """Read the body of `/v1/completions`; errors as in `read_chat_request`."""
    fields = Fields(body)
    fields.refuse_unknown(_COMPLETION)
    fields.only("best_of", (1,), "only one reply is generated")
    fields.only("echo", (False,), "the prompt is not repeated")
    fields.only("suffix", ("",), "text after the reply is not served")
    logprobs = fields.integer("logprobs", 0, MAX_TEXT_LOGPROBS, None)
    return CompletionRequest(prompt=_prompt(fields), **_common(fields, defaults, None, logprobs))


def _chat_logprobs(fields: Fields) -> int | None:
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS, None)
    if fields.get("logprobs", bool, False):
        return top or 0
    if top:
        raise fields.error("top_logprobs", "is allowed with `logprobs: true` only")
    return None


class _Common(TypedDict):
    """Fields of a `Request`."""

    model: str | None
    settings: Settings
    replies: int
    stream: bool
    include_usage: bool


def _common(
    fields: Fields, defaults: SamplingOptions, newer: str | None, logprobs: int | None
) -> _Common:
    stream = fields.get("stream", bool, False)
    options = Fields(fields.get("stream_options", dict, {}), "stream_options")
    options.refuse_unknown({"include_usage", "include_obfuscation"})
    if fields.has("stream_options") and not stream:
        raise fields.error("stream_options", "is allowed with `stream: true` only")
    limit = _limit(fields, "max_tokens")
    if newer is not None and fields.has(newer):
        limit = _limit(fields, newer)
    settings = Settings(
        SamplingOptions(
            temperature=fields.sampling("temperature", defaults.temperature, API_MAX_TEMPERATURE),
            **{name: fields.sampling(name, getattr(defaults, name)) for name in _SAMPLING},
        ),
        _seed(fields),
        limit,
        _stop(fields),
        _biases(fields),
        logprobs,
    )
    return {
        "model": fields.get("model", str),
        "settings": settings,
        "replies": fields.integer("n", 1, MAX_REPLIES, 1),
        "stream": stream,
        "include_usage": options.get("include_usage", bool, False),
    }


def _limit(fields: Fields, name: str) -> int | None:
    """Most tokens of a reply; None, and -1 as some clients write it: as many as fit."""
    if fields.raw(name) == -1:
        return None
    return fields.integer(name, 1, _MAX_TOKENS, None)


def _biases(fields: Fields) -> Mapping[int, float]:
    """Biases by token id; whether the model has such tokens is not known here."""
    given = fields.get("logit_bias", dict, {})
    if len(given) > MAX_BIASES:
        raise fields.error("logit_bias", f"expected at most {MAX_BIASES}, found {len(given)}")
    biases: dict[int, float] = {}
    for name, value in given.items():
        if not _TOKEN_ID.fullmatch(name):
            raise fields.error("logit_bias", f"expected token ids, found {name[:40]!r}")
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not -100 <= value <= 100:
            raise fields.error("logit_bias", f"expected numbers from -100 to 100 for {name!r}")
        biases[int(name)] = float(value)
    return biases


def _seed(fields: Fields) -> int | None:
    """The seed; a generator of numbers takes none below 0."""
    seed = fields.integer("seed", -MAX_SEED - 1, MAX_SEED, None)
    return None if seed is None else seed % (1 << 64)


def _stop(fields: Fields) -> tuple[str, ...]:
    value = fields.raw("stop")
    if value is None:
        return ()
    strings: Sequence[object] = value if isinstance(value, list) else [value]
    if len(strings) > MAX_STOP_STRINGS:
        raise fields.error("stop", f"expected at most {MAX_STOP_STRINGS}, found {len(strings)}")
    texts = []
    for string in strings:
        if not isinstance(string, str) or not 0 < len(string) <= MAX_STOP_CHARACTERS:
            raise fields.error("stop", f"expected texts of 1 to {MAX_STOP_CHARACTERS} characters")
        texts.append(string)
    return tuple(texts)


def _thinking(fields: Fields) -> bool | None:
    effort = fields.get("reasoning_effort", str)
    if effort is not None and effort not in _EFFORTS:
        raise fields.error("reasoning_effort", f"expected one of {', '.join(_EFFORTS)}")
    options = Fields(fields.get("chat_template_kwargs", dict, {}), "chat_template_kwargs")
    options.refuse_unknown({"enable_thinking"})
    chosen: bool | None = options.get("enable_thinking", bool)
    return chosen if chosen is not None or effort is None else effort != "none"


def _schema(fields: Fields) -> Mapping[str, object] | None:
    if not fields.has("response_format"):
        return None
    form = Fields(fields.get("response_format", dict), "response_format")
    kind = form.need("type", str)
    if kind == "text":
        return None
    if kind == "json_object":
        return ANY_OBJECT
    if kind != "json_schema":
        raise form.error("type", "expected text, json_object or json_schema")
    inner = Fields(form.need("json_schema", dict), "response_format.json_schema")
    inner.refuse_unknown({"name", "description", "schema", "strict"})
    schema: Mapping[str, object] = inner.get("schema", dict, ANY_OBJECT)
    return schema


def _prompt(fields: Fields) -> str | tuple[int, ...]:
    value = fields.raw("prompt")
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        value = value[0]
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return tuple(value)
    raise fields.error("prompt", "expected one text or one list of token ids, not empty")
