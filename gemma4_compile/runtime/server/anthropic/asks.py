"""Fields of Anthropic's API, and of others, that ask `/v1/messages` for what is not served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gemma4_compile.runtime.server import asks
from gemma4_compile.runtime.server.asks import Ask

_FORM = "a form of the reply is asked for with `output_config.format`, by a JSON schema"
_PROMPT = "the prompt is the package's chat template, `system` and `messages`, and nothing else"
_ENDS = "where a reply ends is said by `max_tokens` and `stop_sequences` alone"
_SYSTEM = frozenset({"output_config", "output_format", "system"})  # which this protocol has
_RUNS = "this server runs no tools and no code: a client does, and sends `tool_result`"

REQUEST: Mapping[str, Ask] = {
    **{name: ask for name, ask in asks.CHAT.items() if name not in _SYSTEM},
    **{name: replace(ask, why=_FORM) for name, ask in asks.GRAMMARS.items() if name not in _SYSTEM},
    **{name: replace(ask, why=_PROMPT) for name, ask in asks.PROMPTS.items() if name != "system"},
    **{name: replace(ask, why=_ENDS) for name, ask in asks.ENDS.items()},
    "compaction": Ask("conversations are not made shorter here: ask for a summary in words"),
    "container": Ask(_RUNS),
    "fallbacks": Ask("this server has one model"),
    "logit_bias": Ask("tokens are chosen by the model alone here: /v1/chat/completions takes it"),
    "logprobs": Ask("/v1/chat/completions tells log probabilities", (False,)),
    "max_completion_tokens": Ask("is `max_tokens` here"),
    "mcp_servers": Ask(_RUNS),
    "n": Ask("one reply is generated: ask again for another", (1,)),
    "parallel_tool_calls": Ask("is `disable_parallel_tool_use` of `tool_choice` here", (True,)),
    "reasoning": Ask("is `thinking` here"),
    "reasoning_effort": Ask("is `thinking` here"),
    "response_format": Ask(_FORM, ({"type": "text"},)),
    "stop": Ask("is `stop_sequences` here"),
    "top_logprobs": Ask("/v1/chat/completions tells log probabilities", (0,)),
}
"""Of the request; what none of these tables names cannot change a reply."""

IMAGE: Mapping[str, Ask] = {
    **asks.IMAGE,
    "transformations": Ask("a picture is looked at as it is sent"),
}
DOCUMENT: Mapping[str, Ask] = {
    "citations": Ask("the reply cites nothing", ({"enabled": False},)),
}
TOOL: Mapping[str, Ask] = {
    "allowed_callers": Ask(_RUNS, (["direct"],)),
    "function": Ask("a declaration is in the tool itself: name, description and input_schema"),
    "input_examples": Ask("the chat template has no place for examples: describe them"),
    "inputSchema": Ask("arguments are declared in `input_schema`, by a JSON schema"),
    "parameters": Ask("arguments are declared in `input_schema`, by a JSON schema"),
}
