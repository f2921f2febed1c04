"""Thresholds of a comparison of two models. docs/numerics.md explains the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """Bounds of one comparison; a measure beyond its bound fails.

    Attributes
    ----------
    kl_mean : largest mean divergence, nats
    top1, top5 : smallest agreement
    cosine : smallest cosine of a layer's residual stream at any position, mean over positions
    perplexity_ratio : largest perplexity of the package over that of the reference
    """

    kl_mean: float
    top1: float
    top5: float
    cosine: float
    perplexity_ratio: float


EXACT = Thresholds(0.0, 1.0, 1.0, 1.0, 1.0)
"""Of what changes nothing: the tightest bounds there are."""


def loosest(bounds: Sequence[Thresholds]) -> Thresholds:
    """The bounds that whatever meets one of `bounds` meets, too."""
    return Thresholds(
        kl_mean=max(bound.kl_mean for bound in bounds),
        top1=min(bound.top1 for bound in bounds),
        top5=min(bound.top5 for bound in bounds),
        cosine=min(bound.cosine for bound in bounds),
        perplexity_ratio=max(bound.perplexity_ratio for bound in bounds),
    )
