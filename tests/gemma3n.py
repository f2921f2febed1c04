"""Small random checkpoints of Gemma 3n's text, as `tests/models.py` has those of Gemma 4.

Sparse layers are wide enough for some twenty gates to stay, of which none decides alone. `e2b`: the
released proportions, with a per-layer table that is shorter than the vocabulary and a third of the
layers without keys of their own. `e4b`: MLPs of several widths, more shared layers. `odd`: no power
of two and no default anywhere, a head of its own, a last layer that slides, and no scale of the
corrected stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemma4_compile.tiny.architecture import HEAD

SLIDING, FULL = "sliding_attention", "full_attention"


def _text_config(layers: str, **fields: Any) -> dict[str, Any]:
    return {
        "model_type": "gemma3n_text",
        "vocab_size": 256,
        "vocab_size_per_layer_input": 240,
        "num_hidden_layers": len(layers),
        "layer_types": [FULL if letter == "F" else SLIDING for letter in layers],
        "head_dim": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size_per_layer_input": 32,
        "rms_norm_eps": 1e-6,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
        "max_position_embeddings": 512,
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
            FULL: {"rope_type": "default", "rope_theta": 1000000.0},
        },
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 1,
        **fields,
    }


E2B_LIKE = _text_config(
    "SSFSSF",
    hidden_size=64,
    intermediate_size=256,
    num_kv_shared_layers=2,
    laurel_rank=32,
    sliding_window=8,
    activation_sparsity_pattern=[0.9, 0.9, 0.0, 0.0, 0.0, 0.0],
)
E4B_LIKE = _text_config(
    "SSFSSFSF",
    hidden_size=96,
    intermediate_size=[256, 256, 288, 128, 192, 192, 192, 192],
    num_kv_shared_layers=4,
    laurel_rank=64,
    sliding_window=12,
    activation_sparsity_pattern=[0.9] * 3 + [0.0] * 5,
)
ODD = _text_config(
    "SFSSS",
    hidden_size=60,
    intermediate_size=[44, 44, 70, 70, 90],
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=24,
    num_kv_shared_layers=2,
    hidden_size_per_layer_input=20,
    laurel_rank=12,
    sliding_window=5,
    activation_sparsity_pattern=[0.5, 0.0, 0.75, 0.3, 0.6],
    altup_num_inputs=3,
    altup_active_idx=1,
    altup_correct_scale=False,
    final_logit_softcapping=11.0,
    tie_word_embeddings=False,
    vocab_size_per_layer_input=256,
)
KINDS: Mapping[str, dict[str, Any]] = {"3n e2b": E2B_LIKE, "3n e4b": E4B_LIKE, "3n odd": ODD}


def tensor_shapes(text: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name (without `model.` or `model.language_model.`) and shape of every tensor, sorted."""
    hidden, ple = text["hidden_size"], text["hidden_size_per_layer_input"]
    layers, streams = text["num_hidden_layers"], text.get("altup_num_inputs", 4)
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (text["vocab_size"], hidden),
        "embed_tokens_per_layer.weight": (text["vocab_size_per_layer_input"], layers * ple),
        "per_layer_model_projection.weight": (layers * ple, hidden),
        "per_layer_projection_norm.weight": (ple,),
        "norm.weight": (hidden,),
    }
    if not text["tie_word_embeddings"]:
        shapes[HEAD] = (text["vocab_size"], hidden)
    for index in range(streams - 1):
        for name in ("altup_projections", "altup_unembed_projections"):
            shapes[f"{name}.{index}.weight"] = (hidden, hidden)
    for layer in range(layers):
        prefix = f"layers.{layer}."
        shapes.update(
            {prefix + name: shape for name, shape in _layer_shapes(text, layer, streams).items()}
        )
    return dict(sorted(shapes.items()))


def _layer_shapes(text: Mapping[str, Any], layer: int, streams: int) -> dict[str, tuple[int, ...]]:
    hidden, ple, rank = (
        text["hidden_size"],
        text["hidden_size_per_layer_input"],
        text["laurel_rank"],
    )
    widths = text["intermediate_size"]
    width = widths[layer] if isinstance(widths, list) else widths
    dim = text["head_dim"]
    rows, kv_rows = text["num_attention_heads"] * dim, text["num_key_value_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {
        "altup.correct_output_scale": (hidden,),
        "altup.correction_coefs.weight": (streams, streams),
        "altup.prediction_coefs.weight": (streams**2, streams),
        "altup.modality_router.weight": (streams, hidden),
        "altup.router_norm.weight": (hidden,),
        "laurel.linear_left.weight": (rank, hidden),
        "laurel.linear_right.weight": (hidden, rank),
        "laurel.post_laurel_norm.weight": (hidden,),
        "mlp.gate_proj.weight": (width, hidden),
        "mlp.up_proj.weight": (width, hidden),
        "mlp.down_proj.weight": (hidden, width),
        "per_layer_input_gate.weight": (ple, hidden),
        "per_layer_projection.weight": (hidden, ple),
        "post_per_layer_input_norm.weight": (hidden,),
        "self_attn.q_proj.weight": (rows, hidden),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.o_proj.weight": (hidden, rows),
    }
    for stem in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        shapes[f"{stem}_layernorm.weight"] = (hidden,)
    if layer < text["num_hidden_layers"] - text["num_kv_shared_layers"]:
        for name in ("k_proj", "v_proj"):
            shapes[f"self_attn.{name}.weight"] = (kv_rows, hidden)
        shapes["self_attn.k_norm.weight"] = (dim,)
    return shapes
