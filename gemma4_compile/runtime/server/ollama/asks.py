"""Fields of Ollama's API, and of others, that ask for what is not served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gemma4_compile.runtime.server import asks
from gemma4_compile.runtime.server.asks import Ask

_FORM = "a form of the reply is asked for with `format`: json, or a JSON schema"
_PROMPT = "the prompt is the package's chat template and what is asked, and nothing else"
_OPTION = "options of a reply are in `options`"
_CONTEXT = "tokens of earlier replies are not given out: send the conversation to /api/chat"
# Of this protocol; `truncate` is on by default there, and what does not fit is refused loudly.
_OWN = frozenset(
    {"format", "images", "options", "prompt", "raw", "suffix", "system", "think", "truncate"}
)

_COMMON: Mapping[str, Ask] = {
    **{name: ask for name, ask in asks.CHAT.items() if name not in _OWN},
    **{name: replace(ask, why=_FORM) for name, ask in asks.GRAMMARS.items() if name not in _OWN},
    **{name: replace(ask, why=_PROMPT) for name, ask in asks.PROMPTS.items() if name not in _OWN},
    "max_tokens": Ask("is `num_predict` of `options` here"),
    "response_format": Ask(_FORM, ({"type": "text"},)),
    "seed": Ask(_OPTION),
    "stop": Ask(_OPTION),
    "temperature": Ask(_OPTION),
    "top_k": Ask(_OPTION),
    "top_p": Ask(_OPTION),
}
CHAT: Mapping[str, Ask] = {
    **_COMMON,
    "images": Ask("pictures are `images` of a message"),
    "prompt": Ask("a chat is asked with `messages`; /api/generate takes a `prompt`"),
    "raw": Ask(_PROMPT, (False,)),
    "system": Ask("is a message of role `system`"),
    "tool_choice": Ask("the model chooses: /v1/chat/completions takes it", ("auto",)),
}
GENERATE: Mapping[str, Ask] = {
    **_COMMON,
    "context": Ask(_CONTEXT),
    "messages": Ask("is asked of /api/chat"),
    "suffix": Ask("text after the reply is not served"),
    "tools": Ask("tools are sent to /api/chat"),
}
# `typical_p` stands among the options of Ollama's own page, whose engine for Gemma knows none.
OPTIONS: Mapping[str, Ask] = {
    **{name: ask for name, ask in asks.SAMPLERS.items() if name != "typical_p"},
    **{name: ask for name, ask in asks.ENDS.items() if name != "num_predict"},
    "logit_bias": Ask("/v1/chat/completions takes it"),
}
MESSAGE: Mapping[str, Ask] = {
    "audio": Ask("sounds are sent to /v1/chat/completions"),
    "function_call": Ask("use `tool_calls`, and messages of role `tool`"),
}
"""What none of these tables names cannot change a reply."""
