"""Names and shapes of a Gemma 4 text checkpoint's tensors: for the training and the tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

FULL = "full_attention"
HEAD = "lm_head.weight"
Config = Mapping[str, Any]
"""The text decoder's part of a `config.json` that is right."""


def _attention_shapes(text: Config, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    full = text["layer_types"][layer] == FULL
    key_is_value = full and bool(text["attention_k_eq_v"])
    head_dim = text["global_head_dim"] if full else text["head_dim"]
    kv_heads = text["num_key_value_heads"]
    if key_is_value:
        kv_heads = text["num_global_key_value_heads"]
    hidden = text["hidden_size"]
    rows = text["num_attention_heads"] * head_dim
    yield "q_proj.weight", (rows, hidden)
    yield "q_norm.weight", (head_dim,)
    yield "o_proj.weight", (hidden, rows)
    if layer < text["num_hidden_layers"] - text["num_kv_shared_layers"]:
        yield "k_proj.weight", (kv_heads * head_dim, hidden)
        yield "k_norm.weight", (head_dim,)
        if not key_is_value:
            yield "v_proj.weight", (kv_heads * head_dim, hidden)


def _layer_shapes(text: Config, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, ple = text["hidden_size"], text["hidden_size_per_layer_input"]
    shared = layer >= text["num_hidden_layers"] - text["num_kv_shared_layers"]
    width = text["intermediate_size"] * (2 if shared and text["use_double_wide_mlp"] else 1)
    for name, shape in _attention_shapes(text, layer):
        yield f"self_attn.{name}", shape
    yield "mlp.gate_proj.weight", (width, hidden)
    yield "mlp.up_proj.weight", (width, hidden)
    yield "mlp.down_proj.weight", (hidden, width)
    for stem in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        yield f"{stem}_layernorm.weight", (hidden,)
    if text["enable_moe_block"]:
        experts, expert_width = text["num_experts"], text["moe_intermediate_size"]
        yield "router.proj.weight", (experts, hidden)
        yield "router.scale", (hidden,)
        yield "router.per_expert_scale", (experts,)
        yield "experts.gate_up_proj", (experts, 2 * expert_width, hidden)
        yield "experts.down_proj", (experts, hidden, expert_width)
        for stem in ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1"):
            yield f"{stem}.weight", (hidden,)
        yield "post_feedforward_layernorm_2.weight", (hidden,)
    if ple:
        yield "per_layer_input_gate.weight", (ple, hidden)
        yield "per_layer_projection.weight", (hidden, ple)
        yield "post_per_layer_input_norm.weight", (hidden,)
    yield "layer_scalar", (1,)


def tensor_shapes(text: Config) -> dict[str, tuple[int, ...]]:
    """Name (without `model.` or `model.language_model.`) and shape of every text tensor, sorted.

    The head, where it is one of its own, has neither in a checkpoint.

    Parameters
    ----------
    text : the text config in the hub's form (`global_head_dim`, `num_global_key_value_heads`)
    """
    hidden, ple = text["hidden_size"], text["hidden_size_per_layer_input"]
    layers = text["num_hidden_layers"]
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (text["vocab_size"], hidden),
        "norm.weight": (hidden,),
    }
    if not text.get("tie_word_embeddings", True):
        shapes[HEAD] = (text["vocab_size"], hidden)
    if ple:
        shapes["embed_tokens_per_layer.weight"] = (text["vocab_size_per_layer_input"], layers * ple)
        shapes["per_layer_model_projection.weight"] = (layers * ple, hidden)
        shapes["per_layer_projection_norm.weight"] = (ple,)
    for layer in range(layers):
        shapes.update(
            {f"layers.{layer}.{name}": shape for name, shape in _layer_shapes(text, layer)}
        )
    return dict(sorted(shapes.items()))
