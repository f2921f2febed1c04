"""Rounds weights to what a recipe stores, in torch, for the last phase of the training.

Groups of 32 input channels, symmetric, ``scale = max|w| / (2**(bits - 1) - 1)`` in float16: the
plain rule, by which 4-bit weights were stored when `tiny` was trained. `quantization.group_search`
is what stores them now. The gradient passes as if nothing had happened.
"""

from __future__ import annotations

from typing import Any

import torch

GROUP = 32
_NARROW = 256  # columns of a tower's matrix below which a recipe leaves it dense
_TOWERS = ("vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.")
_SMALL = ("per_layer_input_gate", "per_layer_projection.", "per_layer_model_projection")


def bits_of(name: str, bits: int, shape: tuple[int, ...] = ()) -> int | None:
    """Bits of a parameter in the recipe of `bits` bits; None for vectors, which stay dense.

    Parameters
    ----------
    shape : of a matrix of a tower
    """
    if name.endswith(("norm.weight", "layer_scalar")) or "_head." in name:
        return None
    if any(part in name for part in _TOWERS):
        fits = len(shape) == 2 and shape[1] >= _NARROW and shape[1] % GROUP == 0
        return 8 if fits else None
    return 8 if any(part in name for part in _SMALL) else bits


def rounded(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """The values that `weight` (rows, cols) has after quantisation."""
    limit = 2 ** (bits - 1) - 1
    groups = weight.reshape(*weight.shape[:-1], -1, GROUP)
    scale = (groups.abs().amax(-1, keepdim=True) / limit).half().float()
    scale = scale.clamp_min(torch.finfo(torch.float16).tiny)
    whole = (groups / scale).round().clamp(-limit, limit)
    return (whole * scale).flatten(-2)


def quantised_parameters(model: Any, bits: int) -> dict[str, torch.Tensor]:
    """Every matrix of a recipe after quantisation, by name; gradients pass straight through."""
    found = {}
    for name, parameter in model.named_parameters():
        width = bits_of(name, bits, tuple(parameter.shape))
        if width is not None:
            with torch.no_grad():
                step = rounded(parameter, width) - parameter
            found[name] = parameter + step
    return found
