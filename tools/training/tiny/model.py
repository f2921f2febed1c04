"""Builds transformers' Gemma 4 from the shipped config, and reads and writes its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from gemma4_compile.tiny.architecture import tensor_shapes
from gemma4_compile.tiny.safetensors_file import write_safetensors

SHIPPED_FILES = Path(__file__).resolve().parents[3] / "gemma4_compile" / "tiny" / "files"
_FILE_PREFIX = "model.language_model."
_MODEL_PREFIX = "model."


def read_config(files: Path) -> dict[str, Any]:
    """The parsed `config.json` of a folder."""
    parsed: dict[str, Any] = json.loads((files / "config.json").read_text(encoding="utf-8"))
    return parsed


def build(config: dict[str, Any]) -> Any:
    """A fresh float32 model, every stored tensor a trainable parameter.

    transformers keeps the layer scalars as constants; here they are trained, too. The scales of the
    embeddings are rounded to bfloat16, the checkpoint's dtype, as a bfloat16 run rounds them.
    """
    text = Gemma4TextConfig(**config["text_config"])
    create: Any = Gemma4ForCausalLM._from_config
    model = create(text, attn_implementation="sdpa", dtype=torch.float32)
    for layer in model.model.layers:
        scalar = layer.layer_scalar.detach().clone()
        del layer.layer_scalar
        layer.layer_scalar = nn.Parameter(scalar)
    for table in (model.model.embed_tokens, model.model.embed_tokens_per_layer):
        table.embed_scale.copy_(table.embed_scale.bfloat16().float())
    return model


def load(config: dict[str, Any], path: Path) -> Any:
    """The text decoder with the weights of a file; those of towers are left out."""
    model = build(config)
    stored = load_file(path)
    state = {
        name.replace(_FILE_PREFIX, _MODEL_PREFIX): tensor.float()
        for name, tensor in stored.items()
        if name.startswith(_FILE_PREFIX)
    }
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model.eval()


def save(model: Any, config: dict[str, Any], path: Path) -> None:
    """Write the weights as bfloat16 under the hub's names, in a fixed order."""
    state = model.state_dict()
    tensors = {}
    for name, shape in tensor_shapes(config["text_config"]).items():
        values = state[_MODEL_PREFIX + name].detach().float().cpu().numpy()
        assert values.shape == shape, f"{name}: {values.shape}, the architecture says {shape}"
        tensors[_FILE_PREFIX + name] = values
    write_safetensors(path, tensors, "bfloat16")
