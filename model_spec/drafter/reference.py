"""The drafter in NumPy float32: the meaning that tests compare with.

Written for reading: one draft from the configs alone, so it shares nothing with the layer plan and
the parameter table. The steps are those of transformers 5.24.0,
`models/gemma4_assistant/modeling_gemma4_assistant.py`, on the rows before the round's position
only. Axes: T position of a key, H query head, K KV head, D head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.model_spec.config.drafter import DrafterConfig
from gemma4_compile.model_spec.text.reference import (
    attend,
    feed_forward,
    inverse_frequencies,
    linear,
    rms_norm,
    rotate,
)

Float32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Weights = Mapping[str, Float32Array]
KeysValues = tuple[Float32Array, Float32Array]


@dataclass(frozen=True)
class Draft:
    """One draft.

    Attributes
    ----------
    token : the best of the candidates, of equal ones the lowest id
    logits : of the candidates
    candidates : their ids
    hidden : (backbone_hidden_size,), for the next draft
    """

    token: int
    logits: Float32Array
    candidates: IntArray
    hidden: Float32Array


def candidates_of(config: DrafterConfig, weights: Weights, x: Float32Array) -> IntArray:
    """Ids that a normed state is compared with: the tokens of the best clusters, or all."""
    if not config.num_centroids:
        return np.arange(config.vocab_size)
    scores = linear(x, weights["masked_embedding.centroids.weight"])
    best = np.argsort(-scores, kind="stable")[: config.centroid_top_k]
    ordering = weights["masked_embedding.token_ordering"].astype(np.int64)
    return ordering.reshape(config.num_centroids, -1)[best].reshape(-1)


def draft(
    config: DrafterConfig,
    weights: Weights,
    embedding: Float32Array,
    hidden: Float32Array,
    keys_values: Mapping[AttentionKind, KeysValues],
) -> Draft:
    """Draft the token after one.

    Parameters
    ----------
    weights : float32 by checkpoint name without `model.`, (out, in)
    embedding : (backbone_hidden_size,), the token's, times the target's scale
    hidden : (backbone_hidden_size,), the target's after its final norm, or the draft's before
    keys_values : K and V (T, K, D) that the drafter's layers of each kind read, of all T positions
        before the token's; sliding layers see the last `sliding_window` of them
    """
    eps = config.rms_norm_eps
    x = linear(np.concatenate([embedding, hidden])[None], weights["pre_projection.weight"])
    for layer, kind in enumerate(config.layer_types):
        prefix, head_dim = f"layers.{layer}.", config.head_dim[layer]
        key, value = keys_values[kind]
        position = len(key)
        normed = rms_norm(x, weights[prefix + "input_layernorm.weight"], eps)
        query = linear(normed, weights[prefix + "self_attn.q_proj.weight"])
        query = rms_norm(
            query.reshape(1, -1, head_dim), weights[prefix + "self_attn.q_norm.weight"], eps
        )
        query = rotate(query, inverse_frequencies(config, kind, head_dim), position)
        seen = np.arange(position)[None] >= 0
        if kind is AttentionKind.SLIDING:
            seen = np.arange(position)[None] >= position - config.sliding_window
        attended = linear(
            attend(query, key, value, seen), weights[prefix + "self_attn.o_proj.weight"]
        )
        x = x + rms_norm(attended, weights[prefix + "post_attention_layernorm.weight"], eps)
        normed = rms_norm(x, weights[prefix + "pre_feedforward_layernorm.weight"], eps)
        fed = feed_forward(weights, prefix, normed)
        x = x + rms_norm(fed, weights[prefix + "post_feedforward_layernorm.weight"], eps)
        x = x * weights[prefix + "layer_scalar"]
    normed = rms_norm(x, weights["norm.weight"], eps)[0]
    candidates = candidates_of(config, weights, normed)
    head = weights["embed_tokens.weight" if config.ties_head else "lm_head.weight"]
    logits = linear(normed, head[candidates])
    token = int(candidates[logits == logits.max()].min())
    return Draft(token, logits, candidates, linear(normed, weights["post_projection.weight"]))
