"""The text decoder's section of `config.json`, as frozen, checked fields."""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.attention import (
    MAX_HEADS,
    AttentionKind,
    RopeParameters,
    read_heads,
    read_layer_types,
    read_ropes,
)
from gemma4_compile.model_spec.config.fields import ConfigFields
from gemma4_compile.model_spec.config.kv_sharing import first_shared_layer, kv_sources
from gemma4_compile.model_spec.config.variants import (
    PHONE_METHOD,
    QAT_HINT,
    first_given,
    quantised_by,
    quantization,
    rounds_activations,
    stored_dtype,
    ties_head,
    token_if_any,
)

MAX_LAYERS = 512
MAX_WIDTH = 1 << 18  # channels of a hidden or intermediate vector
MAX_EXPERTS = 1 << 10
MAX_VOCABULARY = 1 << 22
MAX_POSITIONS = 1 << 24  # a position is exact in float32


@dataclass(frozen=True)
class TextConfig:
    """The text decoder, in the checkpoint's words; per-layer tuples have one entry per layer.

    Attributes
    ----------
    num_key_value_heads, head_dim : per layer, resolved from either form of the file
    hidden_size_per_layer_input : width of the per-layer embedding, 0 when there is none
    vocab_size_per_layer_input : rows of its table, vocab_size or more; 0 when there is none
    num_experts, top_k_experts, moe_intermediate_size : 0 when there are no experts
    dtype : the checkpoint's; constant scales are rounded to it
    bos_token_id, pad_token_id : NO_TOKEN where the vocabulary has them not
    eos_token_id : as the file has them; those outside of the vocabulary end no reply
    ties_head : the head is the token embedding's matrix; else it has one of its own
    bidirectional_images : on sliding layers, the rows of a picture see each other
    rounds_activations : the inputs and outputs of linear layers are rounded to int8, by steps that
        the checkpoint holds
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    layer_types: tuple[AttentionKind, ...]
    num_attention_heads: int
    num_key_value_heads: tuple[int, ...]
    head_dim: tuple[int, ...]
    sliding_window: int
    max_position_embeddings: int
    rms_norm_eps: float
    sliding_rope: RopeParameters
    full_rope: RopeParameters
    hidden_size_per_layer_input: int
    vocab_size_per_layer_input: int
    num_kv_shared_layers: int
    use_double_wide_mlp: bool
    num_experts: int
    top_k_experts: int
    moe_intermediate_size: int
    attention_k_eq_v: bool
    final_logit_softcapping: float | None
    dtype: str
    bos_token_id: int
    pad_token_id: int
    eos_token_id: tuple[int, ...]
    ties_head: bool = True
    bidirectional_images: bool = False
    rounds_activations: bool = False


def check_heads(config: TextConfig) -> None:
    """Refuse what no later stage asks again about heads and their rotation."""
    for index in range(config.num_hidden_layers):
        heads, dim = config.num_key_value_heads[index], config.head_dim[index]
        if dim % 2:
            raise ConfigError(
                f"config key `head_dim`: {dim} of layer {index} is odd; RoPE pairs need it even"
            )
        if config.num_attention_heads % heads:
            raise ConfigError(
                f"config key `num_key_value_heads`: {heads} of layer {index} does not divide "
                f"num_attention_heads = {config.num_attention_heads}"
            )
        rope = config.full_rope
        if config.layer_types[index] is AttentionKind.FULL and rope.partial_rotary_factor * dim < 2:
            raise ConfigError(
                f"config key `partial_rotary_factor`: {rope.partial_rotary_factor} of "
                f"head_dim {dim} rotates no pair"
            )


def check_sharing(config: TextConfig) -> None:
    """Refuse layers that share the keys of none, or of one with other heads."""
    sources = kv_sources(config.layer_types, config.num_kv_shared_layers)
    for index, (kind, source) in enumerate(zip(config.layer_types, sources, strict=True)):
        if source is None:
            first = first_shared_layer(config.num_hidden_layers, config.num_kv_shared_layers)
            raise ConfigError(
                f"config key `num_kv_shared_layers`: layer {index} shares the keys of a "
                f"{kind.value} layer, but layers 0 to {first - 1} hold none"
            )
        for name, values in (
            ("head_dim", config.head_dim),
            ("num_key_value_heads", config.num_key_value_heads),
        ):
            if values[index] != values[source]:
                raise ConfigError(
                    f"config key `{name}`: layer {index} shares the keys of layer {source}, "
                    f"but has {values[index]}, not {values[source]}"
                )


def _experts(text: ConfigFields) -> tuple[int, int, int]:
    """Number of experts, how many are chosen, their width; all 0 unless `enable_moe_block`."""
    names = ("num_experts", "top_k_experts", "moe_intermediate_size")
    if text.get("enable_moe_block") is None or not text.boolean("enable_moe_block"):
        for name in names:
            text.get(name)  # known keys without a meaning here
        return 0, 0, 0
    experts = text.integer(names[0], 1, MAX_EXPERTS)
    return experts, text.integer(names[1], 1, experts), text.integer(names[2], 1, MAX_WIDTH)


def _check_rounding(config: TextConfig, *, is_for_phones: bool) -> None:
    """Refuse what no checkpoint that rounds activations has, and what is not compiled with it."""
    if config.ties_head and is_for_phones:
        raise ConfigError(
            "config key `tie_word_embeddings`: expected false, as the head of a checkpoint for "
            "phones has steps of its own to round to",
            hint="download config.json again: the released ones have it",
        )
    if config.num_experts:
        raise ConfigError(
            "config key `enable_moe_block`: experts whose inputs are rounded by the checkpoint "
            "are not compiled",
            hint=QAT_HINT,
        )


def read_text(top: ConfigFields, text: ConfigFields) -> TextConfig:
    """Read the section; `top` is the whole file, which may be the section itself."""
    layers = text.integer("num_hidden_layers", 1, MAX_LAYERS)
    vocab = text.integer("vocab_size", 32, MAX_VOCABULARY)
    kinds = read_layer_types(text, layers)
    k_eq_v = text.boolean("attention_k_eq_v")
    kv_heads, head_dim = read_heads(text, kinds, k_eq_v)
    sliding_rope, full_rope = read_ropes(text)
    ple = 0
    if not text.is_null("hidden_size_per_layer_input"):
        ple = text.integer("hidden_size_per_layer_input", 0, MAX_WIDTH)
    experts, top_k, expert_width = _experts(text)
    ple_vocab = 0
    if not text.is_null("vocab_size_per_layer_input"):
        ple_vocab = text.integer("vocab_size_per_layer_input", 0, MAX_VOCABULARY)
    if ple and ple_vocab < vocab:
        raise ConfigError(
            f"config key `{text.key('vocab_size_per_layer_input')}`: expected vocab_size = "
            f"{vocab} or more, found {ple_vocab} rows of `embed_tokens_per_layer`",
            hint="resize both tables with model.resize_token_embeddings, and save the model again",
        )
    if ple and experts:
        raise ConfigError(
            f"config key `{text.key('enable_moe_block')}`: experts together with per-layer "
            "embeddings are not supported",
            hint="no released Gemma 4 has both",
        )
    quantized, dtype = quantization(top, text), stored_dtype(top, text)
    is_for_phones = quantised_by(quantized) == PHONE_METHOD
    if is_for_phones:  # rows of integers are multiplied by constants that are not rounded
        dtype = "float32"
    softcap = None
    if text.require("final_logit_softcapping") is not None:
        softcap = text.number("final_logit_softcapping", 0.0, 1e6)
    config = TextConfig(
        vocab_size=vocab,
        hidden_size=text.integer("hidden_size", 2, MAX_WIDTH),
        intermediate_size=text.integer("intermediate_size", 1, MAX_WIDTH),
        num_hidden_layers=layers,
        layer_types=kinds,
        num_attention_heads=text.integer("num_attention_heads", 1, MAX_HEADS),
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        sliding_window=text.integer("sliding_window", 1, MAX_POSITIONS),
        max_position_embeddings=text.integer("max_position_embeddings", 1, MAX_POSITIONS),
        rms_norm_eps=text.number("rms_norm_eps", 0.0, 0.1),
        sliding_rope=sliding_rope,
        full_rope=full_rope,
        hidden_size_per_layer_input=ple,
        vocab_size_per_layer_input=ple_vocab if ple else 0,
        num_kv_shared_layers=text.integer("num_kv_shared_layers", 0, layers - 1),
        use_double_wide_mlp=text.boolean("use_double_wide_mlp"),
        num_experts=experts,
        top_k_experts=top_k,
        moe_intermediate_size=expert_width,
        attention_k_eq_v=k_eq_v,
        final_logit_softcapping=softcap,
        dtype=dtype,
        bos_token_id=token_if_any("bos_token_id", text, top, vocab),
        pad_token_id=token_if_any("pad_token_id", text, top, vocab),
        eos_token_id=first_given("eos_token_id", top, text).token_ids("eos_token_id"),
        ties_head=ties_head(top, text),
        bidirectional_images=text.require("use_bidirectional_attention") == "vision",
        rounds_activations=rounds_activations(quantized),
    )
    if config.rounds_activations:
        _check_rounding(config, is_for_phones=is_for_phones)
    check_heads(config)
    check_sharing(config)
    return config
