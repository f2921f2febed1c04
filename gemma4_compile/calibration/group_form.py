"""4 bits with a signed scale for 32 channels: `quantization.groups`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gemma4_compile.calibration.form import (
    FITS,
    Form,
    Grid,
    Pair,
    Terms,
    importance_of,
    nearest,
)
from gemma4_compile.quantization.groups import GroupScheme
from gemma4_compile.types import Array

LOW, HIGH = -7, 8  # steps of codes 0 and 15
_RATIOS = torch.linspace(6.6, 10.2, 10).tolist()  # of a group's largest weight to its step


@dataclass(frozen=True)
class GroupForm(Form):
    """``(q - 7) * scale``; the terms are the scales (rows, groups), values of their dtype."""

    scheme: GroupScheme
    block_groups: int = 1
    low: int = LOW

    @property
    def group_size(self) -> int:  # type: ignore[override]
        """See `Form`."""
        return self.scheme.group_size

    def terms_of(self, stored: Pair) -> Terms:
        """See `Form`."""
        return (torch.from_numpy(stored[1].astype("float64")),)

    def grid(self, terms: Terms, groups: int) -> Grid:
        """See `Form`."""
        steps = terms[0][:, :groups]
        return Grid(steps, torch.zeros_like(steps), LOW, HIGH)

    def search(self, weight: torch.Tensor, strength: torch.Tensor, plain: Terms) -> Terms:
        """See `Form`."""
        return (search_scales(weight, strength, self.scheme),)

    def stored(self, codes: Array, terms: Terms) -> Pair:
        """See `Form`."""
        scales = terms[0].cpu().numpy().astype(self.scheme.scale_dtype)
        return self.scheme.packing.pack(codes), scales


def search_scales(
    weight: torch.Tensor, strength: torch.Tensor, scheme: GroupScheme
) -> torch.Tensor:
    """Signed scales (rows, groups) of the least error, weighted by the strength of the inputs.

    They are values of the scale's dtype, in float64.
    """
    size, dtype = scheme.group_size, getattr(torch, scheme.scale_dtype)
    groups = weight.reshape(len(weight), -1, size)
    importance = importance_of(strength, size)
    largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    none = torch.zeros_like(largest)
    best = none
    least = (importance * groups * groups).sum(2, keepdim=True)
    for ratio in (*_RATIOS, *(-ratio for ratio in _RATIOS)):
        steps = (largest / ratio).to(dtype).to(weight.dtype)
        for _ in range(FITS):
            levels = nearest(groups, steps, none, LOW, HIGH)
            weighted = importance * levels
            squares = (weighted * levels).sum(2, keepdim=True).clamp_min_(1e-30)
            steps = ((weighted * groups).sum(2, keepdim=True) / squares).to(dtype)
            steps = steps.to(weight.dtype)
        levels = nearest(groups, steps, none, LOW, HIGH)
        error = (importance * (levels * steps - groups) ** 2).sum(2, keepdim=True)
        better = error < least
        least, best = torch.where(better, error, least), torch.where(better, steps, best)
    return best[:, :, 0]
