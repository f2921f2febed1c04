"""Tokenizer files from the metadata of a GGUF file, as far as it holds them.

A file has the tokens, their types and the merges. What it has not is the same in all of Gemma 4:
spaces become `▁`, newlines are merged with newlines alone, bytes stand in for unknown letters.
Which of its plain tokens a tokenizer takes whole out of a text, as it takes control tokens, a file
does not say. Those that no merge makes may be such ones: they are named, and `--tokenizer` knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemma4_compile.checkpoint.gguf.metadata import Metadata
from gemma4_compile.errors import CheckpointError, printable
from gemma4_compile.options.process import warn
from gemma4_compile.types import JsonObject

MODEL = "gemma4"
OPTION_HINT = (
    "give the tokenizer with --tokenizer: the hub id (such as google/gemma-4-E2B-it) or the "
    "directory of the checkpoint that the file was made from; or put its files beside this one, in "
    "a folder that you give in its place"
)
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_TAKEN_WHOLE = (_UNKNOWN, _CONTROL, _USER_DEFINED)
_SPACE = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_EMPTY_SLOT = re.compile(r"<unused\d+>")
_SHOWN, _SHOWN_LETTERS = 5, 40
# Control tokens of Gemma 4 that llama.cpp's converter marks as the user's, to show them in replies.
_SHOWN_CONTROL = frozenset(
    (
        *("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>"),
        *("<|tool_response>", "<tool_response|>", '<|"|>'),
    )
)
_STOPS = ("<turn|>", "<|tool_response>")
"""Tokens that end a reply of a conversation, besides the file's own."""

_SAMPLING = {"temperature": ("temp", 1.0), "top_k": ("top_k", 64), "top_p": ("top_p", 0.95)}
"""Keys of `general.sampling`, and what all released models have."""


@dataclass(frozen=True)
class TokenizerFiles:
    """What a checkpoint's directory holds for texts, parsed; `templates` by their names."""

    tokenizer: JsonObject
    tokenizer_config: JsonObject
    templates: Mapping[str, str]


def tokens_of(values: Metadata) -> list[str]:
    """The tokens by their ids; none of a file without a vocabulary."""
    return values.texts("tokenizer.ggml.tokens")


def rebuilt(values: Metadata, where: str) -> TokenizerFiles:
    """The files of the tokenizer that a file was made with.

    Raises
    ------
    CheckpointError
        If the file does not hold it, or holds another kind.
    """
    model = values.text("tokenizer.ggml.model")
    tokens, merges = tokens_of(values), values.texts("tokenizer.ggml.merges")
    types = values.integers("tokenizer.ggml.token_type")
    found = f"`{where}` has a tokenizer of the kind {str(model)[:_SHOWN_LETTERS]!r}"
    if model != MODEL or not tokens or not merges:
        what = found if model not in (None, "none", MODEL) else f"`{where}` has no whole tokenizer"
        raise CheckpointError(
            f"{what}, expected {MODEL!r} with tokens and merges", hint=OPTION_HINT
        )
    if len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise CheckpointError(
            f"the tokenizer of `{where}` is damaged: {len(types)} types for {len(tokens)} tokens, "
            f"{len(set(tokens))} of them different",
            hint=OPTION_HINT,
        )
    ids = {token: index for index, token in enumerate(tokens)}
    pairs = [_pair(merge, ids, where) for merge in merges]
    _check_bytes(tokens, types, where)
    _warn_of_unmade(tokens, types, pairs, where)
    unknown = values.integer("tokenizer.ggml.unknown_token_id", ids.get("<unk>", -1))
    if not 0 <= unknown < len(tokens):
        raise CheckpointError(
            f"the tokenizer of `{where}` names no unknown token", hint=OPTION_HINT
        )
    added = [
        _added(index, tokens[index], kind, where)
        for index, kind in enumerate(types)
        if kind in _TAKEN_WHOLE
    ]
    return TokenizerFiles(
        _tokenizer(ids, pairs, tokens[unknown], added),
        _tokenizer_config(values, tokens),
        templates_of(values),
    )


def _pair(merge: str, ids: Mapping[str, int], where: str) -> list[str]:
    parts = merge.split(" ")
    if len(parts) != 2 or any(token not in ids for token in (*parts, "".join(parts))):
        raise CheckpointError(
            f"the tokenizer of `{where}` is damaged: {merge[:_SHOWN_LETTERS]!r} is no merge of two "
            "tokens to another",
            hint=OPTION_HINT,
        )
    return parts


def _check_bytes(tokens: Sequence[str], types: Sequence[int], where: str) -> None:
    given = {tokens[index] for index, kind in enumerate(types) if kind == _BYTE}
    if len(given) != 256 or not all(_BYTE_TOKEN.fullmatch(token) for token in given):
        raise CheckpointError(
            f"the tokenizer of `{where}` has {len(given)} tokens for bytes, expected 256",
            hint=OPTION_HINT,
        )


def _warn_of_unmade(
    tokens: Sequence[str], types: Sequence[int], pairs: Sequence[Sequence[str]], where: str
) -> None:
    """Name plain tokens of several letters that no merge makes."""
    made = {first + second for first, second in pairs}
    unmade = [
        token
        for token, kind in zip(tokens, types, strict=True)
        if kind == _NORMAL
        and len(token) > 1
        and token not in made
        and not _EMPTY_SLOT.fullmatch(token)
    ]
    if unmade:
        shown = ", ".join(f"`{printable(one[:_SHOWN_LETTERS])}`" for one in unmade[:_SHOWN])
        more = f" and {len(unmade) - _SHOWN} more" if unmade[_SHOWN:] else ""
        warn(
            f"the tokenizer is rebuilt from `{where}`, which does not say whether {shown}{more} "
            "are taken whole out of a text: here they are letters like others",
            OPTION_HINT,
        )


def _added(index: int, token: str, kind: int, where: str) -> JsonObject:
    if " " in token or _SPACE in token:
        raise CheckpointError(
            f"the tokenizer of `{where}` has the token {token[:_SHOWN_LETTERS]!r} with a space, "
            "and does not say how it is found in a text",
            hint=OPTION_HINT,
        )
    return {
        "id": index,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": kind != _USER_DEFINED or token in _SHOWN_CONTROL,
    }


def _tokenizer(
    ids: Mapping[str, int],
    pairs: Sequence[Sequence[str]],
    unknown: str,
    added: Sequence[JsonObject],
) -> JsonObject:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "\n+"},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": dict(ids),
            "merges": [list(pair) for pair in pairs],
        },
    }


def _tokenizer_config(values: Metadata, tokens: Sequence[str]) -> JsonObject:
    keys = {
        "bos_token": "bos_token_id",
        "eos_token": "eos_token_id",
        "unk_token": "unknown_token_id",
        "pad_token": "padding_token_id",
        "mask_token": "mask_token_id",
    }
    named = {}
    for name, key in keys.items():
        index = values.optional_integer(f"tokenizer.ggml.{key}")
        if index is not None and 0 <= index < len(tokens):
            named[name] = tokens[index]
    return {
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        **named,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def templates_of(values: Metadata) -> dict[str, str]:
    """Chat templates by their names; none of a base model."""
    found = {"default": values.text("tokenizer.chat_template")}
    for name in values.texts("tokenizer.chat_templates"):
        if re.fullmatch(r"\w{1,64}", name, re.ASCII):
            found[name] = values.text(f"tokenizer.chat_template.{name}")
    return {name: text for name, text in found.items() if text is not None}


def generation_config(values: Metadata) -> JsonObject:
    """The parsed `generation_config.json`: tokens that end a reply, sampling, forbidden tokens."""
    tokens = tokens_of(values)
    stops = [
        values.integer(f"tokenizer.ggml.{name}", -1)
        for name in ("eos_token_id", "eot_token_id", "eom_token_id")
    ]
    if values.get("tokenizer.chat_template") is not None:
        stops += [tokens.index(token) for token in _STOPS if token in tokens]
    sampling = {
        name: values.number(f"general.sampling.{key}", usual)
        for name, (key, usual) in _SAMPLING.items()
    }
    suppressed = values.integers("tokenizer.ggml.suppress_tokens")
    return {
        "do_sample": True,
        "eos_token_id": sorted({stop for stop in stops if stop >= 0} or {1}),
        **sampling,
        "top_k": int(sampling["top_k"]),
        **({"suppress_tokens": suppressed} if suppressed else {}),
    }
