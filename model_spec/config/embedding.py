"""An encoder's `config.json` (EmbeddingGemma 2), as frozen, checked fields."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.attention import (
    MAX_HEADS,
    read_heads,
    read_layer_types,
    read_ropes,
)
from gemma4_compile.model_spec.config.fields import ConfigFields
from gemma4_compile.model_spec.config.text import (
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    TextConfig,
    check_heads,
)
from gemma4_compile.model_spec.config.variants import (
    first_given,
    quantization,
    rounds_activations,
    stored_dtype,
    token_if_any,
)
from gemma4_compile.model_spec.modality import TEXT_ONLY, Modality

MATRYOSHKA = (768, 512, 256, 128)
"""Sizes for which the released model is trained: the first channels of an embedding."""

MOST_TEXT_TOKENS = 16_384
"""Of a text, for which angles of RoPE are computed on the device to float32's own error."""

_MEDIA_TOKENS = {"image_token_id": 258_880, "video_token_id": 258_884, "audio_token_id": 258_881}


@dataclass(frozen=True)
class EmbeddingConfig:
    """What makes embeddings of an encoder's rows.

    Attributes
    ----------
    dim : channels of an embedding
    media_tokens : ids that stand for pictures and sounds, each a row of which the pad token's
        embedding is the place
    """

    dim: int
    media_tokens: tuple[int, ...] = ()


def read_encoder(top: ConfigFields, text: ConfigFields) -> TextConfig:
    """Read the text encoder's section; `top` is the whole file, which may be the section itself.

    What a decoder has and an encoder has not is absent: keys that are shared, a head, experts.
    """
    layers = text.integer("num_hidden_layers", 1, MAX_LAYERS)
    vocab = text.integer("vocab_size", 32, MAX_VOCABULARY)
    pattern = 6
    if text.get("sliding_window_pattern") is not None:
        pattern = text.integer("sliding_window_pattern", 1, MAX_LAYERS)
    kinds = read_layer_types(text, layers, pattern)
    kv_heads, head_dim = read_heads(text, kinds, True)
    sliding_rope, full_rope = read_ropes(text)
    if rounds_activations(quantization(top, text)):
        raise ConfigError(
            f"config key `{top.key('quantization_config')}`: an encoder whose activations are "
            "rounded by the checkpoint is not compiled",
            hint="give the checkpoint that it was quantised from",
        )
    config = TextConfig(
        vocab_size=vocab,
        hidden_size=text.integer("hidden_size", 2, MAX_WIDTH),
        intermediate_size=text.integer("intermediate_size", 1, MAX_WIDTH),
        num_hidden_layers=layers,
        layer_types=kinds,
        num_attention_heads=text.integer("num_attention_heads", 1, MAX_HEADS),
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        sliding_window=text.integer("sliding_window", 0, MAX_POSITIONS),
        max_position_embeddings=text.integer("max_position_embeddings", 1, MAX_POSITIONS),
        rms_norm_eps=text.number("rms_norm_eps", 0.0, 0.1),
        sliding_rope=sliding_rope,
        full_rope=full_rope,
        hidden_size_per_layer_input=text.integer("hidden_size_per_layer_input", 1, MAX_WIDTH),
        vocab_size_per_layer_input=0,
        num_kv_shared_layers=0,
        use_double_wide_mlp=False,
        num_experts=0,
        top_k_experts=0,
        moe_intermediate_size=0,
        attention_k_eq_v=False,
        final_logit_softcapping=None,
        dtype=stored_dtype(top, text),
        bos_token_id=token_if_any("bos_token_id", text, top, vocab),
        pad_token_id=token_if_any("pad_token_id", text, top, vocab),
        eos_token_id=first_given("eos_token_id", text, top).token_ids("eos_token_id"),
        ties_head=False,
    )
    for fields in (top, text):
        fields.get("tie_word_embeddings")  # there is no head
    check_heads(config)
    return config


def read_embedding(
    top: ConfigFields,
    text: ConfigFields,
    vocab_size: int,
    modalities: Collection[Modality] | None,
) -> EmbeddingConfig:
    """Read what follows the encoder, and refuse inputs other than text.

    `modalities` : inputs that a package shall take; None for all that there are
    """
    given = top is not text and any(
        top.get(name) is not None for name in ("vision_config", "audio_config")
    )
    if (modalities is None and given) or set(modalities or ()) - set(TEXT_ONLY):
        raise ConfigError(
            "pictures and sounds of EmbeddingGemma 2 are not compiled yet, its texts are",
            hint="leave `image` and `audio` out of --modalities",
        )
    tokens: tuple[int, ...] = ()
    if top is not text:
        found = [
            usual if top.get(name) is None else top.get(name)
            for name, usual in _MEDIA_TOKENS.items()
        ]
        tokens = tuple(one for one in found if type(one) is int and 0 <= one < vocab_size)
    return EmbeddingConfig(text.integer("embedding_dim", 1, MAX_WIDTH), tokens)
