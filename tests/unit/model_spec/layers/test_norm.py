"""Norms as functions of the model, by their values."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.layers.norm import (
    NormStack,
    Vector,
    add_normed,
    add_normed_and_norm,
    rms_norm,
    take_last_row,
)
from gemma4_compile.operators.rows import CHUNK
from tests.unit.model_spec.exported import exported, kinds, random, rms_normed, run, tensor

WIDTH, EPS = 8, 1e-3
X, BRANCH = random(0, 3, WIDTH), random(1, 3, WIDTH)
WEIGHT, NEXT, SCALAR = random(2, WIDTH), random(3, WIDTH), np.array([0.5], np.float32)


def test_weights_are_float32() -> None:
    vector, stack = Vector(4), NormStack(3, 4)
    assert (list(vector.weight.shape), vector.weight.dtype) == ([4], "float32")
    assert (list(stack.weight.shape), stack.weight.dtype) == ([3, 4], "float32")


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-5), ("float16", 1e-3)])
def test_a_norm_multiplies_by_its_weight_and_not_by_one_more(dtype: str, rtol: float) -> None:
    norm = Vector(WIDTH)

    def body(x: nn.Tensor) -> nn.Tensor:
        return rms_norm(x, norm, CHUNK, EPS, dtype)

    module = exported([norm], body, x=tensor("n", WIDTH))
    (found,) = run(module, X, [WEIGHT])
    assert found.dtype == dtype
    np.testing.assert_allclose(found, rms_normed(X, WEIGHT, EPS), rtol=rtol)


def test_a_branch_is_normed_and_added() -> None:
    norm = Vector(WIDTH)

    def body(residual: nn.Tensor, branch: nn.Tensor) -> nn.Tensor:
        return add_normed(residual, branch, norm, CHUNK, EPS)

    shape = tensor(3, WIDTH)
    module = exported([norm], body, residual=shape, branch=shape)
    assert kinds(module) == ["residual_norm"]
    (found,) = run(module, X, BRANCH, [WEIGHT])
    np.testing.assert_allclose(found, X + rms_normed(BRANCH, WEIGHT, EPS), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scaled", [False, True])
def test_the_sum_is_scaled_before_the_next_norm(scaled: bool) -> None:
    norm, following, scalar = Vector(WIDTH), Vector(WIDTH), Vector(1)

    def body(residual: nn.Tensor, branch: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        factor = scalar if scaled else None
        return add_normed_and_norm(residual, branch, norm, following, CHUNK, EPS, "float16", factor)

    shape = tensor("n", WIDTH)
    module = exported([norm, following, scalar], body, residual=shape, branch=shape)
    assert kinds(module) == ["residual_norm"]
    residual, hidden = run(module, X, BRANCH, [WEIGHT, NEXT, SCALAR])
    expected = (X + rms_normed(BRANCH, WEIGHT, EPS)) * (SCALAR[0] if scaled else 1)
    np.testing.assert_allclose(residual, expected, rtol=1e-5, atol=1e-6)
    assert (str(residual.dtype), str(hidden.dtype)) == ("float32", "float16")
    np.testing.assert_allclose(hidden, rms_normed(expected, NEXT, EPS), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_last_position_of_a_chunk(dtype: str) -> None:
    module = exported([], take_last_row, x=tensor("n", WIDTH, dtype=dtype))
    (found,) = run(module, X.astype(dtype), [])
    np.testing.assert_array_equal(found, X[-1:].astype(dtype))
