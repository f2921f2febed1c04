"""Gemma 3n's text decoder in `config.json`: what it has besides the fields of every decoder."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.attention import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    AttentionKind,
    RopeParameters,
    read_layer_kinds,
)
from gemma4_compile.model_spec.config.fields import ConfigFields
from gemma4_compile.model_spec.config.text import (
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    TextConfig,
    check_heads,
    check_sharing,
)
from gemma4_compile.model_spec.config.variants import (
    WHOLE_HINT,
    first_given,
    quantization,
    rounds_activations,
    stored_dtype,
    ties_head,
    token_if_any,
)
from gemma4_compile.model_spec.modality import TEXT_ONLY, Modality

MAX_STREAMS = 6
_FULL_ATTENTION_EVERY = 5  # layers, where `layer_types` is not given
_SPARSE_LAYERS, _SPARSITY = 10, 0.95  # of models with more layers, where no pattern is given
_THETA = {
    AttentionKind.FULL: ("rope_theta", 1e6),
    AttentionKind.SLIDING: ("rope_local_base_freq", 1e4),
}


@dataclass(frozen=True)
class Gemma3nConfig:
    """What Gemma 3n's text decoder has besides.

    Attributes
    ----------
    streams : residual streams (`altup_num_inputs`), of which a layer runs on the active one
    active : its index
    scales_corrected : the active stream is scaled by channel before the per-layer input
    laurel_rank : inner width of the low-rank residual
    intermediate_sizes : width of each layer's MLP
    sparsities : share of each layer's gates that is cut off, 0 for none
    """

    streams: int
    active: int
    scales_corrected: bool
    laurel_rank: int
    intermediate_sizes: tuple[int, ...]
    sparsities: tuple[float, ...]


def _by_layer(text: ConfigFields, name: str, count: int) -> list[object]:
    """A list of one value a layer, or one value for all of them."""
    value = text.require(name)
    return text.array(name, count) if isinstance(value, list) else [value] * count


def _intermediate_sizes(text: ConfigFields, count: int) -> tuple[int, ...]:
    sizes = _by_layer(text, "intermediate_size", count)
    wrong = [size for size in sizes if type(size) is not int or not 1 <= size <= MAX_WIDTH]
    if wrong:
        raise ConfigError(
            f"config key `{text.key('intermediate_size')}`: expected integers from 1 to "
            f"{MAX_WIDTH}, found {str(wrong[0])[:40]!r}"
        )
    return tuple(size for size in sizes if isinstance(size, int))


def _sparsities(text: ConfigFields, count: int) -> tuple[float, ...]:
    if text.get("activation_sparsity_pattern") is None:
        sparse = _SPARSE_LAYERS if count > _SPARSE_LAYERS else 0
        return tuple(_SPARSITY if index < sparse else 0.0 for index in range(count))
    found = []
    for value in text.array("activation_sparsity_pattern", count):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0.0 <= float(str(value)) < 1.0:
            raise ConfigError(
                f"config key `{text.key('activation_sparsity_pattern')}`: expected shares from 0 "
                f"to below 1, found {str(value)[:40]!r}"
            )
        found.append(float(str(value)))
    return tuple(found)


def _rope(text: ConfigFields, kind: AttentionKind) -> RopeParameters:
    """The rotary embedding of a kind: in `rope_parameters`, or older files' keys beside it."""
    text.fixed("rope_scaling", None)
    name, default = _THETA[kind]
    theta = default if text.get(name) is None else text.number(name, 1.0, 1e12)
    if text.get("rope_parameters") is None:
        return RopeParameters("default", theta, 1.0)
    parent = text.fields("rope_parameters")
    if parent.get(kind.value) is None:
        return RopeParameters("default", theta, 1.0)
    fields = parent.fields(kind.value)
    fields.fixed("rope_type", "default")
    fields.fixed("partial_rotary_factor", 1.0)
    if fields.get("rope_theta") is not None:
        theta = fields.number("rope_theta", 1.0, 1e12)
    fields.refuse_unknown({})
    return RopeParameters("default", theta, 1.0)


def _refuse_towers(modalities: Collection[Modality] | None) -> None:
    """Refuse pictures and sounds; None, all that there is, is the text."""
    for kind in sorted(set(modalities or ()) - TEXT_ONLY):
        raise ConfigError(
            f"--modalities: `{kind.value}` of Gemma 3n: its vision and audio towers are not "
            "compiled, only its text",
            hint="leave `image` and `audio` out of --modalities",
        )


def read_gemma3n(
    top: ConfigFields, text: ConfigFields, modalities: Collection[Modality] | None
) -> tuple[TextConfig, Gemma3nConfig]:
    """Read the section; `top` is the whole file, which may be the section itself.

    `modalities` : inputs that a package is to take; None for all that there are

    Raises
    ------
    ConfigError
        For an impossible value (by name), a checkpoint that rounds activations, or a modality
        besides text.
    """
    _refuse_towers(modalities)
    layers = text.integer("num_hidden_layers", 1, MAX_LAYERS)
    vocab = text.integer("vocab_size", 32, MAX_VOCABULARY)
    sizes = _intermediate_sizes(text, layers)
    softcap = None
    if text.require("final_logit_softcapping") is not None:
        softcap = text.number("final_logit_softcapping", 0.0, 1e6)
    if rounds_activations(quantization(top, text)):
        raise ConfigError(
            "config key `quantization_config`: Gemma 3n whose activations are rounded by the "
            "checkpoint is not compiled",
            hint=WHOLE_HINT,
        )
    text.fixed("use_bidirectional_attention", None)
    config = TextConfig(
        vocab_size=vocab,
        hidden_size=text.integer("hidden_size", 2, MAX_WIDTH),
        intermediate_size=max(sizes),
        num_hidden_layers=layers,
        layer_types=read_layer_kinds(text, layers, _FULL_ATTENTION_EVERY),
        num_attention_heads=text.integer("num_attention_heads", 1, MAX_HEADS),
        num_key_value_heads=(text.integer("num_key_value_heads", 1, MAX_HEADS),) * layers,
        head_dim=(text.integer("head_dim", 2, MAX_HEAD_DIM),) * layers,
        sliding_window=text.integer("sliding_window", 1, MAX_POSITIONS),
        max_position_embeddings=text.integer("max_position_embeddings", 1, MAX_POSITIONS),
        rms_norm_eps=text.number("rms_norm_eps", 0.0, 0.1),
        sliding_rope=_rope(text, AttentionKind.SLIDING),
        full_rope=_rope(text, AttentionKind.FULL),
        hidden_size_per_layer_input=text.integer("hidden_size_per_layer_input", 1, MAX_WIDTH),
        vocab_size_per_layer_input=text.integer("vocab_size_per_layer_input", 1, MAX_VOCABULARY),
        num_kv_shared_layers=text.integer("num_kv_shared_layers", 0, layers - 1),
        use_double_wide_mlp=False,
        num_experts=0,
        top_k_experts=0,
        moe_intermediate_size=0,
        attention_k_eq_v=False,
        final_logit_softcapping=softcap,
        dtype=stored_dtype(top, text),
        bos_token_id=token_if_any("bos_token_id", text, top, vocab),
        pad_token_id=token_if_any("pad_token_id", text, top, vocab),
        eos_token_id=first_given("eos_token_id", top, text).token_ids("eos_token_id"),
        ties_head=ties_head(top, text),
    )
    check_heads(config)
    check_sharing(config)
    streams = text.integer("altup_num_inputs", 2, MAX_STREAMS)
    return config, Gemma3nConfig(
        streams=streams,
        active=text.integer("altup_active_idx", 0, streams - 1),
        scales_corrected=text.boolean("altup_correct_scale"),
        laurel_rank=text.integer("laurel_rank", 1, MAX_WIDTH),
        intermediate_sizes=sizes,
        sparsities=_sparsities(text, layers),
    )
