"""transformers in float32 on a checkpoint for phones, which it rounds as it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Gemma4ForCausalLM
from transformers.integrations.gemma_quant import QuantizedLinear, apply_srq

_TABLES = ("embed_tokens", "embed_tokens_per_layer")


def opened(path: Path, **options: Any) -> Gemma4ForCausalLM:
    """The model as transformers makes it of a directory."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", **options
    )
    model.eval()
    found: Gemma4ForCausalLM = model
    return found


def load(path: Path) -> Gemma4ForCausalLM:
    """The model, from its own files.

    transformers 5.24 makes room for one scale a row of a table alone; the others are put in here,
    and its forward takes them.
    """
    model = opened(path, ignore_mismatched_sizes=True)
    tensors = load_file(path / "model.safetensors")
    for name in _TABLES:
        scale = tensors[f"model.{name}.embedding_scale"]
        table = getattr(model.model, name)
        table.embedding_scale = torch.nn.Parameter(scale, requires_grad=False)
    return model


def rounded(values: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """Values as transformers rounds them to a step."""
    return apply_srq(values, step)


def without_rounding(model: Gemma4ForCausalLM) -> Gemma4ForCausalLM:
    """The same model, in place, on the same weights, that rounds no activations."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, QuantizedLinear):
                module.input_activation_scale.zero_()
                module.output_activation_scale.zero_()
    return model
