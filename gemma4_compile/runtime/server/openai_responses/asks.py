"""Fields of OpenAI's Responses API, and of others, that ask for what is not served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gemma4_compile.runtime.server import asks
from gemma4_compile.runtime.server.asks import Ask

_FORM = "a form of the reply is asked for with `text.format`"
_PROMPT = "the prompt is the package's chat template, `instructions` and `input`, and nothing else"
_ENDS = "where a reply ends is said by `max_output_tokens` alone"
# Of this protocol; `max_tool_calls` counts those of tools that a server runs.
_OWN = frozenset({"input", "instructions", "max_tool_calls", "previous_response_id", "text"})

REQUEST: Mapping[str, Ask] = {
    **{name: ask for name, ask in asks.CHAT.items() if name not in _OWN},
    **{name: replace(ask, why=_FORM) for name, ask in asks.GRAMMARS.items() if name not in _OWN},
    **{name: replace(ask, why=_PROMPT) for name, ask in asks.PROMPTS.items() if name not in _OWN},
    **{name: replace(ask, why=_ENDS) for name, ask in asks.ENDS.items()},
    "conversation": Ask("conversations go on by `previous_response_id`"),
    "image": Ask(
        "pictures are looked at as they are sent",
        ({"context_compression": "auto"}, {"context_compression": "disabled"}),
    ),
    "logit_bias": Ask("/v1/chat/completions takes it"),
    "logprobs": Ask("log probabilities are asked for with `include` and `top_logprobs`", (False,)),
    "max_completion_tokens": Ask("is `max_output_tokens` here"),
    "max_tokens": Ask("is `max_output_tokens` here"),
    "messages": Ask("is `input` here"),
    "moderation": Ask("this server does nothing besides the model's reply"),
    "n": Ask("one reply is generated: ask again for another", (1,)),
    "prompt": Ask("no prompts are kept here: send `instructions` and `input`"),
    "reasoning_effort": Ask("is `reasoning.effort` here"),
    "response_format": Ask(_FORM, ({"type": "text"},)),
    "stop": Ask(_ENDS),
    "truncation": Ask(
        "a conversation that does not fit is refused, not cut",
        ("disabled", "auto"),  # which asks for nothing where it fits
    ),
}
"""Of the request; what none of these tables names cannot change a reply."""

PART: Mapping[str, Ask] = {
    "file_data": Ask("files are not read: send what they say"),
    "file_id": Ask("no files are kept here: send the picture as a `data:` address"),
    "file_url": Ask("files are not read: send what they say"),
}
TOOL: Mapping[str, Ask] = {
    "function": Ask("a declaration is in the tool itself: name, description and parameters"),
    "input_schema": Ask("arguments are declared in `parameters`, by a JSON schema"),
}
