"""`config.json` of a drafter (`gemma4_assistant`, `gemma4_unified_assistant`): checked fields.

The defaults are those of transformers 5.24, `models/gemma4_assistant` and
`models/gemma4_unified_assistant`. A drafter has no keys and values: each of its layers reads those
of the target's last layer of its kind that owns some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from gemma4_compile.model_spec.config.keys import IGNORED_KEYS, TEXT_DEFAULTS, TOP_DEFAULTS
from gemma4_compile.model_spec.config.variants import (
    refuse_variants,
    stored_dtype,
    ties_head,
)

DRAFTER_TYPES: Mapping[str, str] = {
    "gemma4_assistant": "gemma4_text",
    "gemma4_unified_assistant": "gemma4_unified_text",
}
"""Model types of drafters and those of their decoders."""

MAX_LAYERS = 64
MAX_WIDTH = 1 << 18
MAX_VOCABULARY = 1 << 22
MAX_POSITIONS = 1 << 24
MAX_CENTROIDS = 1 << 14
MAX_CHOSEN = 1 << 8  # clusters of a draft; a kernel's shared memory holds their numbers
MAX_CANDIDATES = 65_535  # tokens of a draft's clusters: the rows of a grid

MAX_DRAFTS = 8
"""Drafts of a round, at most."""
MAX_VERIFIED = MAX_DRAFTS + 1
"""Tokens that the target runs at once to hold drafts against: the drafts, and the one before."""

_BACKBONES = {"gemma4_assistant": 1536, "gemma4_unified_assistant": 3840}
_CLUSTERS: Mapping[str, object] = {
    "use_ordered_embeddings": False,
    "num_centroids": 2048,
    "centroid_intermediate_top_k": 32,
}
_IGNORED: Mapping[str, str] = {
    **IGNORED_KEYS,
    "block_size": "number of drafts, an option of the runtime",
    "num_assistant_tokens": "number of drafts, an option of the runtime",
}
# Of the decoder, where another value would mean another architecture.
_ABSENT: Mapping[str, object] = {
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
}
# Known keys of the decoder that say nothing about a drafter.
_UNUSED = (
    *("final_logit_softcapping", "max_position_embeddings", "use_bidirectional_attention"),
    *("bos_token_id", "pad_token_id", "eos_token_id"),
    *("num_experts", "top_k_experts", "moe_intermediate_size"),
)


@dataclass(frozen=True)
class DrafterConfig:
    """A drafter, in the checkpoint's words; per-layer tuples have one entry per layer.

    Attributes
    ----------
    model_type : which of DRAFTER_TYPES
    backbone_hidden_size : hidden size of the target that it was trained with
    num_centroids : clusters of the vocabulary, 0 where the head is dense
    centroid_top_k : clusters whose tokens are candidates of a draft, 0 where the head is dense
    ties_head : the head's matrix is a token embedding's, which nothing else reads
    """

    model_type: str
    vocab_size: int
    backbone_hidden_size: int
    hidden_size: int
    intermediate_size: int
    layer_types: tuple[AttentionKind, ...]
    num_attention_heads: int
    num_key_value_heads: tuple[int, ...]
    head_dim: tuple[int, ...]
    sliding_window: int
    rms_norm_eps: float
    sliding_rope: RopeParameters
    full_rope: RopeParameters
    num_centroids: int
    centroid_top_k: int
    dtype: str
    ties_head: bool = True

    hidden_size_per_layer_input = 0
    """As the decoder's layers ask for it."""

    @property
    def num_hidden_layers(self) -> int:
        """Number of layers."""
        return len(self.layer_types)

    @property
    def cluster_size(self) -> int:
        """Tokens of a cluster; the whole vocabulary where the head is dense."""
        return self.vocab_size // max(self.num_centroids, 1)

    @property
    def candidates(self) -> int:
        """Tokens that a draft is chosen from."""
        return self.centroid_top_k * self.cluster_size if self.num_centroids else self.vocab_size


def read_drafter(
    values: Mapping[str, object], unknown: Callable[[list[str]], None] = lambda names: None
) -> DrafterConfig:
    """Read a parsed `config.json` of a drafter, in either form of its decoder's section.

    Parameters
    ----------
    unknown : is given the keys that neither we nor transformers know, if there are any

    Raises
    ------
    ConfigError
        For an impossible value (by name), another architecture, or something that is no drafter.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"config.json: expected a JSON object, found {type(values).__name__}")
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in DRAFTER_TYPES:
        raise ConfigError(
            f"config key `model_type`: {model_type!r} is no drafter",
            hint=f"drafters: {', '.join(DRAFTER_TYPES)} (hub ids that end in `-assistant`)",
        )
    defaults = {**TOP_DEFAULTS, **_CLUSTERS, "backbone_hidden_size": _BACKBONES[model_type]}
    top = ConfigFields(values, "", defaults)
    top.get("model_type")
    text_type = DRAFTER_TYPES[model_type]
    text = top.fields("text_config", TEXT_DEFAULTS[text_type])
    text.fixed("model_type", text_type)
    refuse_variants(top, text)
    config = _read(model_type, top, text)
    names = text.unknown(_IGNORED) + top.unknown(_IGNORED)
    if names:
        unknown(names)
    return config


def _read(model_type: str, top: ConfigFields, text: ConfigFields) -> DrafterConfig:
    for name, value in _ABSENT.items():
        if text.get(name) is not None:
            text.fixed(name, value)
    for name in _UNUSED:
        text.get(name)
    layers = text.integer("num_hidden_layers", 1, MAX_LAYERS)
    vocab = text.integer("vocab_size", 32, MAX_VOCABULARY)
    kinds = read_layer_types(text, layers)
    _check_sharing(text, layers)
    kv_heads, head_dim = read_heads(text, kinds, text.boolean("attention_k_eq_v"))
    heads = text.integer("num_attention_heads", 1, MAX_HEADS)
    for index, count in enumerate(kv_heads):
        if heads % count:
            raise ConfigError(
                f"config key `{text.key('num_key_value_heads')}`: {count} of layer {index} does "
                f"not divide num_attention_heads = {heads}"
            )
    sliding_rope, full_rope = read_ropes(text)
    centroids, chosen = _clusters(top, vocab)
    return DrafterConfig(
        model_type=model_type,
        vocab_size=vocab,
        backbone_hidden_size=top.integer("backbone_hidden_size", 2, MAX_WIDTH),
        hidden_size=text.integer("hidden_size", 2, MAX_WIDTH),
        intermediate_size=text.integer("intermediate_size", 1, MAX_WIDTH),
        layer_types=kinds,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        sliding_window=text.integer("sliding_window", 1, MAX_POSITIONS),
        rms_norm_eps=text.number("rms_norm_eps", 0.0, 0.1),
        sliding_rope=sliding_rope,
        full_rope=full_rope,
        num_centroids=centroids,
        centroid_top_k=chosen,
        dtype=stored_dtype(top, text),
        ties_head=ties_head(top, text),
    )


def _check_sharing(text: ConfigFields, layers: int) -> None:
    """All layers share: 0 means that, too, as transformers reads it."""
    shared = text.integer("num_kv_shared_layers", 0, layers)
    if shared not in (0, layers):
        raise ConfigError(
            f"config key `{text.key('num_kv_shared_layers')}`: all {layers} layers of a drafter "
            f"read the target's keys, found {shared}"
        )


def _clusters(top: ConfigFields, vocab: int) -> tuple[int, int]:
    """Number of clusters and how many are chosen; both 0 where the head is dense."""
    if not top.boolean("use_ordered_embeddings"):
        top.get("num_centroids"), top.get("centroid_intermediate_top_k")
        return 0, 0
    count = top.integer("num_centroids", 1, min(MAX_CENTROIDS, vocab))
    if vocab % count:
        raise ConfigError(
            f"config key `num_centroids`: {count} clusters do not share the vocabulary of {vocab} "
            "tokens in equal parts"
        )
    chosen = top.integer("centroid_intermediate_top_k", 1, min(MAX_CHOSEN, count))
    if chosen * (vocab // count) > MAX_CANDIDATES:
        raise ConfigError(
            f"config key `centroid_intermediate_top_k`: {chosen} clusters have "
            f"{chosen * (vocab // count)} tokens, at most {MAX_CANDIDATES} are supported"
        )
    return count, chosen
