"""Scalar formulas against their definitions in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import te

from gemma4_compile.operators.math import as_f32, f32, gelu_tanh, softcap, tanh
from gemma4_compile.operators.types import Expr

LARGE = [-np.inf, -1e30, -89.0, -15.0, -1.0, -1e-3, 0.0, 1e-3, 0.5, 2.0, 15.0, 89.0, 1e30, np.inf]
X = np.array([*LARGE, *np.linspace(-12, 12, 97)], np.float32)


def on_cpu(formula: Callable[[Expr], Expr], values: np.ndarray) -> np.ndarray:
    x = te.placeholder(values.shape, str(values.dtype), name="x")
    y = te.compute(values.shape, lambda i: formula(x[i]), name="y")
    kernel = tvm.compile(te.create_prim_func([x, y]), target="llvm")["main"]
    result = tvm.runtime.empty(values.shape, "float32")
    kernel(tvm.runtime.tensor(values), result)
    found: np.ndarray = result.numpy()
    return found


def test_tanh_saturates_for_any_argument() -> None:
    np.testing.assert_allclose(on_cpu(tanh, X), np.tanh(X.astype(float)), rtol=2e-6, atol=1e-7)


def test_gelu_is_the_tanh_form() -> None:
    x = X[np.abs(X) < 1e10].astype(float)
    expected = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    found = on_cpu(gelu_tanh, x.astype(np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=5e-7)
    assert found[0] == 0, "of a large negative number"


@pytest.mark.parametrize("cap", [30.0, 0.5])
def test_a_softcap_bounds_and_hardly_moves_small_values(cap: float) -> None:
    found = on_cpu(lambda x: softcap(x, cap), X)
    np.testing.assert_allclose(found, cap * np.tanh(X.astype(float) / cap), rtol=2e-6, atol=1e-6)
    assert np.abs(found).max() <= cap


def test_constants_and_conversions_are_float32() -> None:
    halves = np.array([0.1, -2.5, 65504], np.float16)
    np.testing.assert_array_equal(on_cpu(as_f32, halves), halves.astype(np.float32))
    third = 1 / 3
    found = on_cpu(lambda x: f32(third) + x * 0.0, np.zeros(1, np.float32))
    assert found[0] == np.float32(third)
