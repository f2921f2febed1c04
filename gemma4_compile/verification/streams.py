"""What transformers' Gemma 3n has besides layers: several residual streams, and constants of them.

A model without weights has none of its constants either: they are buffers that no checkpoint holds.
This module needs torch and transformers (`gemma4-compile[verify]`).
"""

from __future__ import annotations

import torch
from transformers.models.gemma3n.modeling_gemma3n import (
    Gemma3nTextAltUp,
    Gemma3nTextDecoderLayer,
    Gemma3nTextModel,
)

from gemma4_compile.verification.attention_blocks import Untyped

ENDS = ("altup_projections", "altup_unembed_projections")
"""Modules before and after the layers."""


def has_streams(model: Untyped) -> bool:
    """Return whether a text decoder's layers take several streams."""
    return isinstance(model, Gemma3nTextModel)


def round_scales(model: Untyped, dtype: str) -> None:
    """Set the constants of the per-layer inputs, as they are where the model runs in `dtype`."""
    if not has_streams(model):
        return
    for name, scale in (
        ("per_layer_projection_scale", model.config.hidden_size**-0.5),
        ("per_layer_input_scale", 2.0**-0.5),
    ):
        rounded = torch.tensor(scale).to(getattr(torch, dtype)).to(torch.float32)
        setattr(model, name, torch.nn.Buffer(rounded, persistent=False))


def per_layer_inputs(model: Untyped, ids: torch.Tensor) -> torch.Tensor:
    """The tokens' half of the per-layer inputs: Gemma 4's function takes embeddings besides."""
    more = () if has_streams(model) else (None,)
    found: torch.Tensor = model.get_per_layer_inputs(ids, *more)
    return found


def fill_scales(module: torch.nn.Module) -> None:
    """Set the constants of a layer that has several streams; of another module nothing."""
    for part in module.modules():
        if isinstance(part, Gemma3nTextAltUp):
            part.router_input_scale = torch.nn.Buffer(
                torch.tensor(part.config.hidden_size**-1.0), persistent=False
            )


def active(layer: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """The stream (1, T, hidden_size) that a layer runs on; of one stream itself."""
    if not isinstance(layer, Gemma3nTextDecoderLayer):
        return hidden
    return hidden[layer.config.altup_active_idx]


class _Given(torch.nn.Module):
    """Stands for every layer: has what they made."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self._hidden = hidden

    def forward(self, *_: object, **__: object) -> torch.Tensor:
        return self._hidden


def normed(model: Untyped, hidden: torch.Tensor) -> torch.Tensor:
    """After the final norm, (1, T, hidden_size): several streams as one, or one stream."""
    if not has_streams(model):
        of_one: torch.Tensor = model.norm(hidden)
        return of_one
    layers = model.config.num_hidden_layers
    model.layers = torch.nn.ModuleList([_Given(hidden)] * layers)
    ids = torch.zeros(hidden.shape[1:3], dtype=torch.int64)
    result: torch.Tensor = model(input_ids=ids, use_cache=False).last_hidden_state
    return result
