"""What stands between the matmuls of a conformer layer, against NumPy in float64."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.operators.conformer import (
    AddClipped,
    Clip,
    ClippedNorm,
    GatedConv,
    RelativeAttention,
)
from tests.numerics.definitions import F32_ABSOLUTE, F32_RELATIVE, ROUNDED, run, values

Wide = npt.NDArray[np.float64]

EPS = 1e-6
ROWS, WIDTH = 7, 24
BOUNDS = np.array([-0.9, 0.5, -0.4, 0.7], np.float32)
OTHER = np.array([-0.3, 0.25, -9.0, 9.0], np.float32)


def norm(x: Wide) -> Wide:
    return np.asarray(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPS))


def silu(x: Wide) -> Wide:
    return x / (1.0 + np.exp(-x))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_clip_takes_the_results_bounds_then_the_next_inputs(dtype: str) -> None:
    x, y = values(1, ROWS, WIDTH, deviation=3.0), np.zeros((ROWS, WIDTH), dtype)

    run(Clip(WIDTH, "float32", dtype, True, True, True), x, BOUNDS, OTHER, y)

    expected = silu(x.astype(np.float64).clip(-0.4, 0.7)).clip(-0.3, 0.25)
    np.testing.assert_allclose(y, expected, **ROUNDED[dtype])
    run(Clip(WIDTH, "float32", dtype, False, True, False), x, y)
    np.testing.assert_allclose(y, silu(x.astype(np.float64)), **ROUNDED[dtype])


def test_silu_of_large_values_is_finite() -> None:
    x, y = np.array([[-1e4, -100.0, 0.0, 1e4]], np.float32), np.zeros((1, 4), np.float32)
    run(Clip(4, "float32", "float32", False, True, False), x, y)
    np.testing.assert_allclose(y, [[0.0, 0.0, 0.0, 1e4]], atol=1e-30)


def test_add_clipped() -> None:
    x, residual, y = values(1, ROWS, WIDTH), values(2, ROWS, WIDTH), np.zeros((ROWS, WIDTH), "f4")
    run(AddClipped(WIDTH, True), x, residual, BOUNDS, y)
    np.testing.assert_allclose(y, residual + x.clip(-0.4, 0.7), rtol=F32_RELATIVE)
    run(AddClipped(WIDTH, False), x, residual, y)
    np.testing.assert_allclose(y, residual + x, rtol=F32_RELATIVE)


@pytest.mark.parametrize("taps", [1, 5])
def test_gated_conv_looks_back_only(taps: int) -> None:
    x, w, y = values(1, ROWS, 2 * WIDTH), values(2, WIDTH, taps), np.zeros((ROWS, WIDTH), "f4")

    run(GatedConv(WIDTH, taps, True), x, w, BOUNDS, y)

    held = x.astype(np.float64).clip(-0.4, 0.7)
    gated = held[:, :WIDTH] / (1.0 + np.exp(-held[:, WIDTH:]))
    padded = np.concatenate([np.zeros((taps - 1, WIDTH)), gated])
    expected = sum(padded[t : t + ROWS] * w[:, t] for t in range(taps))
    np.testing.assert_allclose(y, expected, rtol=F32_RELATIVE, atol=F32_ABSOLUTE)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_clipped_norm_in_every_part(dtype: str) -> None:
    x, w, bias = values(1, ROWS, WIDTH, deviation=2.0), values(2, WIDTH), values(3, WIDTH)
    residual, y = values(4, ROWS, WIDTH), np.zeros((ROWS, WIDTH), dtype)
    operator = ClippedNorm(
        WIDTH,
        EPS,
        dtype,
        biased=True,
        after=True,
        before=True,
        silu=True,
        limit=1.1,
        factor=0.5,
    )

    run(operator, x, bias, BOUNDS, w, OTHER, residual, y)

    entering = (x.astype(np.float64).clip(-0.4, 0.7) + bias).clip(-1.1, 1.1)
    expected = residual + 0.5 * silu(norm(entering) * w).clip(-0.3, 0.25)
    np.testing.assert_allclose(y, expected, **ROUNDED[dtype])


def test_clipped_norm_alone_is_a_norm() -> None:
    x, y = values(1, ROWS, WIDTH, deviation=50.0), np.zeros((ROWS, WIDTH), np.float32)
    run(ClippedNorm(WIDTH, EPS, "float32", weighted=False), x, y)
    np.testing.assert_allclose(y, norm(x.astype(np.float64)), rtol=F32_RELATIVE)


def test_clamp_keeps_squares_finite() -> None:
    x, y = np.full((1, WIDTH), 1e30, np.float32), np.zeros((1, WIDTH), np.float32)
    run(ClippedNorm(WIDTH, EPS, "float32", weighted=False, limit=1e10), x, y)
    np.testing.assert_allclose(y, 1.0, rtol=F32_RELATIVE)


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("context", [1, 4, 12])
def test_relative_attention_sees_the_last_rows_by_distance(context: int, clips: bool) -> None:
    heads, dim, cap, rows = 3, 8, 2.0, 9
    q, k, v = (values(seed, rows, heads * dim) for seed in (1, 2, 3))
    relative, scale = values(4, context, heads * dim), values(5, dim)
    y = np.zeros_like(q)
    bounds = [BOUNDS, OTHER + 0.1, BOUNDS - 0.1, OTHER] if clips else []

    run(RelativeAttention(heads, dim, context, cap, clips), q, k, v, relative, scale, *bounds, y)

    wide = [item.astype(np.float64) for item in (q, k, v)]
    if clips:
        wide = [item.clip(*bound[2:]) for item, bound in zip(wide, bounds, strict=False)]
    query, key, value = (item.reshape(rows, heads, dim) for item in wide)
    query = query * np.log1p(np.exp(scale.astype(np.float64))) * dim**-0.5 / math.log(2)
    key = key * math.log(1 + math.e) / math.log(2)
    expected = np.zeros((rows, heads, dim))
    for i in range(rows):
        seen = np.arange(max(0, i - context + 1), i + 1)
        by_distance = relative.reshape(context, heads, dim)[i - seen].astype(np.float64)
        scores = np.einsum("hd,thd->ht", query[i], key[seen] + by_distance)
        weights = np.exp(cap * np.tanh(scores / cap))
        expected[i] = np.einsum("ht,thd->hd", weights, value[seen]) / weights.sum(1)[:, None]
    flat = expected.reshape(rows, -1)
    flat = flat.clip(*bounds[3][:2]) if clips else flat
    np.testing.assert_allclose(y, flat, rtol=F32_RELATIVE, atol=F32_ABSOLUTE)
