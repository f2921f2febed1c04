"""Bodies of the API's requests, parsed once into frozen values; what is not served is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

from gemma4_compile.options.sampling_ranges import API_MAX_TEMPERATURE, SAMPLING_RANGES
from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.sampling.sampling import PENALTIES, SamplingOptions
from gemma4_compile.runtime.server import asks, thinking
from gemma4_compile.runtime.server.begun import check_beside_begun, split_begun
from gemma4_compile.runtime.server.chat_tools import read_custom, read_strict, read_tools
from gemma4_compile.runtime.server.fields import Fields, Ignored
from gemma4_compile.runtime.server.media import GivenMedium
from gemma4_compile.runtime.server.messages import (
    declare,
    read_messages,
    read_tool_choice,
)
from gemma4_compile.runtime.server.response_format import read_schema

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 256
MAX_SEED = 2**64 - 1
MAX_REPLIES = 16
MAX_TOP_LOGPROBS = 20
MAX_TEXT_LOGPROBS = 5
MAX_BIASES = 1024
MAX_SALT_CHARACTERS = 1024
_MAX_TOKENS = 2**31 - 1

# Fields that cannot change a reply of this server.
_IGNORED = {
    "metadata",
    "prediction",  # tokens that may come, which are guessed here by the drafter alone
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
SAMPLING = ("top_k", "top_p", *PENALTIES)
"""Fields of sampling besides the temperature."""
_COMMON = {
    "cache_salt",
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
    *SAMPLING,
}
_CHAT = _COMMON | {
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
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
# Over how many tokens other servers' penalties look back.
_WINDOWS = ("repeat_last_n", "repetition_context_size", "repetition_penalty_range", "rep_pen_range")


TextPrompt = str | tuple[int, ...]


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
    cache_salt : only what was asked with the same one is gone on from
    tenant : whose it is, once that is known
    """

    model: str | None
    settings: Settings
    replies: int
    stream: bool
    include_usage: bool
    cache_salt: str = field(default="", kw_only=True)
    tenant: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class ChatRequest(Request):
    """A request for a reply.

    Attributes
    ----------
    thinking : None where the request leaves it to the server
    template_options : names of what else it sets for the chat template
    schema : the JSON schema that the reply must follow, or None
    declared : the same tools with their schemas written out, as the chat template takes them
    must_call : tools of which the reply must call one; none: it need not
    strict : names of tools whose calls must follow their declaration wherever one is made
    custom : names of tools whose calls are given out as a text
    several_calls : whether it may call more than once
    media : of the messages, in order, not decoded yet
    begun : what the reply begins with, which the answer does not repeat
    """

    messages: tuple[Message, ...]
    media: tuple[GivenMedium, ...] = ()
    tools: tuple[Mapping[str, object], ...] = ()
    thinking: bool | None = None
    template_options: tuple[str, ...] = ()
    schema: Mapping[str, object] | None = field(default=None)
    declared: tuple[Mapping[str, object], ...] = ()
    must_call: tuple[Mapping[str, object], ...] = ()
    strict: frozenset[str] = frozenset()
    custom: frozenset[str] = frozenset()
    several_calls: bool = True
    begun: str = ""


@dataclass(frozen=True)
class CompletionRequest(Request):
    """A request to go on with a text, or with token ids.

    Attributes
    ----------
    echo : whether the answer begins with the prompt
    """

    prompt: TextPrompt
    echo: bool = False


def read_chat_request(
    body: object, defaults: SamplingOptions, max_messages: int, ignored: Ignored | None = None
) -> ChatRequest:
    """Read the body of `/v1/chat/completions`.

    Parameters
    ----------
    defaults : sampling options for what the request does not set
    max_messages : most messages of a request
    ignored : where fields that cannot change the reply are counted

    Raises
    ------
    ApiError
        400 for a field that is damaged, or asks for what is not served.
    """
    fields = Fields(body, ignored=ignored).with_synonyms(asks.SYNONYMS)
    others = frozenset() if fields.ignored.strict else thinking.OTHERS.union(asks.LIMITS)
    fields.skip_unknown(_CHAT | others, asks.CHAT)
    fields.only("modalities", ([], ["text"]), "replies are text")
    tools, must_call, several = read_tool_choice(fields, read_tools(fields, custom=True))
    messages, media = read_messages(fields, max_messages)
    messages, begun = split_begun(fields, messages)
    thinks, options = thinking.read_thinking(fields)
    schema = read_schema(fields)
    if begun:
        asked = {"reasoning": bool(thinks), "`response_format`": schema is not None}
        check_beside_begun(fields, "continue_final_message", asked, "")
    return ChatRequest(
        messages=messages,
        media=media,
        tools=tools,
        declared=declare(fields, tools),
        must_call=must_call,
        strict=read_strict(fields),
        custom=read_custom(fields),
        several_calls=several and fields.get("parallel_tool_calls", bool, True),
        thinking=False if begun else thinks,
        template_options=options,
        schema=schema,
        begun=begun,
        **_common(fields, defaults, "max_completion_tokens", _chat_logprobs(fields)),
    )


def read_completion_requests(
    body: object, defaults: SamplingOptions, ignored: Ignored | None = None
) -> tuple[CompletionRequest, ...]:
    """Read the body of `/v1/completions`; arguments and errors as of `read_chat_request`.

    Returns
    -------
    a request for each prompt
    """
    fields = Fields(body, ignored=ignored).with_synonyms(asks.SYNONYMS)
    others = frozenset() if fields.ignored.strict else frozenset(asks.LIMITS)
    fields.skip_unknown(_COMPLETION | others, asks.COMPLETION)
    fields.only("best_of", (1, fields.raw("n")), "only what is returned is generated")
    fields.only("suffix", ("",), "text after the reply is not served")
    logprobs = None
    if fields.raw("logprobs") is not False:
        logprobs = fields.integer("logprobs", 0, MAX_TEXT_LOGPROBS, None)
    echo = fields.get("echo", bool, False)
    common, prompts = _common(fields, defaults, None, logprobs), _prompts(fields)
    settings, replies = common["settings"], common["replies"]
    if len(prompts) * replies > MAX_REPLIES:
        found = f"{len(prompts)} prompts of {replies}"
        raise fields.error(
            "prompt", f"expected at most {MAX_REPLIES} replies in all, found {found}"
        )
    requests = []
    for index, prompt in enumerate(prompts):
        common["settings"] = settings.of_reply(index * replies)
        requests.append(CompletionRequest(prompt=prompt, echo=echo, **common))
    return tuple(requests)


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
    cache_salt: str


def _common(
    fields: Fields, defaults: SamplingOptions, newer: str | None, logprobs: int | None
) -> _Common:
    stream = fields.get("stream", bool, False)
    options = fields.inner("stream_options", fields.get("stream_options", dict, {}))
    options.skip_unknown({"include_usage", "include_obfuscation"}, {})
    if fields.has("stream_options") and not stream:
        if fields.ignored.strict:
            raise fields.error("stream_options", "is allowed with `stream: true` only")
        fields.ignored.add("stream_options")
    limit = read_limit(fields, "max_tokens", least=0 if newer is None else 1)
    if newer is not None and fields.has(newer):
        limit = read_limit(fields, newer)
    limits = [limit, *(read_limit(fields, name) for name in asks.LIMITS)]
    limit = min((each for each in limits if each is not None), default=None)
    settings = Settings(
        read_sampling_options(fields, defaults),
        read_seed(fields),
        limit,
        read_stop(fields),
        _biases(fields),
        logprobs,
    )
    return {
        "model": fields.get("model", str),
        "settings": settings,
        "replies": fields.integer("n", 1, MAX_REPLIES, 1),
        "stream": stream,
        "include_usage": options.get("include_usage", bool, False),
        "cache_salt": read_cache_salt(fields),
    }


def read_cache_salt(fields: Fields) -> str:
    """A text that parts what is kept of prompts' beginnings, as of vLLM."""
    salt = fields.get("cache_salt", str, "")
    if len(salt) > MAX_SALT_CHARACTERS:
        found = f"expected at most {MAX_SALT_CHARACTERS} characters, found {len(salt)}"
        raise fields.error("cache_salt", found)
    return salt


def read_sampling_options(fields: Fields, defaults: SamplingOptions) -> SamplingOptions:
    """The fields that say how tokens are drawn, with the package's defaults for the others."""
    values = {name: fields.sampling(name, getattr(defaults, name)) for name in SAMPLING}
    sampling = SamplingOptions(
        temperature=fields.sampling("temperature", defaults.temperature, API_MAX_TEMPERATURE),
        **values,
    )
    if any(values[name] != SAMPLING_RANGES[name].neutral for name in PENALTIES if name != "min_p"):
        for window in _WINDOWS:
            fields.only(window, (-1,), "penalties look at the whole of prompt and reply")
    return sampling


def read_limit(fields: Fields, name: str, least: int = 1) -> int | None:
    """Most tokens of a reply; None, and -1 as some clients write it: as many as fit."""
    if fields.raw(name) == -1:
        return None
    return fields.integer(name, least, _MAX_TOKENS, None)


def _biases(fields: Fields) -> Mapping[int, float]:
    """Biases by token id; whether the model has such tokens is not known here."""
    # A list that is empty is none, as programs in PHP write it; strict requests may, too.
    given = {} if fields.raw("logit_bias") == [] else fields.get("logit_bias", dict, {})
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


def read_seed(fields: Fields) -> int | None:
    """The seed; a generator of numbers takes none below 0."""
    seed = fields.integer("seed", -(2**63), MAX_SEED, None)
    return None if seed is None else seed % (1 << 64)


def read_stop(fields: Fields, name: str = "stop") -> tuple[str, ...]:
    """The texts that end a reply: one, or a list of them."""
    value = fields.raw(name)
    if value is None:
        return ()
    strings: Sequence[object] = value if isinstance(value, list) else [value]
    if len(strings) > MAX_STOP_STRINGS:
        raise fields.error(name, f"expected at most {MAX_STOP_STRINGS}, found {len(strings)}")
    texts = []
    for string in strings:
        if not isinstance(string, str) or len(string) > MAX_STOP_CHARACTERS:
            raise fields.error(name, f"expected texts of 1 to {MAX_STOP_CHARACTERS} characters")
        texts.append(string)
    return tuple(text for text in texts if text)


def _prompts(fields: Fields) -> tuple[TextPrompt, ...]:
    """One text or list of token ids, or a list of them."""
    value = fields.raw("prompt")
    entries: list[object] = [value]
    if isinstance(value, list) and value and isinstance(value[0], (str, list)):
        entries = value
    if len(entries) > MAX_REPLIES:
        found = len(entries)
        raise fields.error("prompt", f"expected at most {MAX_REPLIES} prompts, found {found}")
    prompts: list[TextPrompt] = []
    for entry in entries:
        if isinstance(entry, str) and entry:
            prompts.append(entry)
        elif isinstance(entry, list) and entry and all(type(item) is int for item in entry):
            prompts.append(tuple(entry))
        else:
            raise fields.error("prompt", "expected texts or lists of token ids, none of them empty")
    return tuple(prompts)
