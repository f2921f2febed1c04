"""Norm operators against NumPy in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.operators.norms import (
    PerLayerInputs,
    ResidualNorm,
    RmsNorm,
    TakeLastRow,
)
from gemma4_compile.operators.rows import CHUNK, ONE
from tests.numerics.definitions import F32_ABSOLUTE, F32_RELATIVE, ROUNDED, run, values

EPS = 1e-6
ROWS, WIDTH = 5, 96


def norm(x: npt.NDArray[np.float32] | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + EPS)


@pytest.mark.parametrize("rows", [None, 1])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rms_norm_multiplies_by_its_weight(rows: int | None, dtype: str) -> None:
    count = rows or ROWS
    x, w = values(1, count, WIDTH, deviation=30.0), values(2, WIDTH)
    y = np.zeros((count, WIDTH), dtype)

    run(RmsNorm(ONE if rows == 1 else CHUNK, WIDTH, EPS, dtype), x, w, y)

    np.testing.assert_allclose(y, norm(x) * w, **ROUNDED[dtype])


def test_rms_norm_of_zeros_is_zero() -> None:
    y = np.ones((1, WIDTH), np.float32)

    run(
        RmsNorm(ONE, WIDTH, EPS, "float32"),
        np.zeros((1, WIDTH), np.float32),
        values(2, WIDTH),
        y,
    )

    assert not y.any()


@pytest.mark.parametrize("size", [1.0, 1e6])
@pytest.mark.parametrize("scaled", [False, True])
def test_residual_norm_adds_the_normed_branch_and_scales_the_sum(scaled: bool, size: float) -> None:
    y, residual = values(1, ROWS, WIDTH), values(2, ROWS, WIDTH, deviation=size)
    w, scalar = values(3, WIDTH), np.array([0.0894], np.float32)
    out = np.zeros((ROWS, WIDTH), np.float32)

    extra = [scalar] if scaled else []
    run(ResidualNorm(CHUNK, WIDTH, EPS, scaled, None), y, residual, w, *extra, out)

    expected = (residual + norm(y) * w) * (scalar[0] if scaled else 1.0)
    np.testing.assert_allclose(out, expected, rtol=F32_RELATIVE, atol=F32_ABSOLUTE)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_residual_norm_also_gives_the_norm_of_its_sum(dtype: str) -> None:
    y, residual = values(1, ROWS, WIDTH), values(2, ROWS, WIDTH, deviation=1e5)
    w, scalar, w_next = values(3, WIDTH), np.array([0.5], np.float32), values(4, WIDTH)
    out, hidden = np.zeros((ROWS, WIDTH), np.float32), np.zeros((ROWS, WIDTH), dtype)

    operator = ResidualNorm(CHUNK, WIDTH, EPS, True, dtype)
    run(operator, y, residual, w, scalar, w_next, out, hidden)

    total = (residual + norm(y) * w) * 0.5
    np.testing.assert_allclose(out, total, rtol=F32_RELATIVE)
    assert np.isfinite(hidden).all()
    np.testing.assert_allclose(hidden, norm(total) * w_next, **ROUNDED[dtype])


def test_per_layer_inputs_norm_each_layers_columns_by_themselves() -> None:
    layers, width = 3, 32
    context, tokens = values(1, ROWS, layers * width), values(2, ROWS, layers * width)
    context[:, :width] *= 100.0
    w = values(3, width)
    out = np.zeros_like(context)

    operator = PerLayerInputs(CHUNK, layers, width, EPS, 0.25, 1.5, 2.0**-0.5)
    run(operator, context, tokens, w, out)

    normed = norm(context.reshape(ROWS, layers, width) * np.float32(0.25)) * w
    expected = (normed + tokens.reshape(ROWS, layers, width) * 1.5) * 2.0**-0.5
    np.testing.assert_allclose(
        out, expected.reshape(out.shape), rtol=F32_RELATIVE, atol=F32_ABSOLUTE
    )


@pytest.mark.parametrize("count", [1, 2, ROWS])
def test_take_last_row(count: int) -> None:
    x, y = values(1, count, WIDTH), np.zeros((1, WIDTH), np.float32)

    run(TakeLastRow(WIDTH, "float32"), x, y)

    np.testing.assert_array_equal(y[0], x[-1])
