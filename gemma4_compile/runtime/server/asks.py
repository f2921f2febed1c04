"""Fields of other servers that ask for what is not served here, with the reason.

A field that is in none of these tables cannot change a reply: it is ignored, and counted in the
answer's `note`. A field that is in one is refused, unless its value asks for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Ask:
    """Why a field is refused.

    Attributes
    ----------
    why : the reason, with the way out if there is one
    neutral : values that ask for nothing, besides null and what is empty
    even_empty : an empty object asks, too
    """

    why: str
    neutral: tuple[object, ...] = ()
    even_empty: bool = False


def _all(why: str, neutral: Mapping[str, tuple[object, ...]] | Iterable[str]) -> dict[str, Ask]:
    """Fields that are refused for the same reason, with their neutral values."""
    if isinstance(neutral, Mapping):
        return {name: Ask(why, values) for name, values in neutral.items()}
    return {name: Ask(why) for name in neutral}


# llama.cpp's orders of samplers, with those of its pages: what is meant where nobody chose one.
_CUTS = ["top_k", "typ_p", "top_p", "min_p"]
_DEFAULT_SAMPLERS = (
    [*_CUTS, "temperature"],
    ["dry", *_CUTS, "xtc", "temperature"],
    ["penalties", "dry", *_CUTS, "xtc", "temperature"],
    ["penalties", "dry", "top_n_sigma", *_CUTS, "xtc", "temperature"],
    "top_k;typ_p;top_p;min_p;temperature",
    "dkypmxt",
    "edkypmxt",
    "edskypmxt",
)

# What belongs to one of these alone (`mirostat_tau`, `dry_base`, `xtc_threshold`, ...) asks for
# nothing without it.
SAMPLERS = _all(
    "this way of sampling is not served",
    {
        "adaptive_target": (-1,),
        "do_sample": (True,),
        "dry_multiplier": (0,),
        "dynamic_temperature": (False,),
        "dynatemp_range": (0,),
        "encoder_repetition_penalty": (1,),
        "epsilon_cutoff": (0,),
        "eta_cutoff": (0,),
        "guidance_scale": (1,),
        "min_keep": (0, 1),
        "mirostat": (0,),
        "mirostat_mode": (0,),
        "no_repeat_ngram_size": (0,),
        "num_beams": (1,),
        "penalty_alpha": (0,),
        "samplers": _DEFAULT_SAMPLERS,
        "sampler_order": (),
        "sampler_priority": (),
        "smoothing_factor": (0,),
        "temperature_last": (False,),
        "tfs": (1,),
        "tfs_z": (1,),
        "top_a": (0,),
        "top_n_sigma": (-1, 0),
        "typical": (1,),
        "typical_p": (1,),
        "use_beam_search": (False,),
        "watermark": (False,),
        "xtc_probability": (0,),
    },
)
ENDS = _all(
    "where a reply ends is said by `max_tokens` and `stop` alone",
    {
        "ban_eos_token": (False,),
        "ignore_eos": (False,),
        "include_stop_str_in_output": (False,),
        "max_length": (),
        "max_time": (),
        "min_length": (0,),
        "min_new_tokens": (0,),
        "min_tokens": (0,),
        "no_stop_trim": (False,),
        "stop_regex": (),
        "stop_token_ids": (),
        "t_max_predict_ms": (0, -1),
    },
)
GRAMMARS = _all(
    "a form of the reply is asked for with `response_format`, by a JSON schema",
    {
        "ebnf": (),
        "format": (),
        "grammar": (),
        "guided_choice": (),
        "guided_grammar": (),
        "guided_json": (),
        "guided_json_object": (False,),
        "guided_regex": (),
        "json_mode": (False,),
        "json_schema": (),
        "output_config": (),
        "output_format": (),
        "regex": (),
        "response_schema": (),
        "structural_tag": (),
        "structured_outputs": (True, False),
        "text": (
            {"format": {"type": "text"}},
            {"format": {"type": "text"}, "verbosity": "medium"},
            {"verbosity": "medium"},
        ),
    },
)
_TOKENS = _all(
    "tokens are chosen by the model and `logit_bias` alone",
    (
        "allowed_token_ids",
        "bad_words",
        "bad_words_ids",
        "banned_strings",
        "banned_tokens",
        "custom_logit_processor",
        "custom_token_bans",
        "force_words_ids",
        "logits_processors",
        "sequence_bias",
        "suppress_tokens",
    ),
)
PROMPTS = _all(
    "the prompt is the package's chat template and `messages`, or `prompt`, and nothing else",
    {
        "add_generation_prompt": (True,),
        "character": (),
        "chat_template": (),
        "context": (),
        "continue_final_message": (False,),
        "continue_": (False,),
        "conversation": (),
        "custom_system_prompt": (),
        "data_sources": (),
        "documents": (),
        "input": (),
        "instruction_template": (),
        "instruction_template_str": (),
        "instructions": (),
        "mm_processor_kwargs": (),
        "mode": ("instruct",),
        "n_keep": (0, -1),
        "negative_prompt": (),
        "preset": (),
        "previous_response_id": (),
        "prompt_embeds": (),
        "prompt_mode": (),
        "prompt_template": (),
        "raw": (False,),
        "raw_output": (False,),
        "role_mapping": (),
        "safe_prompt": (False,),
        "system": (),
        "system_prompt": (),
        "template": (),
        "tool_prompt": (),
        "truncate": (),
        "truncate_prompt_tokens": (),
        "user_bio": (),
    },
)
_OUTPUTS = _all(
    "the answer does not have this",
    {
        "decoder_input_details": (False,),
        "details": (False,),
        "n_probs": (0,),
        "prompt_logprobs": (False,),
        "return_hidden_states": (False,),
        "return_token_ids": (False,),
        "return_tokens": (False,),
        "return_tokens_as_token_ids": (False,),
        "return_full_text": (False,),
        "skip_special_tokens": (True,),
        "stream_reasoning": (True,),
        "separate_reasoning": (True,),
        "include_reasoning": (True,),
        "reasoning_format": ("auto", "deepseek", "parsed"),
        "thinking_forced_open": (False,),
    },
)
BUDGETS = _all(
    "reasoning has no budget of its own: `max_tokens` counts it with the rest",
    {
        "reasoning_budget": (-1,),
        "thinking_budget": (-1,),
        "thinking_budget_tokens": (-1,),
        "thinking_token_budget": (-1,),
    },
)
MEDIA = _all(
    "pictures and sounds are parts of a message's `content`",
    ("audios", "image", "image_data", "images", "multi_modal_data", "videos"),
)

REQUEST: Mapping[str, Ask] = {
    **SAMPLERS,
    **ENDS,
    **GRAMMARS,
    **_TOKENS,
    **PROMPTS,
    **_OUTPUTS,
    **BUDGETS,
    **MEDIA,
    "adapters": Ask("this server has one model, without adapters"),
    "lora": Ask("this server has one model, without adapters"),
    "lora_path": Ask("this server has one model, without adapters"),
    "lora_request": Ask("this server has one model, without adapters"),
    "extra_body": Ask("its fields belong beside `model`: a client's library puts them there"),
    "options": Ask("its fields belong beside `model`, by the names of OpenAI's API"),
    "parameters": Ask("its fields belong beside `model`, by the names of OpenAI's API"),
    "vllm_xargs": Ask("this server has no extensions"),
}
"""Of both endpoints."""

_BEGUN = frozenset({"add_generation_prompt", "continue_final_message"})  # which chats have
CHAT: Mapping[str, Ask] = {
    **{name: ask for name, ask in REQUEST.items() if name not in _BEGUN},
    "add_special_tokens": Ask("the chat template says how a prompt begins", (False,)),
    "audio": Ask("replies are text"),
    "background": Ask("an answer comes while one waits for it", (False,)),
    "best_of": Ask("only what is returned is generated: ask for several with `n`", (1,)),
    "cached_content": Ask("send the content in `messages`"),
    "deferred": Ask("an answer comes while one waits for it", (False,)),
    "echo": Ask("the messages are not repeated", (False,)),
    "function_call": Ask("use `tools` and `tool_choice`", ("none", "auto")),
    "functions": Ask("use `tools`"),
    "max_tool_calls": Ask("only `parallel_tool_calls` limits calls"),
    "plugins": Ask("this server does nothing besides the model's reply"),
    "prompt": Ask("a chat is asked with `messages`; /v1/completions takes a `prompt`"),
    "safety_model": Ask("this server does nothing besides the model's reply"),
    "search_parameters": Ask("this server does not search"),
    "search_settings": Ask("this server does not search"),
    "suffix": Ask("text after the reply is not served"),
    "verbosity": Ask("ask for long or short replies in words", ("medium",)),
    "web_search": Ask("this server does not search", (False,)),
    "web_search_options": Ask("this server does not search", even_empty=True),
}

_THINKING = "a text is gone on with as it is: /v1/chat/completions switches reasoning on and off"
COMPLETION: Mapping[str, Ask] = {
    **REQUEST,
    "chat_template_kwargs": Ask(_THINKING),
    "enable_thinking": Ask(_THINKING, (False,)),
    "functions": Ask("tools are sent to /v1/chat/completions"),
    "reasoning": Ask(_THINKING),
    "reasoning_effort": Ask(_THINKING, ("none",)),
    "think": Ask(_THINKING, (False,)),
    "thinking": Ask(_THINKING, (False,)),
    "add_special_tokens": Ask("a text begins with the token of all texts", (True,)),
    "messages": Ask("messages are sent to /v1/chat/completions"),
    "response_format": Ask("schemas are followed by /v1/chat/completions", ({"type": "text"},)),
    "tools": Ask("tools are sent to /v1/chat/completions"),
    "top_logprobs": Ask("`logprobs` is a number here"),
}

REASONING: Mapping[str, Ask] = {
    **_all(BUDGETS["thinking_budget"].why, ("budget_tokens", "max_tokens")),
    "exclude": Ask("reasoning is part of the answer: a client can leave it out", (False,)),
}
TEMPLATE_OPTIONS: Mapping[str, Ask] = {
    name: PROMPTS[name]
    for name in ("add_generation_prompt", "chat_template", "continue_final_message", "documents")
}

ONLY_SCHEMAS = (
    "of forms only a JSON schema can be followed: give it as `schema`, type `json_schema`"
)
RESPONSE_FORMAT: Mapping[str, Ask] = _all(
    ONLY_SCHEMAS,
    (
        "choice",
        "ebnf",
        "example",
        "format",
        "grammar",
        "json_schema",
        "parameters",
        "pattern",
        "regex",
        "structures",
        "value",
    ),
)

_ELSEWHERE = Ask("use `tool_calls`, and messages of role `tool`")
MESSAGE: Mapping[str, Ask] = {
    **_all("pictures and sounds are parts of `content`", tuple(MEDIA)),
    "attachments": Ask("pictures and sounds are parts of `content`"),
    "audio": Ask("replies are text"),
    "experimental_attachments": Ask("pictures and sounds are parts of `content`"),
    "files": Ask("files are not read: put their text into `content`"),
    "function_call": _ELSEWHERE,
    "functions": Ask("tools are declared beside `messages`, as `tools`"),
    "tool_responses": _ELSEWHERE,
    "tool_results": _ELSEWHERE,
    "tools": Ask("tools are declared beside `messages`, as `tools`"),
}

_SIZE = "how closely a picture is looked at is said by `detail` of `image_url`"
IMAGE: Mapping[str, Ask] = _all(
    _SIZE,
    (
        "fps",
        "max_pixels",
        "media_resolution",
        "min_pixels",
        "mm_processor_kwargs",
        "resized_height",
        "resized_width",
        "video_metadata",
    ),
)
_CONTENTS = _all(
    "a part holds one thing, that of its `type`",
    (
        "audio",
        "audio_url",
        "file",
        "image",
        "image_url",
        "input_audio",
        "refusal",
        "text",
        "video",
        "video_url",
    ),
)
PART: Mapping[str, Ask] = {**_CONTENTS, **IMAGE, "detail": Ask(_SIZE, ("auto",))}

CALL: Mapping[str, Ask] = {"custom": Ask("a call holds it with the type `custom`")}
CALLED: Mapping[str, Ask] = _all("a call has its values in `arguments`", ("args", "parameters"))
TOOL: Mapping[str, Ask] = {
    name: Ask("a declaration is in `function`: name, description and parameters")
    for name in ("custom", "input_schema", "inputSchema", "name", "parameters")
}
DECLARED: Mapping[str, Ask] = _all(
    "arguments are declared in `parameters`, by a JSON schema",
    ("arguments", "input_schema", "inputSchema", "parametersJsonSchema", "parameters_json_schema"),
)

SYNONYMS: Mapping[str, str] = {
    "random_seed": "seed",
    "repeat_penalty": "repetition_penalty",
    "stop_sequences": "stop",
    "stopping_strings": "stop",
}
"""Other servers' names of fields that mean the same."""

LIMITS = ("max_new_tokens", "max_output_tokens", "n_predict", "num_predict")
"""Other servers' names of `max_tokens`."""
