"""Gemma4Config: the checkpoint's `config.json` as frozen, checked fields.

The only place where the released sizes differ: no later stage asks for a model's name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.audio.config import AnyAudioConfig, read_audio
from gemma4_compile.model_spec.config_fields import ConfigFields
from gemma4_compile.model_spec.drafter.config import DrafterConfig
from gemma4_compile.model_spec.modality import TEXT_ONLY, Modality
from gemma4_compile.model_spec.text.attention_config import (
    MAX_HEADS,
    AttentionKind,
    RopeParameters,
    read_heads,
    read_layer_types,
    read_rope,
)
from gemma4_compile.model_spec.text.config_keys import (
    IGNORED_KEYS,
    IGNORED_TOP_KEYS,
    TEXT_DEFAULTS,
    TOP_DEFAULTS,
)
from gemma4_compile.model_spec.text.config_variants import (
    TEXT_TYPES,
    check_pad,
    first_given,
    refuse_variants,
    stored_dtype,
    ties_head,
    token_if_any,
    unsupported_type,
)
from gemma4_compile.model_spec.text.kv_sharing import first_shared_layer, kv_sources
from gemma4_compile.model_spec.vision.config import AnyVisionConfig, read_vision

PRESETS_DIR = Path(__file__).parents[1] / "presets"

MAX_LAYERS = 512
MAX_WIDTH = 1 << 18  # channels of a hidden or intermediate vector
MAX_EXPERTS = 1 << 10
MAX_VOCABULARY = 1 << 22
MAX_POSITIONS = 1 << 24  # a position is exact in float32


_SECTIONS = {Modality.IMAGE: "vision_config", Modality.AUDIO: "audio_config"}


@dataclass(frozen=True)
class Gemma4Config:
    """The text decoder, in the checkpoint's words; per-layer tuples have one entry per layer.

    With the sections of the other inputs that a package takes.

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
    vision, audio : None where a package takes no pictures, no sounds
    drafter : of a checkpoint of its own; None where a package has none
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
    vision: AnyVisionConfig | None = None
    audio: AnyAudioConfig | None = None
    drafter: DrafterConfig | None = None

    @property
    def modalities(self) -> frozenset[Modality]:
        """Inputs of a package of this config."""
        given = {Modality.IMAGE: self.vision, Modality.AUDIO: self.audio}
        return TEXT_ONLY | {modality for modality, section in given.items() if section is not None}

    @property
    def whole_images(self) -> bool:
        """Return whether the rows of a picture see each other, so that no chunk may cut it."""
        return self.bidirectional_images and self.vision is not None

    @classmethod
    def from_dict(
        cls,
        values: Mapping[str, object],
        unknown: Callable[[list[str]], None] = lambda names: None,
        modalities: Collection[Modality] | None = TEXT_ONLY,
    ) -> Gemma4Config:
        """Read a parsed `config.json`: the hub's form, or transformers 5.24's `per_layer_config`.

        What is not given has transformers' default.

        Parameters
        ----------
        unknown : is given the keys that neither we nor transformers know, if there are any
        modalities : inputs whose sections are read; None for all that there are

        Raises
        ------
        ConfigError
            For an impossible value (by name), or an unsupported variant.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"config.json: expected a JSON object, found {type(values).__name__}")
        top = ConfigFields(values, "", TOP_DEFAULTS)
        model_type = top.get("model_type")
        if not isinstance(model_type, str):
            raise unsupported_type(model_type)
        if model_type in TEXT_TYPES:
            defaults = TEXT_DEFAULTS[TEXT_TYPES[model_type]]
            text = top.fields("text_config", defaults)
            text.fixed("model_type", TEXT_TYPES[model_type])
        elif model_type in TEXT_TYPES.values():
            top = text = ConfigFields(values, "", TEXT_DEFAULTS[model_type])
            text.get("model_type")
        else:
            raise unsupported_type(model_type)
        refuse_variants(top, text)
        config = _read_text(top, text)
        names = text.unknown(IGNORED_KEYS)
        wanted = modalities
        if wanted is None:
            wanted = {kind for kind, name in _SECTIONS.items() if top.get(name) is not None}
        if Modality.IMAGE in wanted:
            config = replace(config, vision=read_vision(top, config.vocab_size, names))
        if Modality.AUDIO in wanted:
            config = replace(config, audio=read_audio(top, config.vocab_size, names))
        _check_media_tokens(config)
        has_media = config.vision is not None or config.audio is not None
        check_pad(config.pad_token_id, is_read=has_media and config.hidden_size_per_layer_input > 0)
        if top is not text:
            names += top.unknown(IGNORED_TOP_KEYS)
        if names:
            unknown(names)
        return config

    @classmethod
    def from_preset(
        cls, name: str, modalities: Collection[Modality] | None = TEXT_ONLY
    ) -> Gemma4Config:
        """Read the config of a released size, by the last part of its hub id (`gemma-4-E2B-it`)."""
        if name not in preset_names():
            raise ConfigError(
                f"there is no preset `{name}`", hint=f"presets: {', '.join(preset_names())}"
            )
        values = json.loads((PRESETS_DIR / f"{name}.json").read_text("utf-8"))
        return cls.from_dict(values, modalities=modalities)


def preset_names() -> tuple[str, ...]:
    """Names of the configs that ship with the package."""
    return tuple(sorted(path.stem for path in PRESETS_DIR.glob("*.json")))


def _check_media_tokens(config: Gemma4Config) -> None:
    """Refuse one id for two tokens: which medium takes its place could not be told."""
    seen: dict[int, str] = {}
    for kind, part in ((Modality.IMAGE, config.vision), (Modality.AUDIO, config.audio)):
        tokens = {} if part is None else asdict(part.tokens)
        for name, token in tokens.items():
            what = f"`{name}` of {kind.value} input"
            if token in seen:
                raise ConfigError(f"config.json has token {token} as {seen[token]} and as {what}")
            seen[token] = what


def _check_attention(config: Gemma4Config) -> None:
    """Refuse what no later stage asks again about heads, layer kinds and sharing."""
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


def _read_text(top: ConfigFields, text: ConfigFields) -> Gemma4Config:
    layers = text.integer("num_hidden_layers", 1, MAX_LAYERS)
    vocab = text.integer("vocab_size", 32, MAX_VOCABULARY)
    kinds = read_layer_types(text, layers)
    k_eq_v = text.boolean("attention_k_eq_v")
    kv_heads, head_dim = read_heads(text, kinds, k_eq_v)
    rope = text.fields("rope_parameters")
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
    softcap = None
    if text.require("final_logit_softcapping") is not None:
        softcap = text.number("final_logit_softcapping", 0.0, 1e6)
    config = Gemma4Config(
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
        sliding_rope=read_rope(rope, AttentionKind.SLIDING),
        full_rope=read_rope(rope, AttentionKind.FULL),
        hidden_size_per_layer_input=ple,
        vocab_size_per_layer_input=ple_vocab if ple else 0,
        num_kv_shared_layers=text.integer("num_kv_shared_layers", 0, layers - 1),
        use_double_wide_mlp=text.boolean("use_double_wide_mlp"),
        num_experts=experts,
        top_k_experts=top_k,
        moe_intermediate_size=expert_width,
        attention_k_eq_v=k_eq_v,
        final_logit_softcapping=softcap,
        dtype=stored_dtype(top, text),
        bos_token_id=token_if_any("bos_token_id", text, top, vocab),
        pad_token_id=token_if_any("pad_token_id", text, top, vocab),
        eos_token_id=first_given("eos_token_id", top, text).token_ids("eos_token_id"),
        ties_head=ties_head(top, text),
        bidirectional_images=text.require("use_bidirectional_attention") == "vision",
    )
    rope.refuse_unknown({})
    _check_attention(config)
    return config
