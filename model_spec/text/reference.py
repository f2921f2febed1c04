"""The forward pass of the text decoder in NumPy float32: the meaning that tests compare with.

Written for reading, not for speed: the whole sequence at once, no cache, every layer on every
position. It takes the config alone, so it shares nothing with the layer plan and the parameter
table. The steps are those of transformers
5.24.0, `models/gemma4/modeling_gemma4.py`; `tests/parity/test_reference.py` holds the two together.
Axes: S query position, T key position, H query head, K KV head, D head_dim, L layer, P width of the
per-layer embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gemma4_compile import abi
from gemma4_compile.model_spec.config.attention import AttentionKind, RopeParameters
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.scales import (
    PER_LAYER_INPUT_SCALE,
    embedding_scale,
    per_layer_embedding_scale,
    per_layer_projection_scale,
)

Float32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Weights = Mapping[str, Float32Array]

_SQRT_2_OVER_PI = np.float32(np.sqrt(2.0 / np.pi))
ATTENTION_SCALE = np.float32(1.0)  # scores are not divided by sqrt(head_dim)


@dataclass(frozen=True)
class MediaRows:
    """Rows of pictures and sounds in the places of a sequence's placeholder tokens.

    Attributes
    ----------
    modality : (S,) of every position: `abi.MODALITY_TEXT`, `MODALITY_MEDIA` (pictures) or
        `MODALITY_AUDIO`
    rows : (media positions, hidden_size), in their order; not times sqrt(hidden_size)
    """

    modality: IntArray
    rows: Float32Array

    @property
    def positions(self) -> npt.NDArray[np.bool_]:
        """Return the positions that are no tokens: (S,)."""
        positions: npt.NDArray[np.bool_] = self.modality != abi.MODALITY_TEXT
        return positions


@dataclass(frozen=True)
class ForwardResult:
    """Result of a forward.

    Attributes
    ----------
    logits : (S, vocab_size)
    hidden_states : the residual stream (S, hidden_size) after every layer
    normed : (S, hidden_size), the last of them after the final norm
    keys_values : K and V (S, K, D) by the layer that owns them
    """

    logits: Float32Array
    hidden_states: tuple[Float32Array, ...]
    normed: Float32Array
    keys_values: Mapping[int, tuple[Float32Array, Float32Array]]


class RopeConfig(Protocol):
    """The part of a config that defines how positions rotate."""

    @property
    def sliding_rope(self) -> RopeParameters: ...  # noqa: D102

    @property
    def full_rope(self) -> RopeParameters: ...  # noqa: D102


def linear(x: Float32Array, weight: Float32Array) -> Float32Array:
    """``weight x`` for every row of x; the weight is (out, in)."""
    product: Float32Array = x @ weight.T
    return product


def rms_norm(x: Float32Array, weight: Float32Array | None, eps: float) -> Float32Array:
    """``x / sqrt(mean(x**2) + eps) * weight`` over the last axis; the weight is w, not 1 + w."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    root: Float32Array = np.sqrt(mean_square + np.float32(eps))
    normed = x / root
    return normed if weight is None else normed * weight


def gelu(x: Float32Array) -> Float32Array:
    """GELU in its tanh form."""
    inner = _SQRT_2_OVER_PI * (x + np.float32(0.044715) * x * x * x)
    shape: Float32Array = np.tanh(inner)
    return np.float32(0.5) * x * (np.float32(1.0) + shape)


def soft_cap(logits: Float32Array, cap: float | None) -> Float32Array:
    """``cap * tanh(logits / cap)``."""
    return logits if cap is None else np.float32(cap) * np.tanh(logits / np.float32(cap))


def inverse_frequencies(config: RopeConfig, kind: AttentionKind, head_dim: int) -> Float32Array:
    """Radians per position of each of the head_dim / 2 pairs; 0 for pairs that do not rotate.

    `proportional` rotates the first ``factor * head_dim / 2`` pairs, and still divides by the whole
    head_dim.
    """
    rope = config.sliding_rope if kind is AttentionKind.SLIDING else config.full_rope
    pair = np.arange(head_dim // 2, dtype=np.float64)
    frequencies = rope.rope_theta ** (-2.0 * pair / head_dim)
    if rope.rope_type == "proportional":
        frequencies[int(rope.partial_rotary_factor * head_dim // 2) :] = 0.0
    return frequencies.astype(np.float32)


def rotate(x: Float32Array, frequencies: Float32Array, first: int = 0) -> Float32Array:
    """Apply RoPE to (S, heads, D) from a position on: j is paired with dimension j + D / 2."""
    position = np.arange(first, first + x.shape[0], dtype=np.float32)
    angle = (position[:, None] * frequencies)[:, None, :]
    cos, sin = np.cos(angle), np.sin(angle)
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def visible(
    length: int, kind: AttentionKind, window: int, pictures: IntArray | None = None
) -> npt.NDArray[np.bool_]:
    """Return the keys (columns) that a query (row) sees.

    Up to itself; on sliding layers `window` of them, and the other rows of its picture, also those
    ahead. `pictures` (S,) numbers the picture of each row, -1 for none; None where rows of pictures
    are causal.
    """
    distance = np.arange(length)[:, None] - np.arange(length)[None, :]
    seen = distance >= 0
    if kind is AttentionKind.FULL:
        return seen
    if pictures is not None:
        seen |= (pictures[:, None] == pictures[None, :]) & (pictures[:, None] >= 0)
    return seen & (distance < window)


def picture_numbers(modality: IntArray) -> IntArray:
    """The picture of each row, -1 for none: a maximal run of `abi.MODALITY_MEDIA` is a picture."""
    inside = modality == abi.MODALITY_MEDIA
    begins = inside & ~np.concatenate([[False], inside[:-1]])
    return np.where(inside, np.cumsum(begins) - 1, -1)


def attend(
    query: Float32Array, key: Float32Array, value: Float32Array, mask: npt.NDArray[np.bool_]
) -> Float32Array:
    """Softmax attention of (S, H, D) over (T, K, D); query head h reads KV head h // (H / K)."""
    group = query.shape[1] // key.shape[1]
    key, value = np.repeat(key, group, axis=1), np.repeat(value, group, axis=1)
    scores = np.einsum("shd,thd->hst", query, key, optimize=True) * ATTENTION_SCALE
    scores = np.where(mask, scores, np.float32(-np.inf))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hst,thd->shd", weights, value, optimize=True).reshape(query.shape[0], -1)


def kv_source(config: Gemma4Config, layer: int) -> int:
    """The layer whose K and V `layer` reads: itself, or the last own layer of its kind."""
    first_shared = config.num_hidden_layers - config.num_kv_shared_layers
    if layer < first_shared:
        return layer
    kind = config.layer_types[layer]
    return max(owner for owner in range(first_shared) if config.layer_types[owner] is kind)


def keys_and_values(
    config: Gemma4Config, weights: Weights, layer: int, x: Float32Array
) -> tuple[Float32Array, Float32Array]:
    """Keys and values (S, K, D) of an owning layer from its normed input (S, hidden_size)."""
    prefix, kind = f"layers.{layer}.self_attn.", config.layer_types[layer]
    head_dim, eps = config.head_dim[layer], config.rms_norm_eps
    raw_key = linear(x, weights[prefix + "k_proj.weight"]).reshape(x.shape[0], -1, head_dim)
    if config.attention_k_eq_v and kind is AttentionKind.FULL:
        raw_value = raw_key  # before norm and RoPE, so that K and V still differ
    else:
        raw_value = linear(x, weights[prefix + "v_proj.weight"]).reshape(raw_key.shape)
    key = rotate(
        rms_norm(raw_key, weights[prefix + "k_norm.weight"], eps),
        inverse_frequencies(config, kind, head_dim),
    )
    return key, rms_norm(raw_value, None, eps)  # V is normed although no weight for it is stored


def per_layer_inputs(
    config: Gemma4Config, weights: Weights, ids: IntArray, x: Float32Array
) -> Float32Array:
    """Per-layer embedding (S, L, P): the token's own row and a projection of its embedding."""
    shape = (len(ids), config.num_hidden_layers, config.hidden_size_per_layer_input)
    token = weights["embed_tokens_per_layer.weight"][ids].reshape(shape)
    token = token * np.float32(per_layer_embedding_scale(config))
    context = linear(x, weights["per_layer_model_projection.weight"])
    context = context.reshape(shape) * np.float32(per_layer_projection_scale(config))
    context = rms_norm(context, weights["per_layer_projection_norm.weight"], config.rms_norm_eps)
    return (context + token) * np.float32(PER_LAYER_INPUT_SCALE)


def feed_forward(weights: Weights, prefix: str, x: Float32Array) -> Float32Array:
    """``down(gelu(gate x) * (up x))``."""
    gate = linear(x, weights[prefix + "mlp.gate_proj.weight"])
    up = linear(x, weights[prefix + "mlp.up_proj.weight"])
    return linear(gelu(gate) * up, weights[prefix + "mlp.down_proj.weight"])


def route(
    config: Gemma4Config, weights: Weights, prefix: str, x: Float32Array
) -> tuple[IntArray, Float32Array]:
    """Chosen experts and their weights, (S, top_k) each, from the residual before any norm."""
    scale = weights[prefix + "router.scale"] * np.float32(config.hidden_size**-0.5)
    normed = rms_norm(x, None, config.rms_norm_eps) * scale
    scores = linear(normed, weights[prefix + "router.proj.weight"])
    probabilities = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probabilities /= probabilities.sum(axis=-1, keepdims=True)
    chosen = np.argsort(-probabilities, axis=-1, kind="stable")[:, : config.top_k_experts]
    share = np.take_along_axis(probabilities, chosen, axis=-1)
    share /= share.sum(axis=-1, keepdims=True)
    return chosen, share * weights[prefix + "router.per_expert_scale"][chosen]


def expert_block(
    config: Gemma4Config, weights: Weights, prefix: str, x: Float32Array, fed: Float32Array
) -> Float32Array:
    """The dense MLP's result `fed` and the chosen experts', each normed, added up."""
    eps = config.rms_norm_eps
    chosen, share = route(config, weights, prefix, x)
    normed = rms_norm(x, weights[prefix + "pre_feedforward_layernorm_2.weight"], eps)
    total = np.zeros_like(x)
    for position, experts in enumerate(chosen):
        for expert, part in zip(experts, share[position], strict=True):
            pair = linear(normed[position], weights[prefix + "experts.gate_up_proj"][expert])
            gate, up = np.split(pair, 2)  # the first half of the rows is the gate
            down = weights[prefix + "experts.down_proj"][expert]
            total[position] += part * linear(gelu(gate) * up, down)
    first = rms_norm(fed, weights[prefix + "post_feedforward_layernorm_1.weight"], eps)
    return first + rms_norm(total, weights[prefix + "post_feedforward_layernorm_2.weight"], eps)


def forward(
    config: Gemma4Config, weights: Weights, ids: IntArray, media: MediaRows | None = None
) -> ForwardResult:
    """Run the model on one sequence.

    Parameters
    ----------
    config : the model
    weights : float32 by checkpoint name without `model.language_model.` or `model.`, (out, in)
    ids : (S,), token ids from position 0 on
    media : what replaces the embeddings of some of them; those ids are not read
    """
    eps, pictures = config.rms_norm_eps, None
    if media is not None:
        ids = np.where(media.positions, config.pad_token_id, ids)
        pictures = picture_numbers(media.modality) if config.bidirectional_images else None
    x: Float32Array = weights["embed_tokens.weight"][ids] * np.float32(embedding_scale(config))
    if media is not None:
        x[media.positions] = media.rows
    ple = per_layer_inputs(config, weights, ids, x) if config.hidden_size_per_layer_input else None
    stored: dict[int, tuple[Float32Array, Float32Array]] = {}
    hidden_states = []
    for layer, kind in enumerate(config.layer_types):
        prefix = f"layers.{layer}."
        head_dim = config.head_dim[layer]

        # Attention
        normed = rms_norm(x, weights[prefix + "input_layernorm.weight"], eps)
        query = linear(normed, weights[prefix + "self_attn.q_proj.weight"]).reshape(
            len(ids), -1, head_dim
        )
        query = rotate(
            rms_norm(query, weights[prefix + "self_attn.q_norm.weight"], eps),
            inverse_frequencies(config, kind, head_dim),
        )
        source = kv_source(config, layer)
        if source == layer:
            stored[layer] = keys_and_values(config, weights, layer, normed)
        mask = visible(len(ids), kind, config.sliding_window, pictures)
        attended = linear(
            attend(query, *stored[source], mask), weights[prefix + "self_attn.o_proj.weight"]
        )
        x = x + rms_norm(attended, weights[prefix + "post_attention_layernorm.weight"], eps)

        # Feed-forward
        normed = rms_norm(x, weights[prefix + "pre_feedforward_layernorm.weight"], eps)
        fed = feed_forward(weights, prefix, normed)
        if config.num_experts:
            fed = expert_block(config, weights, prefix, x, fed)
        x = x + rms_norm(fed, weights[prefix + "post_feedforward_layernorm.weight"], eps)

        # Per-layer embedding
        if ple is not None:
            gated = gelu(linear(x, weights[prefix + "per_layer_input_gate.weight"])) * ple[:, layer]
            projected = linear(gated, weights[prefix + "per_layer_projection.weight"])
            x = x + rms_norm(projected, weights[prefix + "post_per_layer_input_norm.weight"], eps)

        x = x * weights[prefix + "layer_scalar"]
        hidden_states.append(x)

    normed = rms_norm(x, weights["norm.weight"], eps)
    head = weights["embed_tokens.weight" if config.ties_head else "lm_head.weight"]
    logits = soft_cap(linear(normed, head), config.final_logit_softcapping)
    return ForwardResult(logits, tuple(hidden_states), normed, stored)
