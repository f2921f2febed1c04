"""Names of tensors: llama.cpp's of Gemma 4 and of its drafter, and those of transformers.

llama.cpp's converter changes no values: norms are as they are, no rows are permuted, experts lie in
the same two stacks. It leaves out a tied head, and adds the divisors of the rotary embedding.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

TARGET, DRAFTER, TOWERS = "gemma4", "gemma4-assistant", "clip"
"""Architectures, by `general.architecture`."""

EMBEDDING, HEAD, ROPE_DIVISORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
OUTPUT_NORM = "output_norm.weight"
PER_LAYER_EMBEDDING = "per_layer_token_embd.weight"
TABLES = (EMBEDDING, PER_LAYER_EMBEDDING)
CENTROIDS, ORDERING = "masked_embd_centroids.weight", "masked_embd_ordering"

_ROOT: Mapping[str, str] = {
    EMBEDDING: "model.embed_tokens.weight",
    HEAD: "lm_head.weight",
    OUTPUT_NORM: "model.norm.weight",
    PER_LAYER_EMBEDDING: "model.embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
    "nextn.pre_projection.weight": "pre_projection.weight",
    "nextn.post_projection.weight": "post_projection.weight",
    CENTROIDS: "masked_embedding.centroids.weight",
    ORDERING: "masked_embedding.token_ordering",
}
_LAYER: Mapping[str, str] = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    "pre_ffw_norm_2.weight": "pre_feedforward_layernorm_2.weight",
    "post_ffw_norm_1.weight": "post_feedforward_layernorm_1.weight",
    "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight",
    "ffn_gate_inp.weight": "router.proj.weight",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_gate_exps.weight": "experts.gate_proj",  # these two of other programs, in its place
    "ffn_up_exps.weight": "experts.up_proj",
    "ffn_down_exps.weight": "experts.down_proj",
    "inp_gate.weight": "per_layer_input_gate.weight",
    "proj.weight": "per_layer_projection.weight",
    "post_norm.weight": "post_per_layer_input_norm.weight",
    "layer_output_scale.weight": "layer_scalar",
}
"""Of a layer, after its number."""

_OF_TOWERS = re.compile(r"(?:v|a|mm)\..+")  # in one file with the decoder, as Ollama's are
_OF_CLUSTERS = "masked_embd"
_LAYER_NAME = re.compile(r"blk\.(0|[1-9]\d{0,3})\.(.+)")


def usual_name(name: str) -> str | None:
    """The name that a tensor has in transformers' files; None of one that a decoder has not."""
    found = _LAYER_NAME.fullmatch(name)
    if found is None:
        return _ROOT.get(name)
    index, rest = found.groups()
    return f"model.layers.{index}.{_LAYER[rest]}" if rest in _LAYER else None


def has_clusters(found: Collection[str]) -> bool:
    """Return whether a drafter has the clusters of its vocabulary, whole."""
    return CENTROIDS in found and ORDERING in found


def is_of_clusters(name: str) -> bool:
    """Return whether a tensor is of the clusters, without which a drafter looks at all tokens."""
    return name.startswith(_OF_CLUSTERS)


def is_of_towers(name: str) -> bool:
    """Return whether a tensor is of what reads pictures and sounds."""
    return _OF_TOWERS.fullmatch(name) is not None
