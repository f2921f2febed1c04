"""Writes a GGUF file with the drafter of a released size and made-up values, for llama.cpp.

Its head is the whole vocabulary: llama.cpp leaves the clusters of E2B's and E4B's out. Names,
metadata and shapes are those of llama.cpp's architecture `gemma4-assistant`. Needs numpy, and of
the package only what reads configs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from benchmarks.drafter_config import SIZES, drafter_values
from benchmarks.peer.write_gguf import (
    ALIGNMENT,
    MOSTLY_Q4_0,
    Metadata,
    Tensor,
    matrix,
    ones,
    rope_divisors,
    write_file,
)
from gemma4_compile.model_spec.config.drafter import DrafterConfig, read_drafter
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.layer_plan import drafter_plans
from gemma4_compile.model_spec.layers.plan import LayerPlan

ARCHITECTURE = "gemma4-assistant"


def _layer(plan: LayerPlan, hidden: int) -> Iterator[Tensor]:
    prefix, rows = f"blk.{plan.index}", plan.num_attention_heads * plan.head_dim
    for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
        yield ones(f"{prefix}.{name}.weight", hidden)
    yield matrix(f"{prefix}.attn_q", hidden, rows)
    yield ones(f"{prefix}.attn_q_norm.weight", plan.head_dim)
    yield matrix(f"{prefix}.attn_output", rows, hidden)
    yield matrix(f"{prefix}.ffn_gate", hidden, plan.intermediate_size)
    yield matrix(f"{prefix}.ffn_up", hidden, plan.intermediate_size)
    yield matrix(f"{prefix}.ffn_down", plan.intermediate_size, hidden)
    yield ones(f"{prefix}.layer_output_scale.weight", 1)


def tensors(drafter: DrafterConfig, target: Gemma4Config) -> tuple[Tensor, ...]:
    """All tensors of the drafter, in the order of the file."""
    hidden, backbone = drafter.hidden_size, drafter.backbone_hidden_size
    plans = drafter_plans(drafter, target)
    found = [
        matrix("token_embd", hidden, drafter.vocab_size),
        ones("output_norm.weight", hidden),
        matrix("nextn.pre_projection", 2 * backbone, hidden),
        matrix("nextn.post_projection", hidden, backbone),
        rope_divisors(plans),
    ]
    for plan in plans:
        found += _layer(plan, hidden)
    return tuple(found)


def metadata(drafter: DrafterConfig, target: Gemma4Config, name: str) -> Metadata:
    """Keys and values of the header."""
    plans = drafter_plans(drafter, target)
    full, sliding = (
        next(plan.head_dim for plan in plans if (plan.window is None) is is_full)
        for is_full in (True, False)
    )
    of_model: Metadata = {
        "context_length": target.max_position_embeddings,
        "embedding_length": drafter.hidden_size,
        "embedding_length_out": drafter.backbone_hidden_size,
        "block_count": len(plans),
        "nextn_predict_layers": len(plans),
        "vocab_size": drafter.vocab_size,
        "feed_forward_length": drafter.intermediate_size,
        "attention.head_count": drafter.num_attention_heads,
        "attention.head_count_kv": [plan.num_key_value_heads for plan in plans],
        "attention.key_length": full,
        "attention.value_length": full,
        "attention.key_length_swa": sliding,
        "attention.value_length_swa": sliding,
        "attention.sliding_window": target.sliding_window,
        "attention.sliding_window_pattern": [plan.window is not None for plan in plans],
        "attention.shared_kv_layers": len(plans),
        "attention.layer_norm_rms_epsilon": drafter.rms_norm_eps,
        "rope.dimension_count": full,
        "rope.dimension_count_swa": sliding,
        "rope.freq_base": target.full_rope.rope_theta,
        "rope.freq_base_swa": target.sliding_rope.rope_theta,
    }
    return {
        "general.architecture": ARCHITECTURE,
        "general.name": name,
        "general.file_type": MOSTLY_Q4_0,
        "general.quantization_version": 2,
        "general.alignment": ALIGNMENT,
        "tokenizer.ggml.model": "none",
        **{f"{ARCHITECTURE}.{key}": value for key, value in of_model.items()},
    }


def main() -> None:
    """Write one file and print its size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=SIZES)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    target = Gemma4Config.from_preset(arguments.model)
    drafter = read_drafter(drafter_values(arguments.model))
    entries = metadata(drafter, target, f"{arguments.model}-assistant")
    nbytes = write_file(arguments.output, entries, tensors(drafter, target))
    print(f"{arguments.output}: {nbytes} bytes")


if __name__ == "__main__":
    main()
