r"""Gemma 4's conversation as the client assembles it: the chat part of `mlc-chat-config.json`.

The client glues strings together: one for the system message, one per message, one that opens the
reply. After a reply that ended by its stop token it keeps the KV state and forwards only the new
user message and the next opening; neither the stop token nor a separator after the reply is ever
forwarded. After any other end it starts over with the whole conversation. Both ways give the same
prompt because here every role string *closes the turn before it* and nothing follows a message::

    <bos>
    <|turn>system\nSYSTEM
    <turn|>\n<|turn>user\nQUESTION
    <turn|>\n<|turn>model\nANSWER
    <turn|>\n<|turn>user\nQUESTION
    <turn|>\n<|turn>model\n

What the client cannot express:

- A conversation without a system message. There is no condition in its strings, so it opens with an
  empty system turn, which is what the model's own template makes of an empty system message. A page
  that wants none loads with `conv_config: {render_empty_system_message: false}` and gives its first
  user message the name `OPEN_USER`, which then takes the place of the role string.
- Trimming. The template trims system, user and model text; the client takes them as they are.
- Removing reasoning. Where the reply opens with empty reasoning (below), KV reuse keeps it before
  earlier replies, and the template drops it; a page that resets the chat before each request
  follows the template.
- Tools. After a tool's response generation goes on inside the model's turn, but the client always
  opens a new one. So there is no `tool` role, and the client refuses such a message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gemma4_compile.errors import CheckpointError
from gemma4_compile.model_spec.config.fields import is_integer_of_64_bits
from gemma4_compile.options.sampling_ranges import (
    SAMPLING_RANGES,
    SamplingValueError,
    read_sampling,
)
from gemma4_compile.package.client_form import ClientForm

BEGIN_TURN = "<|turn>"
END_TURN = "<turn|>"
END_TURNS = (END_TURN, "<end_of_turn>")
"""That of Gemma 3n besides, whose tokenizer has no other."""
CLOSE = f"{END_TURN}\n"
OPEN_SYSTEM = f"{BEGIN_TURN}system\n"
OPEN_USER = f"{BEGIN_TURN}user\n"
OPEN_MODEL = f"{BEGIN_TURN}model\n"

FIRST_USER = "first_user"  # the key of what begins a conversation without a system message
GEMMA = ClientForm(
    bos="<bos>",
    system=(OPEN_SYSTEM, ""),
    default_system="",
    user=CLOSE + OPEN_USER,
    assistant=CLOSE + OPEN_MODEL,
    reply_opening="",
    first_user=OPEN_USER,
    role_after_system=True,
)
_PLAIN = ClientForm("", ("", ""), "", "", "", "", "", True)
MAX_STOP_IDS = 256  # the released checkpoints have 3
_EOS_HINT = "correct the file, or delete it to use the ids of config.json"
# The client's own defaults for what a checkpoint does not set.
NEUTRAL_SAMPLING: Mapping[str, float | int] = {
    name: SAMPLING_RANGES[name].neutral
    for name in (
        "temperature",
        "top_p",
        "top_k",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
    )
}


def chat_template_config(
    *,
    vocab_size: int,
    bos_token_id: int,
    eos_token_ids: Sequence[int],
    tokenizer: Mapping[str, object],
    generation_config: Mapping[str, object],
    form: ClientForm | None,
) -> dict[str, object]:
    """Return the chat fields of `mlc-chat-config.json`.

    Parameters
    ----------
    vocab_size : of the model; every id is below it
    bos_token_id : what prompts begin with, negative for none
    eos_token_ids : from the checkpoint's `config.json`; those that are no tokens are left out
    tokenizer : the parsed `tokenizer.json`
    generation_config : the parsed `generation_config.json`, empty if the checkpoint has none
    form : the strings of a conversation; None for a base model, which knows none

    Returns
    -------
    dict
        `conv_template`, `tokenizer_info`, the sampling defaults and the bos and eos ids.

    Raises
    ------
    CheckpointError
        If a stop id or a sampling default is none.
    """
    added = added_tokens(tokenizer)
    declared = declared_stops(generation_config, eos_token_ids)
    stops = [*declared, *(added[name] for name in END_TURNS if name in added)]
    stop_ids = [token_id for token_id in dict.fromkeys(stops) if 0 <= token_id < vocab_size]
    return {
        "conv_template": conversation_template(bos_token_id, stop_ids, form),
        **({} if form is None else {FIRST_USER: form.first_user}),
        "tokenizer_info": tokenizer_info(tokenizer),
        "bos_token_id": bos_token_id,
        "eos_token_id": stop_ids,
        **sampling_defaults(generation_config),
    }


def conversation_template(
    bos_token_id: int, stop_token_ids: Sequence[int], form: ClientForm | None
) -> dict[str, object]:
    """Return `conv_template`: see the module's docstring for how the client uses it.

    A checkpoint without a chat template is a base model, which knows no turns: messages are glued
    together as they are, and it goes on.
    """
    fields = (form or _PLAIN).fields()
    return {
        "name": "gemma4-text" if form is None else "gemma4",
        "system_template": fields["system_template"],
        "system_message": fields["system_message"],
        "system_prefix_token_ids": [bos_token_id]
        if bos_token_id >= 0 and (form is None or form.bos)
        else [],
        "add_role_after_system_message": fields["add_role_after_system_message"],
        "render_empty_system_message": True,
        "roles": fields["roles"],
        "role_templates": {"user": "{user_message}", "assistant": "{assistant_message}"},
        "messages": [],
        "seps": [""],
        "role_content_sep": "",
        "role_empty_sep": fields["role_empty_sep"],
        "stop_str": [],
        "stop_token_ids": list(stop_token_ids),
        "function_string": "",
        "use_function_calling": False,
    }


def sampling_defaults(generation_config: Mapping[str, object]) -> dict[str, float | int]:
    """Return the sampling fields: those of `generation_config.json`, neutral values for the rest.

    `top_k` is for our own runtime; the client has no such parameter. `do_sample: false` means
    temperature 0.
    """
    values = dict(NEUTRAL_SAMPLING)
    for name in NEUTRAL_SAMPLING:
        if generation_config.get(name) is None:
            continue
        try:
            values[name] = read_sampling(name, _in_range(name, generation_config[name]))
        except SamplingValueError as error:
            raise CheckpointError(
                f"generation_config.json: `{name}`: {error}",
                hint="correct the file, or delete it to use neutral sampling",
            ) from error
    if generation_config.get("do_sample") is False:
        values["temperature"] = 0.0
    return values


def _in_range(name: str, value: object) -> object:
    """The neutral value for other words of no limit: `top_k` -1, and a `top_p` above 1."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    no_limit = is_number and (name, value) == ("top_k", -1)
    if name == "top_p" and is_number:
        assert isinstance(value, int | float)
        no_limit = math.isfinite(value) and value > SAMPLING_RANGES[name].highest
    return SAMPLING_RANGES[name].neutral if no_limit else value


def tokenizer_info(tokenizer: Mapping[str, object]) -> dict[str, object]:
    """Return how token texts become bytes, for the client's grammar engine.

    Read from the steps of `tokenizer.json`: a `ByteFallback` decoder means SentencePiece spelling
    (U+2581 for a space, `<0x0A>` for a byte), `ByteLevel` means GPT-2's letters for bytes, neither
    means plain text.
    """
    decoders = _step_types(tokenizer.get("decoder"))
    if "ByteFallback" in decoders:
        method = "byte_fallback"
    elif "ByteLevel" in decoders:
        method = "byte_level"
    else:
        method = "raw"
    return {
        "token_postproc_method": method,
        "prepend_space_in_encode": "Prepend" in _step_types(tokenizer.get("normalizer")),
        "strip_space_in_decode": "Strip" in decoders,
    }


def added_tokens(tokenizer: Mapping[str, object]) -> dict[str, int]:
    """Ids of the added tokens of a parsed `tokenizer.json`."""
    added = tokenizer.get("added_tokens")
    found: dict[str, int] = {}
    for token in added if isinstance(added, list) else []:
        if isinstance(token, Mapping):
            name, token_id = token.get("content"), token.get("id")
            if isinstance(name, str) and isinstance(token_id, int):
                found[name] = token_id
    return found


def declared_stops(
    generation_config: Mapping[str, object], eos_token_ids: Sequence[int]
) -> list[int]:
    """Return the end-of-sequence ids that the files have, tokens of the model or not.

    Raises
    ------
    CheckpointError
        If they are no ids, or too many.
    """
    given = generation_config.get("eos_token_id")
    if given is None:
        given = list(eos_token_ids)
    declared = given if isinstance(given, list) else [given]
    declared = [int(i) if isinstance(i, float) and i.is_integer() else i for i in declared]
    if len(declared) > MAX_STOP_IDS:
        raise CheckpointError(
            f"generation_config.json: `eos_token_id` holds {len(declared)} ids; at most "
            f"{MAX_STOP_IDS} are supported",
            hint=_EOS_HINT,
        )
    for token_id in declared:
        if not is_integer_of_64_bits(token_id):
            raise CheckpointError(
                "generation_config.json: `eos_token_id` must hold token ids, found "
                f"{str(token_id)[:40]}",
                hint=_EOS_HINT,
            )
    return list(dict.fromkeys(declared))


def _step_types(step: object) -> set[str]:
    """Collect the `type` names of a tokenizer step and of the steps inside a sequence."""
    types: set[str] = set()
    rest = [step]
    while rest:
        item = rest.pop()
        if isinstance(item, Mapping):
            types.add(str(item.get("type"))[:40])
            for key in ("decoders", "normalizers", "pretokenizers"):
                inner = item.get(key)
                rest += inner if isinstance(inner, list) else []
    return types
