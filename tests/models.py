"""Small random checkpoints of every kind of Gemma 4, written without torch.

`E2B_LIKE`: per-layer embeddings, KV sharing, double-wide MLP, one KV head, scales that are no
powers of two. `E4B_LIKE`: two KV heads, per-layer embeddings, KV sharing, no double-wide MLP, a
layer before the KV source of its kind. `DENSE_LIKE` (31B): K = V and other KV heads on full layers,
no per-layer embeddings, no KV sharing. `UNIFIED_LIKE` (12B): the same under another model type, one
KV head on full layers. `MOE_LIKE` (26B-A4B): experts beside the dense MLP in every layer. Every
width is a multiple of 32, so that each quantised scheme applies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gemma4_compile.tiny.architecture import HEAD, tensor_shapes
from gemma4_compile.tiny.checkpoint import TOKENIZER_FILES, shipped_file
from gemma4_compile.tiny.safetensors_file import rounded, write_safetensors
from tests import gemma3n
from tests.random_values import random_tensor

Float32Array = npt.NDArray[np.float32]
Form = Literal["hub", "transformers"]

SLIDING, FULL = "sliding_attention", "full_attention"
LAYER_KINDS = {"S": SLIDING, "F": FULL}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk and its weights: names without prefix, values as stored."""

    path: Path
    text_config: Mapping[str, Any]
    weights: Mapping[str, Float32Array]
    dtype: str


def _text_config(layers: str, **fields: Any) -> dict[str, Any]:
    return {
        "model_type": "gemma4_text",
        "vocab_size": 256,
        "vocab_size_per_layer_input": 256,
        "num_hidden_layers": len(layers),
        "layer_types": [LAYER_KINDS[letter] for letter in layers],
        "head_dim": 32,
        "global_head_dim": 64,
        "num_global_key_value_heads": None,
        "attention_k_eq_v": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_double_wide_mlp": False,
        "enable_moe_block": False,
        "use_bidirectional_attention": None,
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
        "max_position_embeddings": 512,
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
            FULL: {
                "rope_type": "proportional",
                "rope_theta": 1000000.0,
                "partial_rotary_factor": 0.25,
            },
        },
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 1,
        **fields,
    }


E2B_LIKE = _text_config(
    "SSFSSSF",
    hidden_size=96,
    intermediate_size=128,
    num_attention_heads=4,
    num_key_value_heads=1,
    num_kv_shared_layers=4,
    use_double_wide_mlp=True,
    hidden_size_per_layer_input=32,
    sliding_window=8,
)
E4B_LIKE = _text_config(
    "SSFSSFSF",
    hidden_size=64,
    intermediate_size=160,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_kv_shared_layers=2,
    hidden_size_per_layer_input=64,
    sliding_window=16,
)
DENSE_LIKE = _text_config(
    "SSFSSF",
    hidden_size=96,
    intermediate_size=192,
    num_attention_heads=8,
    num_key_value_heads=4,
    num_global_key_value_heads=2,
    attention_k_eq_v=True,
    num_kv_shared_layers=0,
    hidden_size_per_layer_input=0,
    sliding_window=12,
)
MOE_LIKE = _text_config(
    "SFSF",
    hidden_size=64,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_global_key_value_heads=1,
    attention_k_eq_v=True,
    num_kv_shared_layers=0,
    hidden_size_per_layer_input=0,
    sliding_window=8,
    enable_moe_block=True,
    num_experts=8,
    top_k_experts=2,
    moe_intermediate_size=32,
)
UNIFIED_LIKE = _text_config(
    "SSFSF",
    model_type="gemma4_unified_text",
    hidden_size=64,
    intermediate_size=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_global_key_value_heads=1,
    attention_k_eq_v=True,
    num_kv_shared_layers=0,
    hidden_size_per_layer_input=0,
    sliding_window=10,
    use_bidirectional_attention="vision",
)
BLOCK_OUTPUT_NORMS = (
    "post_attention_layernorm.weight",
    "post_feedforward_layernorm.weight",
    "post_per_layer_input_norm.weight",
)
KINDS: Mapping[str, dict[str, Any]] = {
    "e2b": E2B_LIKE,
    "e4b": E4B_LIKE,
    "dense": DENSE_LIKE,
    "unified": UNIFIED_LIKE,
    "moe": MOE_LIKE,
}


def _rotating(share: float) -> dict[str, Any]:
    full = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": share}
    return {"rope_parameters": {**E2B_LIKE["rope_parameters"], FULL: full}}


# No released size has such heads: (sliding, full). The last two are no matrices for groups of 32.
ODD_HEADS: Mapping[str, dict[str, Any]] = {
    "heads 40, 136": {**E4B_LIKE, "head_dim": 40, "global_head_dim": 136},
    "heads 72, 264": {**DENSE_LIKE, "head_dim": 72, "global_head_dim": 264, **_rotating(0.3)},
    "heads 64, 48": {**E2B_LIKE, "head_dim": 64, "global_head_dim": 48, **_rotating(0.77)},
    "heads 104, 88": {**MOE_LIKE, "head_dim": 104, "global_head_dim": 88, **_rotating(1.0)},
    "heads 8, 504": {
        **{**E2B_LIKE, "head_dim": 8, "global_head_dim": 504},
        **{"num_attention_heads": 7, "num_key_value_heads": 1},
    },
    "heads 200, 24": {
        **{**E4B_LIKE, "head_dim": 200, "global_head_dim": 24},
        **{"num_attention_heads": 6, "num_key_value_heads": 2},
    },
}
UNTIED: Mapping[str, dict[str, Any]] = {
    f"{kind}, untied": {**text, "tie_word_embeddings": False} for kind, text in KINDS.items()
}
LONG_TABLE = "e2b, longer per-layer table"
"""One of its two tables was resized and cut again: its last rows belong to no token."""
ALL: Mapping[str, dict[str, Any]] = {
    **{**KINDS, **ODD_HEADS, **UNTIED, **gemma3n.KINDS},
    LONG_TABLE: {**E2B_LIKE, "vocab_size_per_layer_input": E2B_LIKE["vocab_size"] + 24},
}


def character_tokenizer() -> dict[str, Any]:
    """The shipped `tokenizer.json` cut down to control tokens and ASCII: fewer than 256 ids."""
    tokenizer: dict[str, Any] = json.loads(shipped_file("tokenizer.json"))
    characters = ["\n", "\u2581", *(chr(code) for code in range(33, 127))]
    control = [token for token in tokenizer["added_tokens"] if token["id"] < 107]
    tokenizer["added_tokens"] = control
    pieces = [token["content"] for token in control] + characters
    tokenizer["model"].update(
        vocab={piece: index for index, piece in enumerate(pieces)}, merges=[], byte_fallback=False
    )
    return tokenizer


def random_weights(
    text_config: Mapping[str, Any],
    *,
    seed: int = 0,
    dtype: str = "float32",
    residual_scale: float = 1.0,
) -> dict[str, Float32Array]:
    """Random weights; `residual_scale` multiplies what each block adds to the residual stream."""
    weights = {}
    is_gemma3n = text_config["model_type"] == "gemma3n_text"
    shapes = (gemma3n.tensor_shapes if is_gemma3n else tensor_shapes)(text_config)
    for name, shape in shapes.items():
        values = random_tensor(name, shape, seed)
        if name.endswith(BLOCK_OUTPUT_NORMS):
            values = values * np.float32(residual_scale)
        weights[name] = rounded(values, dtype)
    return weights


def config_file(text_config: Mapping[str, Any], form: Form, dtype: str) -> dict[str, Any]:
    """`config.json` in the hub's form, or as `Gemma4ForCausalLM.save_pretrained` writes it."""
    text = {**text_config, "dtype": dtype}
    if form == "hub":
        return {
            "architectures": ["Gemma4ForConditionalGeneration"],
            "model_type": str(text["model_type"]).removesuffix("_text"),
            "dtype": dtype,
            "eos_token_id": [1, 106],
            "tie_word_embeddings": text["tie_word_embeddings"],
            "text_config": text,
            "vision_config": None,
            "audio_config": None,
        }
    full_heads = text.pop("num_global_key_value_heads") or text["num_key_value_heads"]
    full = {"head_dim": text.pop("global_head_dim"), "num_key_value_heads": full_heads}
    digits = len(str(len(text["layer_types"]) - 1))
    text["per_layer_config"] = {
        f"{index:0{digits}d}": full
        for index, kind in enumerate(text["layer_types"])
        if kind == FULL
    }
    return {"architectures": ["Gemma4ForCausalLM"], **text}


def tensor_name(name: str, form: Form = "hub") -> str:
    """The name of a text tensor in a checkpoint."""
    prefix = "model.language_model." if form == "hub" else "model."
    return name if name == HEAD else prefix + name


def write_checkpoint(
    directory: Path,
    text_config: Mapping[str, Any],
    *,
    seed: int = 0,
    dtype: str = "float32",
    residual_scale: float = 1.0,
    form: Form = "hub",
    weights: Mapping[str, Float32Array] | None = None,
) -> Checkpoint:
    """Write config, weights and tokenizer files into `directory` (created if missing).

    `weights` are used instead of random ones, if given.
    """
    if weights is None:
        weights = random_weights(text_config, seed=seed, dtype=dtype, residual_scale=residual_scale)
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(
        directory / "model.safetensors",
        {tensor_name(name, form): values for name, values in weights.items()},
        dtype,
    )
    (directory / "config.json").write_text(
        json.dumps(config_file(text_config, form, dtype), indent=2)
    )
    for name in TOKENIZER_FILES:
        (directory / name).write_bytes(shipped_file(name))
    (directory / "tokenizer.json").write_text(json.dumps(character_tokenizer()))
    return Checkpoint(directory, text_config, weights, dtype)


def prompt(length: int, *, seed: int = 0) -> npt.NDArray[np.int64]:
    """Token ids that begin with bos and stay clear of the control tokens."""
    body = np.random.PCG64([seed, length]).random_raw(length - 1) % np.uint64(200)
    return np.concatenate([[2], body.astype(np.int64) + 50])
