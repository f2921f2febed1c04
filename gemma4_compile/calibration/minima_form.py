"""4 bits with a minimum beside the scale of 32 channels: `quantization.minima`.

1. Of each group: for each of _RATIOS the codes of steps that cut the span from the lowest weight
   (or 0) to the highest (or 0) into so many, and twice the weighted least-squares scale and minimum
   of the codes and the nearest codes of these; without a minimum where that would be below 0.
2. Of each block: its units, the largest scale and minimum over 63 in bfloat16.
3. Of each group: with the scale's size, and those beside it, the weighted least-squares minimum of
   the codes as a size.
4. A block keeps the plain search's terms where these leave less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from gemma4_compile.calibration.form import (
    FITS,
    Form,
    Grid,
    Pair,
    Terms,
    importance_of,
    joined,
    nearest,
)
from gemma4_compile.operators.minima import GROUP, GROUPS, TOP_SIZE, pack_terms, unpack_terms
from gemma4_compile.operators.packings import NIBBLES
from gemma4_compile.quantization.minima import MinimaScheme
from gemma4_compile.quantization.minima_search import LEAST
from gemma4_compile.types import Array

LOW, HIGH = 0, 15
_RATIOS = torch.linspace(13.0, 17.0, 9).tolist()  # of a group's span to its step


@dataclass(frozen=True)
class MinimaForm(Form):
    """``q * scale - minimum``.

    The terms are units (rows, blocks, 2), which bfloat16 holds, and sizes (rows, blocks, GROUPS, 2)
    from 0 to TOP_SIZE: of scales, and of minima.
    """

    scheme: MinimaScheme
    group_size: int = GROUP
    block_groups: int = GROUPS
    low: int = LOW

    def terms_of(self, stored: Pair) -> Terms:
        """See `Form`."""
        units, sizes = unpack_terms(stored[1])
        return torch.from_numpy(units.astype("float64")), torch.from_numpy(sizes.astype("float64"))

    def grid(self, terms: Terms, groups: int) -> Grid:
        """See `Form`."""
        scales, minima = _sized(terms)
        return Grid(scales[:, :groups], minima[:, :groups], LOW, HIGH)

    def search(self, weight: torch.Tensor, strength: torch.Tensor, plain: Terms) -> Terms:
        """See `Form`."""
        short = -weight.shape[1] % self.block_size
        groups = F.pad(weight, (0, short)).reshape(len(weight), -1, GROUP)
        largest = groups.abs().amax(2, keepdim=True)
        groups = torch.where(largest < LEAST, torch.zeros_like(groups), groups)
        importance = F.pad(importance_of(strength, GROUP), (0, 0, 0, short // GROUP), value=1.0)
        fit = _Fit(groups, importance)
        found = fit.refined(*fit.fitted())
        return joined(fit.block_errors(plain) < fit.block_errors(found), plain, found)

    def stored(self, codes: Array, terms: Terms) -> Pair:
        """See `Form`."""
        units, sizes = (term.cpu().numpy() for term in terms)
        packed = pack_terms(units.astype(np.float32), sizes.astype(np.uint8))
        return NIBBLES.pack(codes), packed


def _sized(terms: Terms) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and minima (rows, groups)."""
    units, sizes = terms
    found = (sizes * units[:, :, None]).flatten(1, 2)
    return found[..., 0], found[..., 1]


def _ratio(above: torch.Tensor, below: torch.Tensor) -> torch.Tensor:
    """A quotient, 0 where the divisor is none."""
    return torch.where(below > 0, above / torch.where(below > 0, below, 1.0), 0.0)


@dataclass(frozen=True)
class _Fit:
    """Groups (rows, groups, GROUP), and weights of their square errors (1, groups, GROUP)."""

    groups: torch.Tensor
    importance: torch.Tensor

    def errors(self, scales: torch.Tensor, minima: torch.Tensor) -> torch.Tensor:
        """Of the nearest codes: (rows, groups)."""
        scales, minima = scales[..., None], minima[..., None]
        off = nearest(self.groups, scales, minima, LOW, HIGH) * scales - minima - self.groups
        return (self.importance * off * off).sum(2)

    def block_errors(self, terms: Terms) -> torch.Tensor:
        """The same of blocks: (rows, blocks)."""
        return self.errors(*_sized(terms)).reshape(len(self.groups), -1, GROUPS).sum(2)

    def fitted(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Step 1: scales and minima (rows, groups)."""
        least = torch.full(self.groups.shape[:2], torch.inf).to(self.groups)
        best = torch.zeros_like(least), torch.zeros_like(least)
        for scales, minima in self._fits():
            error = self.errors(scales, minima)
            better = error < least
            least = torch.where(better, error, least)
            best = torch.where(better, scales, best[0]), torch.where(better, minima, best[1])
        return best

    def _fits(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        low = self.groups.amin(2).clamp_max_(0)
        span = self.groups.amax(2).clamp_min_(0) - low
        total = self.importance.sum(2)
        sums = (self.importance * self.groups).sum(2)
        for ratio in _RATIOS:
            scales, minima = span / ratio, -low
            for _ in range(FITS):
                codes = nearest(self.groups, scales[..., None], minima[..., None], LOW, HIGH)
                weighted = self.importance * codes
                q, qq = weighted.sum(2), (weighted * codes).sum(2)
                qx = (weighted * self.groups).sum(2)
                scales = _ratio(total * qx - q * sums, total * qq - q * q)
                minima = (scales * q - sums) / total
                alone = minima < 0
                scales = torch.where(alone, _ratio(qx, qq), scales).clamp_min_(0)
                minima = torch.where(alone, torch.zeros_like(minima), minima)
            yield scales, minima

    def refined(self, scales: torch.Tensor, minima: torch.Tensor) -> Terms:
        """Steps 2 and 3."""
        both = torch.stack([scales, minima], 2).reshape(len(scales), -1, GROUPS, 2)
        units = (both.amax(2) / TOP_SIZE).to(torch.float32).to(torch.bfloat16).to(both.dtype)
        spread = units.repeat_interleave(GROUPS, 1)
        divisors = torch.where(spread == 0, torch.ones_like(spread), spread)
        first = (both.flatten(1, 2) / divisors).round_().clamp_(0, TOP_SIZE)
        total = self.importance.sum(2)
        sums = (self.importance * self.groups).sum(2)
        best, least = first, self.errors(*(first * spread).unbind(2))
        for moved in (0, -1, 1):
            sizes = (first[..., 0] + moved).clamp_(0, TOP_SIZE)
            steps = sizes * spread[..., 0]
            offsets = first[..., 1] * spread[..., 1]
            codes = nearest(self.groups, steps[..., None], offsets[..., None], LOW, HIGH)
            wanted = (steps * (self.importance * codes).sum(2) - sums) / total
            others = (wanted / divisors[..., 1]).round_().clamp_(0, TOP_SIZE)
            error = self.errors(steps, others * spread[..., 1])
            better = error < least
            least = torch.where(better, error, least)
            best = torch.where(better[..., None], torch.stack([sizes, others], 2), best)
        return units, best.reshape(both.shape)
