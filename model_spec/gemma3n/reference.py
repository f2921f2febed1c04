"""The forward pass of Gemma 3n's text decoder in NumPy float32, which tests compare with.

Written for reading, not for speed, as `model_spec/text/reference.py`, whose parts it takes. The
steps are those of transformers 5.24.0, `models/gemma3n/modeling_gemma3n.py`.
Axes: S query position, A stream, L layer, P width of the per-layer embedding.
"""

from __future__ import annotations

import math

import numpy as np

from gemma4_compile.model_spec.config.gemma3n import Gemma3nConfig
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.gemma3n.scales import (
    per_layer_input_scale,
    per_layer_projection_scale,
)
from gemma4_compile.model_spec.text.reference import (
    Float32Array,
    ForwardResult,
    IntArray,
    Weights,
    attend,
    gelu,
    inverse_frequencies,
    keys_and_values,
    kv_source,
    linear,
    rms_norm,
    rotate,
    soft_cap,
    visible,
)
from gemma4_compile.model_spec.text.scales import embedding_scale, per_layer_embedding_scale
from gemma4_compile.operators.sparse_gate import deviations

LEAST_MEAN_SQUARE = np.float32(1e-5)


def per_layer_inputs(
    config: Gemma4Config, weights: Weights, ids: IntArray, x: Float32Array
) -> Float32Array:
    """Per-layer embedding (S, L, P); the table has no row for some tokens, which are token 0."""
    shape = (len(ids), config.num_hidden_layers, config.hidden_size_per_layer_input)
    rows = np.where(ids < config.vocab_size_per_layer_input, ids, 0)
    token = weights["embed_tokens_per_layer.weight"][rows].reshape(shape)
    token = token * np.float32(per_layer_embedding_scale(config))
    context = linear(x, weights["per_layer_model_projection.weight"])
    context = context.reshape(shape) * np.float32(per_layer_projection_scale(config))
    context = rms_norm(context, weights["per_layer_projection_norm.weight"], config.rms_norm_eps)
    return (context + token) * np.float32(per_layer_input_scale(config))


def at_size_of(x: Float32Array, target: Float32Array) -> Float32Array:
    """Rows of x (S, hidden_size) at the size of those of `target`."""
    found = np.mean(np.square(x), axis=-1, keepdims=True)
    size = np.sqrt(np.mean(np.square(target), axis=-1, keepdims=True))
    result: Float32Array = x * size / np.sqrt(np.maximum(found, LEAST_MEAN_SQUARE))
    return result


def modalities(
    config: Gemma4Config, weights: Weights, prefix: str, x: Float32Array
) -> Float32Array:
    """What coefficients are mixed by: (S, A)."""
    normed = rms_norm(x, weights[prefix + "router_norm.weight"], config.rms_norm_eps)
    normed = normed / np.float32(config.hidden_size)
    routed = linear(normed, weights[prefix + "modality_router.weight"])
    result: Float32Array = np.tanh(routed)
    return result


def predict(
    config: Gemma4Config, own: Gemma3nConfig, weights: Weights, prefix: str, x: Float32Array
) -> Float32Array:
    """All streams (A, S, hidden_size) as the layer finds them."""
    mixed = modalities(config, weights, prefix, x[own.active])
    coefs = linear(mixed, weights[prefix + "prediction_coefs.weight"])
    coefs = coefs.reshape(-1, own.streams, own.streams)
    result: Float32Array = x + np.einsum("sij,jsd->isd", coefs, x)
    return result


def correct(
    config: Gemma4Config,
    own: Gemma3nConfig,
    weights: Weights,
    prefix: str,
    predicted: Float32Array,
    activated: Float32Array,
) -> Float32Array:
    """All streams (A, S, hidden_size) after the layer made its own `activated` (S, hidden_size)."""
    mixed = modalities(config, weights, prefix, activated)
    coefs = linear(mixed, weights[prefix + "correction_coefs.weight"]) + np.float32(1.0)
    result: Float32Array = predicted + coefs.T[:, :, None] * (activated - predicted[own.active])
    return result


def feed_forward(weights: Weights, prefix: str, x: Float32Array, sparsity: float) -> Float32Array:
    """``down(gelu(gate) * (up x))``; of the gates only those above the quantile stay."""
    gate = linear(x, weights[prefix + "gate_proj.weight"])
    if sparsity:
        spread = gate.std(axis=-1, keepdims=True) * np.float32(deviations(sparsity))
        gate = np.maximum(gate - (gate.mean(axis=-1, keepdims=True) + spread), np.float32(0.0))
    up = linear(x, weights[prefix + "up_proj.weight"])
    return linear(gelu(gate) * up, weights[prefix + "down_proj.weight"])


def forward(config: Gemma4Config, weights: Weights, ids: IntArray) -> ForwardResult:
    """Run the model on one sequence.

    Parameters
    ----------
    config : the model
    weights : float32 by checkpoint name without `model.language_model.` or `model.`, (out, in)
    ids : (S,), token ids from position 0 on

    Returns
    -------
    ForwardResult
        Its hidden states are those of the active stream.
    """
    own = config.gemma3n
    assert own is not None, "a config of Gemma 3n"
    eps = config.rms_norm_eps
    embedded: Float32Array = weights["embed_tokens.weight"][ids]
    embedded = embedded * np.float32(embedding_scale(config))
    ple = per_layer_inputs(config, weights, ids, embedded)
    others = range(own.streams - 1)
    projected = (linear(embedded, weights[f"altup_projections.{i}.weight"]) for i in others)
    x = np.stack([embedded, *(at_size_of(one, embedded) for one in projected)])
    stored: dict[int, tuple[Float32Array, Float32Array]] = {}
    hidden_states = []
    for layer, kind in enumerate(config.layer_types):
        prefix, head_dim = f"layers.{layer}.", config.head_dim[layer]
        predicted = predict(config, own, weights, prefix + "altup.", x)
        active = predicted[own.active]

        # Attention, and the low-rank residual beside it
        normed = rms_norm(active, weights[prefix + "input_layernorm.weight"], eps)
        inner = linear(normed, weights[prefix + "laurel.linear_left.weight"])
        laurel = linear(inner, weights[prefix + "laurel.linear_right.weight"])
        laurel = normed + rms_norm(laurel, weights[prefix + "laurel.post_laurel_norm.weight"], eps)
        query = linear(normed, weights[prefix + "self_attn.q_proj.weight"])
        query = rotate(
            rms_norm(
                query.reshape(len(ids), -1, head_dim),
                weights[prefix + "self_attn.q_norm.weight"],
                eps,
            ),
            inverse_frequencies(config, kind, head_dim),
        )
        source = kv_source(config, layer)
        if source == layer:
            stored[layer] = keys_and_values(config, weights, layer, normed)
        mask = visible(len(ids), kind, config.sliding_window)
        attended = linear(
            attend(query, *stored[source], mask), weights[prefix + "self_attn.o_proj.weight"]
        )
        attended = rms_norm(attended, weights[prefix + "post_attention_layernorm.weight"], eps)
        h = (active + attended + laurel) / np.float32(math.sqrt(2.0))

        # Feed-forward
        normed = rms_norm(h, weights[prefix + "pre_feedforward_layernorm.weight"], eps)
        fed = feed_forward(weights, prefix + "mlp.", normed, own.sparsities[layer])
        h = h + rms_norm(fed, weights[prefix + "post_feedforward_layernorm.weight"], eps)
        x = correct(config, own, weights, prefix + "altup.", predicted, h)

        # Per-layer embedding
        first = x[own.active]
        if own.scales_corrected:
            first = first * weights[prefix + "altup.correct_output_scale"]
        gated = gelu(linear(first, weights[prefix + "per_layer_input_gate.weight"])) * ple[:, layer]
        injected = linear(gated, weights[prefix + "per_layer_projection.weight"])
        x[1:] += rms_norm(injected, weights[prefix + "post_per_layer_input_norm.weight"], eps)
        hidden_states.append(x[own.active])

    parts = (linear(x[i + 1], weights[f"altup_unembed_projections.{i}.weight"]) for i in others)
    merged = np.mean([x[0], *(at_size_of(one, x[0]) for one in parts)], axis=0)
    normed = rms_norm(merged, weights["norm.weight"], eps)
    head = weights["embed_tokens.weight" if config.ties_head else "lm_head.weight"]
    logits = soft_cap(linear(normed, head), config.final_logit_softcapping)
    return ForwardResult(logits, tuple(hidden_states), normed, stored)
