"""Where transformers makes other tokens than `tokenizer.json` alone: said, and no error.

A package and its clients tokenize by `tokenizer.json`. transformers changes it by what other files
say: it adds tokens that are missing there, and a class of another model makes a tokenizer of its
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gemma4_compile.package.prompt_checks import Finding
from gemma4_compile.template.chat_template import named_tokens

# Others are of a model, and tokenize as that model does.
_BY_THE_FILE = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend")
_OF_GEMMA = "Gemma"
# Lists of tokens without names.
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")
_SHOWN, _SHOWN_LENGTH = 5, 40
_SAVE = (
    "prompts may differ from transformers'; save the tokenizer again with it, which writes "
    "tokenizer.json: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
)


def token_findings(
    tokenizer: Mapping[str, object],
    tokenizer_config: Mapping[str, object],
    more_tokens: Mapping[str, object],
) -> Iterator[Finding]:
    """Hold `tokenizer.json` against what other files say of tokens.

    Parameters
    ----------
    tokenizer : the parsed `tokenizer.json`
    tokenizer_config : the parsed `tokenizer_config.json`, with the tokens of
        `special_tokens_map.json`
    more_tokens : the parsed `added_tokens.json`: ids by text
    """
    own = {str(token.get("content")): token for token in _objects(tokenizer.get("added_tokens"))}
    flags = _flagged(tokenizer_config)
    wanted = [*flags, *_texts(tokenizer_config)]
    if "added_tokens_decoder" not in tokenizer_config:
        wanted += more_tokens
    missing = list(dict.fromkeys(text for text in wanted if text and text not in own))
    if missing:
        yield Finding(
            f"transformers adds tokens that tokenizer.json does not have: {_shown(missing)}", _SAVE
        )
    other = [
        text
        for text, token in flags.items()
        if text in own
        and any(
            isinstance(token.get(flag), bool) and token[flag] != own[text].get(flag, False)
            for flag in _FLAGS
        )
    ]
    if other:
        yield Finding(
            "tokenizer_config.json has other flags (`lstrip`, `rstrip`, ...) than tokenizer.json "
            f"for {_shown(other)}",
            _SAVE,
        )
    yield from _of_class(tokenizer_config)


def _of_class(tokenizer_config: Mapping[str, object]) -> Iterator[Finding]:
    name = tokenizer_config.get("tokenizer_class")
    if isinstance(name, str) and name not in _BY_THE_FILE and not name.startswith(_OF_GEMMA):
        yield Finding(
            f"the tokenizer's class is that of another model, `{name[:_SHOWN_LENGTH]}` "
            "(tokenizer_config.json, or config.json where that names none)",
            "transformers may make other tokens with it than tokenizer.json says; for Gemma 4 "
            "`tokenizer_class` is `GemmaTokenizer`",
        )
    if tokenizer_config.get("split_special_tokens") is True:
        yield Finding(
            "tokenizer_config.json sets `split_special_tokens`, with which transformers takes "
            "control tokens as text",
            "packages take them as control tokens, as models are trained; remove the field",
        )


def _flagged(tokenizer_config: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    declared = tokenizer_config.get("added_tokens_decoder")
    tokens = _objects(list(declared.values()) if isinstance(declared, dict) else None)
    return {text: token for token in tokens if isinstance(text := token.get("content"), str)}


def _texts(tokenizer_config: Mapping[str, object]) -> Iterator[str]:
    """Texts of the special tokens that the files themselves list."""
    yield from named_tokens(tokenizer_config).values()
    for name in _LISTS:
        listed = tokenizer_config.get(name)
        for token in listed if isinstance(listed, list) else []:
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                yield text


def _objects(values: object) -> list[Mapping[str, object]]:
    return [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []


def _shown(texts: list[str]) -> str:
    names = ", ".join(repr(text[:_SHOWN_LENGTH]) for text in texts[:_SHOWN])
    return names + (f" and {len(texts) - _SHOWN} more" if texts[_SHOWN:] else "")
