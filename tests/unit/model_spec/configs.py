"""Small configs in both forms of config.json, for the tests of what reads them."""

from __future__ import annotations

from typing import Any

S, F = "sliding_attention", "full_attention"


def text_config() -> dict[str, Any]:
    """A small text config in the hub's form, written by hand."""
    return {
        "model_type": "gemma4_text",
        "attention_bias": False,
        "attention_k_eq_v": True,
        "bos_token_id": 2,
        "dtype": "bfloat16",
        "enable_moe_block": False,
        "eos_token_id": 1,
        "final_logit_softcapping": 30.0,
        "global_head_dim": 64,
        "head_dim": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 64,
        "hidden_size_per_layer_input": 32,
        "intermediate_size": 128,
        "layer_types": [S, S, F, S, S, F],
        "max_position_embeddings": 512,
        "num_attention_heads": 4,
        "num_global_key_value_heads": 1,
        "num_hidden_layers": 6,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 3,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            S: {"rope_type": "default", "rope_theta": 10000.0},
            F: {
                "rope_type": "proportional",
                "rope_theta": 1000000.0,
                "partial_rotary_factor": 0.25,
            },
        },
        "sliding_window": 8,
        "tie_word_embeddings": True,
        "use_double_wide_mlp": True,
        "vocab_size": 256,
        "vocab_size_per_layer_input": 256,
    }


def hub_config(**changes: Any) -> dict[str, Any]:
    """The whole file in the hub's form; `changes` go into text_config."""
    return {
        "model_type": "gemma4",
        "architectures": ["Gemma4ForConditionalGeneration"],
        "text_config": {**text_config(), **changes},
        "vision_config": None,
        "audio_config": {"hidden_size": 1024},
    }


MOE: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 2,
    "moe_intermediate_size": 48,
    "hidden_size_per_layer_input": 0,
}


def unified_config(**changes: Any) -> dict[str, Any]:
    """The encoder-free model; its text decoder knows neither experts nor per-layer embeddings."""
    absent = ("enable_moe_block", "hidden_size_per_layer_input", "vocab_size_per_layer_input")
    text = {**without(text_config(), *absent), "model_type": "gemma4_unified_text", **changes}
    return {**hub_config(), "model_type": "gemma4_unified", "text_config": text}


def without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def saved_config() -> dict[str, Any]:
    """The same model as transformers 5.24 saves it."""
    overrides = {"head_dim": 64, "num_key_value_heads": 1}
    text = without(text_config(), "global_head_dim", "num_global_key_value_heads")
    return {**text, "per_layer_config": {"2": overrides, "05": overrides}, "return_dict": True}
