"""Thresholds of a package, by recipe. docs/numerics.md explains the figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from gemma4_compile.quantization.groups import step_error
from gemma4_compile.quantization.quality import Thresholds, loosest
from gemma4_compile.quantization.scheme import EVEN_ERROR, HALF_STEP, Scheme
from gemma4_compile.quantization.schemes import NAMED
from gemma4_compile.verification.measures import DraftMeasures, LayerMeasures, LogitMeasures

# The reference computes with the package's own weights: what is left is rounding in kernels.
ARITHMETIC: Mapping[str, Thresholds] = {
    "float32": Thresholds(1e-7, 0.98, 0.98, 0.999999, 1.001),
    "float16": Thresholds(1e-3, 0.95, 0.95, 0.9999, 1.01),
}
"""By the dtype of activations."""
_ARITHMETIC_INT8 = Thresholds(5e-2, 0.85, 0.85, 0.99, 1.10)
_ARITHMETIC_STEPS = Thresholds(0.5, 0.60, 0.60, 0.80, 2.0)
"""A model that rounds to steps of its own goes another way from the first value beside a tie on,
and is as far from itself then with sums in another order (docs/numerics.md)."""


def activation_dtype(recipe: str, *, words: bool) -> str:
    """Dtype of a library's activations; `words` is whether it reads float16 weights as words."""
    return "float32" if words else NAMED[recipe].activation_dtype


def thresholds(
    recipe: str, *, int8: bool, whole: bool, words: bool = False, stepped: bool = False
) -> Thresholds:
    """Bounds for a recipe.

    Parameters
    ----------
    words : as in `activation_dtype`
    int8 : whether decoding rounds vectors to int8
    whole : whether the reference has the checkpoint's weights, and not the package's
    stepped : whether the model itself rounds activations, to the steps of its checkpoint
    """
    chosen = NAMED[recipe]
    rounded = [scheme.thresholds for scheme in chosen.schemes.values()] if whole else []
    vectors = [*([_ARITHMETIC_INT8] if int8 else []), *([_ARITHMETIC_STEPS] if stepped else [])]
    return loosest([ARITHMETIC[activation_dtype(recipe, words=words)], *rounded, *vectors])


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


def draft_kl_bound(bounds: Thresholds, *, whole: bool) -> float:
    """Largest mean divergence of a drafter's drafts."""
    return 2 * bounds.kl_mean if whole else bounds.kl_mean


def draft_shortfalls(bounds: Thresholds, found: DraftMeasures, *, whole: bool) -> Iterator[str]:
    """As `shortfalls`, of a drafter's drafts.

    Two models with rounded weights, one after the other, may diverge twice as far. With the
    checkpoint's weights as `whole` the token has no bound: which of two that are nearly as good is
    drafted decides what a step costs, and not what is said.
    """
    most = draft_kl_bound(bounds, whole=whole)
    if not found.kl_mean <= most:
        yield f"mean KL divergence is {found.kl_mean:.3g}, at most {most:g} is allowed"
    lower = (
        *(() if whole else (("agreement", found.top1, bounds.top1),)),
        ("share of the reference's candidates", found.candidates, bounds.top5),
        ("cosine of the states", found.cosine_mean, bounds.cosine),
    )
    for name, value, bound in lower:
        if not value >= bound:
            yield f"{name} is {value:.5g}, at least {bound:g} is needed"


# Rows of media. A block of a tower (attention, feed-forward, a step before or after the layers)
# has up to four roundings in a chain, and errors of blocks add up like a random walk; three times
# as much is allowed.
_ROUNDINGS = 4
_REDUCTION = 1 << 14  # terms of a tower's longest sum, at most
_SAFETY = 3.0


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
        rounding = math.sqrt(_ROUNDINGS) * HALF_STEP[dtype] * 2 * EVEN_ERROR
    else:
        rounding = math.sqrt(_REDUCTION) * HALF_STEP[dtype]
    vectors = math.sqrt(_ROUNDINGS) * step_error(127) if int8 else 0.0
    weights = max((math.sqrt(_ROUNDINGS) * scheme.mean_error for scheme in schemes), default=0)
    return _SAFETY * math.sqrt(blocks * (rounding**2 + vectors**2 + weights**2))
