"""Bounds by recipe: none is missing, looser ones stay looser, and NaN is beyond all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemma4_compile.quantization.recipe import RECIPES
from gemma4_compile.verification.measures import LayerMeasures, LogitMeasures
from gemma4_compile.verification.thresholds import ARITHMETIC, WHOLE, shortfalls, thresholds

PERFECT = LogitMeasures(4, 0.0, 0.0, 1.0, 1.0, 0.0, 10.0, 10.0)
LAYER = LayerMeasures(1.0, 1.0, 0.0, 0.0)


def test_every_recipe_has_bounds() -> None:
    assert set(ARITHMETIC) == set(WHOLE) == set(RECIPES)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("int8", [False, True])
def test_what_the_recipe_rounds_away_loosens_bounds_only(recipe: str, int8: bool) -> None:
    own, whole = (thresholds(recipe, int8=int8, whole=value) for value in (False, True))
    assert whole.kl_mean >= own.kl_mean
    assert whole.top1 <= own.top1
    assert whole.cosine <= own.cosine
    assert not list(shortfalls(own, PERFECT, [LAYER]))


@pytest.mark.parametrize(
    ("measures", "said"),
    [
        (replace(PERFECT, kl_mean=1.0), "mean KL divergence is 1,"),
        (replace(PERFECT, top1=0.1), "top-1 agreement is 0.1,"),
        (replace(PERFECT, top5=0.1), "top-5 agreement is 0.1,"),
        (replace(PERFECT, perplexity=40.0), "perplexity over the reference's is 4,"),
        (replace(PERFECT, kl_mean=float("nan")), "mean KL divergence is nan"),
        (replace(PERFECT, perplexity=float("nan")), "perplexity over the reference's is nan"),
    ],
)
def test_a_measure_beyond_its_bound_is_named(measures: LogitMeasures, said: str) -> None:
    bounds = thresholds("q4f16", int8=True, whole=True)
    (found,) = shortfalls(bounds, measures, [LAYER])
    assert found.startswith(said)


@pytest.mark.parametrize("cosine", [0.1, float("nan")])
def test_the_worst_layer_is_named(cosine: float) -> None:
    bounds = thresholds("f32", int8=False, whole=False)
    layers = [LAYER, replace(LAYER, cosine_mean=cosine), LAYER]
    (found,) = shortfalls(bounds, PERFECT, layers)
    assert found.startswith("cosine after layer 1 is")
