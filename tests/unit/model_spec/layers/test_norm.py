"""Norms as functions of the model, by their values."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.layers.norm import (
    Norm,
    NormStack,
    StackedNorm,
    Vector,
    rows_like,
    take_last_row,
)
from gemma4_compile.operators.norms import RmsNorm
from gemma4_compile.operators.rows import CHUNK, ONE, Rows
from tests.unit.model_spec.exported import (
    exported,
    kinds,
    operators,
    random,
    rms_normed,
    run,
    tensor,
)

WIDTH, EPS = 8, 1e-3
X, WEIGHT = random(0, 3, WIDTH), random(2, WIDTH)


def test_weights_are_float32() -> None:
    vector, stack = Vector(4), NormStack(3, 4)
    assert (list(vector.weight.shape), vector.weight.dtype) == ([4], "float32")
    assert (list(stack.weight.shape), stack.weight.dtype) == ([3, 4], "float32")


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-5), ("float16", 1e-3)])
def test_a_norm_multiplies_by_its_weight_and_not_by_one_more(dtype: str, rtol: float) -> None:
    norm = Norm(WIDTH, EPS, dtype)

    def body(x: nn.Tensor) -> nn.Tensor:
        return norm(x)

    module = exported([norm], body, x=tensor("n", WIDTH))
    (found,) = run(module, X, [WEIGHT])
    assert found.dtype == dtype
    np.testing.assert_allclose(found, rms_normed(X, WEIGHT, EPS), rtol=rtol)


def test_a_norm_of_stacked_weights_is_that_of_its_row() -> None:
    stack = NormStack(3, WIDTH)
    norms = [StackedNorm(stack, row, EPS) for row in (2, 0)]

    def body(x: nn.Tensor) -> tuple[nn.Tensor, ...]:
        return tuple(norm(x) for norm in norms)

    weights = random(4, 3, WIDTH)
    found = run(exported([stack], body, x=tensor("n", WIDTH)), X, [weights])
    for values, row in zip(found, (2, 0), strict=True):
        np.testing.assert_allclose(values, rms_normed(X, weights[row], EPS), rtol=1e-5)


@pytest.mark.parametrize(("count", "rows"), [(1, ONE), (3, CHUNK), ("n", CHUNK)])
def test_the_form_of_rows_is_that_of_the_tensor(count: int | str, rows: Rows) -> None:
    norm = Norm(WIDTH, EPS)

    def body(x: nn.Tensor) -> nn.Tensor:
        return norm(x)

    (operator,) = operators(exported([norm], body, x=tensor(count, WIDTH)))
    assert operator == RmsNorm(rows, WIDTH, EPS, "float32")


@pytest.mark.parametrize(
    ("count", "other", "found"), [("n", "n", []), (1, 1, []), ("n", 1, ["take_last_row"])]
)
def test_rows_like_those_that_are_left(
    count: int | str, other: int | str, found: list[str]
) -> None:
    shapes = {"x": tensor(count, WIDTH), "other": tensor(other, WIDTH)}
    assert kinds(exported([], rows_like, **shapes)) == found


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_last_position_of_a_chunk(dtype: str) -> None:
    module = exported([], take_last_row, x=tensor("n", WIDTH, dtype=dtype))
    (found,) = run(module, X.astype(dtype), [])
    np.testing.assert_array_equal(found, X[-1:].astype(dtype))
