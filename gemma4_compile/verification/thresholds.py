"""Thresholds of a package, by recipe. docs/numerics.md explains the figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gemma4_compile.quantization.scheme import DenseScheme, Scheme
from gemma4_compile.verification.measures import LayerMeasures, LogitMeasures


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


# The reference computes with the package's own weights: what is left is rounding in kernels.
_ARITHMETIC_F32 = Thresholds(1e-7, 0.98, 0.98, 0.999999, 1.001)
_ARITHMETIC_F16 = Thresholds(1e-3, 0.95, 0.95, 0.9999, 1.01)
_ARITHMETIC_INT8 = Thresholds(5e-2, 0.85, 0.85, 0.99, 1.10)
# The reference computes with the checkpoint's weights: what the recipe rounded away counts, too.
_WEIGHTS_8_BIT = Thresholds(5e-2, 0.85, 0.85, 0.99, 1.10)
_WEIGHTS_4_BIT = Thresholds(0.5, 0.60, 0.60, 0.80, 2.0)

ARITHMETIC: Mapping[str, Thresholds] = {
    "f32": _ARITHMETIC_F32,
    "q4f32": _ARITHMETIC_F32,
    "f16": _ARITHMETIC_F16,
    "q8f16": _ARITHMETIC_F16,
    "q4f16": _ARITHMETIC_F16,
}
WHOLE: Mapping[str, Thresholds] = {
    "f32": _ARITHMETIC_F32,
    "f16": _ARITHMETIC_F16,
    "q8f16": _WEIGHTS_8_BIT,
    "q4f32": _WEIGHTS_4_BIT,
    "q4f16": _WEIGHTS_4_BIT,
}


def loosest(bounds: Sequence[Thresholds]) -> Thresholds:
    """The bounds that whatever meets one of `bounds` meets, too."""
    return Thresholds(
        kl_mean=max(bound.kl_mean for bound in bounds),
        top1=min(bound.top1 for bound in bounds),
        top5=min(bound.top5 for bound in bounds),
        cosine=min(bound.cosine for bound in bounds),
        perplexity_ratio=max(bound.perplexity_ratio for bound in bounds),
    )


def thresholds(recipe: str, *, int8: bool, whole: bool) -> Thresholds:
    """Bounds for a recipe.

    Parameters
    ----------
    int8 : whether decoding rounds vectors to int8
    whole : whether the reference has the checkpoint's weights, and not the package's
    """
    bounds = (WHOLE if whole else ARITHMETIC)[recipe]
    return loosest([bounds, _ARITHMETIC_INT8]) if int8 else bounds


def worst_layer(cosines: Sequence[float]) -> int:
    """Index of the smallest cosine; NaN is smaller than all."""
    return min(
        range(len(cosines)), key=lambda i: -math.inf if math.isnan(cosines[i]) else cosines[i]
    )


def shortfalls(
    bounds: Thresholds, logits: LogitMeasures, layers: Sequence[LayerMeasures]
) -> Iterator[str]:
    """Describe, for every measure beyond its bound what was found and what is asked for."""
    ratio = logits.perplexity / logits.reference_perplexity
    upper = (
        ("mean KL divergence", logits.kl_mean, bounds.kl_mean),
        ("perplexity over the reference's", ratio, bounds.perplexity_ratio),
    )
    lower = [
        ("top-1 agreement", logits.top1, bounds.top1),
        ("top-5 agreement", logits.top5, bounds.top5),
    ]
    if layers:
        worst = worst_layer([layer.cosine_mean for layer in layers])
        name = f"cosine after layer {worst}"
        lower.append((name, layers[worst].cosine_mean, bounds.cosine))
    # Written so that a NaN fails.
    for name, found, bound in upper:
        if not found <= bound:
            yield f"{name} is {found:.3g}, at most {bound:g} is allowed"
    for name, found, bound in lower:
        if not found >= bound:
            yield f"{name} is {found:.5g}, at least {bound:g} is needed"


# Rows of media. A block of a tower (attention, feed-forward, a step before or after the layers)
# has up to four roundings in a chain, and errors of blocks add up like a random walk; three times
# as much is allowed.
_ROUNDINGS = 4
_REDUCTION = 1 << 14  # terms of a tower's longest sum, at most
_SAFETY = 3.0
_EVEN_ERROR = 12**-0.5  # deviation of an error that is spread evenly over a step
_PEAK = 2.4  # deviations of the largest of a group of 32 in the mean
_HALF_F16, _HALF_F32 = 2.0**-11, 2.0**-24
_F16_STEP = 2.0**-24  # of the smallest numbers
_GROUP = 32


def _step_error(levels: int) -> float:
    """Relative error of values that groups of 32 round to so many levels on each side of 0."""
    return _PEAK / levels * _EVEN_ERROR


def rows_bound(dtype: str, blocks: int, schemes: Sequence[Scheme] = (), *, int8: bool) -> float:
    """Largest relative error of the rows of a medium.

    Parameters
    ----------
    dtype : of the activations
    blocks : of the tower
    schemes : of its weights, where the reference has the checkpoint's
    int8 : whether matmuls round vectors to int8
    """
    if dtype == "float16":
        rounding = math.sqrt(_ROUNDINGS) * _HALF_F16 * 2 * _EVEN_ERROR
    else:
        rounding = math.sqrt(_REDUCTION) * _HALF_F32
    vectors = math.sqrt(_ROUNDINGS) * _step_error(127) if int8 else 0.0
    weights = max((math.sqrt(_ROUNDINGS) * _weight_error(scheme) for scheme in schemes), default=0)
    return _SAFETY * math.sqrt(blocks * (rounding**2 + vectors**2 + weights**2))


def _weight_error(scheme: Scheme) -> float:
    """Relative error of a stored weight, in the mean."""
    if isinstance(scheme, DenseScheme):
        return 2 * _EVEN_ERROR * (_HALF_F16 if scheme.dtype == "float16" else _HALF_F32)
    return _step_error(scheme.zero_point)


def weight_bound(scheme: Scheme) -> tuple[float, float]:
    """Largest error of a stored row: relative to its length, and of each weight on top of that.

    What rounding can do at most. Half a step of a group is its largest weight over twice the
    levels, and that weight is part of the row's length.
    """
    smallest = 0.0
    if isinstance(scheme, DenseScheme):
        if scheme.dtype == "float32":
            return 2 * _HALF_F32, 0.0
        return 2 * _HALF_F16, _F16_STEP
    if scheme.scale_dtype == "float16":
        smallest = _F16_STEP * scheme.zero_point
    return math.sqrt(_GROUP) / (2 * scheme.zero_point) + 4 * _HALF_F16, smallest
