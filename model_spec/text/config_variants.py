"""Kinds of checkpoints by their `config.json`, and those that are refused."""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config_fields import ConfigFields
from gemma4_compile.model_spec.text.config_keys import ONLY_VALUES

# The multimodal model types and those of their text decoders.
TEXT_TYPES: Mapping[str, str] = {
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
}
_DRAFTER_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")


def unsupported_type(model_type: object) -> ConfigError:
    """The error for a model type that is not compiled, by its name if it is known."""
    if isinstance(model_type, str) and model_type in _DRAFTER_TYPES:
        return ConfigError(
            f"config key `model_type`: {model_type!r} is a drafter, which guesses tokens for "
            "another model",
            hint="compile that model, a `gemma4` or `gemma4_unified`, with this as its --drafter",
        )
    return ConfigError(
        f"config key `model_type`: {model_type!r} is not a Gemma 4 text model",
        hint="supported: `gemma4`, `gemma4_unified` and their text decoders",
    )


def refuse_variants(top: ConfigFields, text: ConfigFields) -> None:
    """Raise ConfigError for a key whose value means another architecture or another storage."""
    for fields in (top, text):
        if fields.get("quantization_config") is not None:
            raise ConfigError(
                f"config key `{fields.key('quantization_config')}`: "
                "quantised checkpoints are not supported yet",
                hint="use the original bfloat16 checkpoint",
            )
        for name, value in ONLY_VALUES.items():
            fields.fixed(name, value)
    if text.get("use_bidirectional_attention") not in (None, "vision"):
        raise ConfigError(
            f"config key `{text.key('use_bidirectional_attention')}`: "
            f"expected null or 'vision', found {text.get('use_bidirectional_attention')!r}"
        )
    text.fixed("attention_bias", False)
    text.fixed("hidden_activation", "gelu_pytorch_tanh")


def ties_head(top: ConfigFields, text: ConfigFields) -> bool:
    """Return whether the head is the token embedding's: the top level's word, as in transformers.

    What a section below it says is not read there.
    """
    tied = top.boolean("tie_word_embeddings")
    text.get("tie_word_embeddings")
    return tied


def first_given(name: str, *places: ConfigFields) -> ConfigFields:
    """The first place where the key has a value, else the one that has its default."""
    given = [place for place in places if place.get(name) is not None]
    return next(iter((*given, *(place for place in places if place.has_default(name)))))


def stored_dtype(top: ConfigFields, text: ConfigFields) -> str:
    """The dtype that transformers loads in: the top level's (a saved text_config may be stale)."""
    for fields in (top, text):
        for name in ("dtype", "torch_dtype"):
            if fields.get(name) is not None:
                dtype = fields.one_of(name, ("bfloat16", "float16", "float32"))
                text.get("dtype"), text.get("torch_dtype")  # known keys, superseded
                return dtype
    return str(top.require("dtype"))
