"""Bounds by recipe: none is missing, looser ones stay looser, and NaN is beyond all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gemma4_compile.quantization.dense import DenseScheme
from gemma4_compile.quantization.groups import GroupScheme
from gemma4_compile.quantization.scheme import Scheme
from gemma4_compile.quantization.schemes import NAMED
from gemma4_compile.verification.measures import DraftMeasures, LayerMeasures, LogitMeasures
from gemma4_compile.verification.thresholds import (
    activation_dtype,
    draft_shortfalls,
    rows_bound,
    shortfalls,
    thresholds,
)

PERFECT = LogitMeasures(4, 0.0, 0.0, 1.0, 1.0, 0.0, 10.0, 10.0)
LAYER = LayerMeasures(1.0, 1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("recipe", "kl_mean", "lost"),
    [
        ("f32", 1e-7, 1e-7),
        ("f16", 1e-3, 1e-3),
        ("q8f16", 1e-3, 5e-2),
        ("q4f32", 1e-7, 0.5),
        ("q4f16", 1e-3, 0.5),
    ],
)
def test_a_recipe_has_the_bounds_of_its_arithmetic_and_of_its_schemes(
    recipe: str, kl_mean: float, lost: float
) -> None:
    assert thresholds(recipe, int8=False, whole=False).kl_mean == kl_mean
    assert thresholds(recipe, int8=False, whole=True).kl_mean == lost


def test_a_library_that_computes_in_float32_is_held_to_it() -> None:
    for whole, kl_mean in ((False, 1e-7), (True, 0.5)):
        assert thresholds("q4f16", int8=False, whole=whole, words=True).kl_mean == kl_mean
    assert activation_dtype("q4f16", words=True) == "float32"
    assert activation_dtype("q4f16", words=False) == "float16"


def test_a_model_that_rounds_may_go_another_way() -> None:
    assert thresholds("mobile", int8=False, whole=True).kl_mean == 1e-7
    stepped = thresholds("mobile", int8=False, whole=False, stepped=True)
    assert list(shortfalls(stepped, replace(PERFECT, kl_mean=0.4), [LAYER])) == []
    assert list(shortfalls(stepped, replace(PERFECT, kl_mean=0.6), [LAYER])) != []


@pytest.mark.parametrize("recipe", NAMED)
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


SCHEMES = (
    DenseScheme("float32"),
    DenseScheme("float16"),
    GroupScheme(8, "float32"),
    GroupScheme(8, "float16"),
    GroupScheme(4, "float16"),
)


def test_coarser_rounding_loosens_the_bound_of_rows_of_media() -> None:
    bounds = [rows_bound("float32", 8, (), int8=False)]
    bounds += [rows_bound("float16", 8, (), int8=False), rows_bound("float16", 8, (), int8=True)]
    bounds.append(rows_bound("float16", 8, [SCHEMES[3], SCHEMES[4]], int8=True))
    assert bounds == sorted(bounds)
    assert bounds[0] < 1e-4, "a mistake costs more"
    assert bounds[1] < 1e-2
    assert bounds[3] < 2
    assert rows_bound("float16", 56, (), int8=False) > bounds[1], "a longer tower"
    assert rows_bound("float16", 8, SCHEMES[2:3], int8=False) < 0.2


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 1e2])
def test_rounding_stays_within_the_bound_of_stored_rows(scheme: Scheme, size: float) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((64, 96)) * size).astype(np.float32)
    rows[0, 1:] = 0  # all in one weight, and one that is far beyond the others
    rows[1, 5] = 100 * size
    found = scheme.load(scheme.store(rows, name="w", first_row=0))
    relative, smallest = scheme.row_bound
    allowed = relative * np.linalg.norm(rows, axis=-1) + smallest * rows.shape[1] ** 0.5
    assert (np.linalg.norm(found - rows, axis=-1) <= allowed).all()
    if size >= 1e-3:
        lengths = np.linalg.norm(rows[2:], axis=-1)
        assert (allowed[2:] < 0.5 * lengths).all(), "a row that is gone is beyond"


GOOD = DraftMeasures(4, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("kl_mean", 2e-3, "mean KL divergence is 0.002, at most 0.001"),
        ("kl_mean", float("nan"), "mean KL divergence is nan"),
        ("top1", 0.9, "agreement is 0.9, at least 0.95"),
        ("candidates", 0.5, "share of the reference's candidates is 0.5"),
        ("cosine_mean", 0.99, "cosine of the states is 0.99"),
    ],
)
def test_drafts_beyond_a_bound_are_described(name: str, value: float, said: str) -> None:
    bounds = thresholds("f16", int8=False, whole=False)
    assert not list(draft_shortfalls(bounds, GOOD, whole=False))
    values: dict[str, Any] = {name: value}
    bad = replace(GOOD, **values)
    (found,) = draft_shortfalls(bounds, bad, whole=False)
    assert found.startswith(said)
    # Which token is drafted is no matter of rounded weights, and two models round twice.
    forgiven = name == "top1" or value == 2e-3
    assert len(list(draft_shortfalls(bounds, bad, whole=True))) == (not forgiven)
