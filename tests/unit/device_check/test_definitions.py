"""Definitions compiled for the CPU and called on arrays."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gemma4_compile.device_check.definitions import run
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.norms import RmsNorm, TakeLastRow
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.operators.sampling import LogitBias

RNG = np.random.default_rng(0)


def test_the_result_lies_in_the_last_array() -> None:
    x = RNG.normal(size=(3, 8)).astype(np.float32)
    weight, y = RNG.normal(size=8).astype(np.float32), np.full((3, 8), np.nan, np.float32)
    before = x.copy(), weight.copy()
    run(RmsNorm(CHUNK, 8, 1e-6, "float32"), x, weight, y)
    np.testing.assert_allclose(
        y, x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight, rtol=1e-5
    )
    assert np.array_equal(x, before[0])
    assert np.array_equal(weight, before[1])


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_one_definition_takes_chunks_of_any_length(rows: int) -> None:
    x, last = RNG.normal(size=(rows, 4)).astype(np.float32), np.zeros((1, 4), np.float32)
    run(TakeLastRow(4, "float32"), x, last)
    np.testing.assert_array_equal(last, x[-1:])


def test_numbers_are_arguments_as_well() -> None:
    layout = WeightLayout(0, "float32", 0, 4, (2,))
    operator = Linear(
        rows=ONE, layout=layout, in_dtype="float32", epilogue=Epilogue.GELU_GATE.value, ple_width=6
    )
    x, weight = np.ones((1, 4), np.float32), np.full((2, 4), 25, np.float32)
    ple, y = np.arange(6, dtype=np.float32)[None], np.zeros((1, 2), np.float32)
    run(operator, x, weight, ple, 2, y)
    np.testing.assert_allclose(y, 100 * ple[:, 4:6], rtol=1e-6)


def test_an_argument_may_be_changed_in_place() -> None:
    logits = np.zeros((1, 4), np.float32)
    sequence, token = np.zeros(1, np.int32), np.array([2], np.int32)
    run(LogitBias(4), logits, sequence, token, np.array([1.5], np.float32))
    np.testing.assert_array_equal(logits, [[0, 0, 1.5, 0]])


@pytest.mark.parametrize(
    ("x", "last"),
    [
        pytest.param((2, 5), (1, 4), id="extent"),
        pytest.param((8,), (1, 4), id="axes"),
        pytest.param((2, 4), (2, 4), id="rows of the result"),
    ],
)
def test_arrays_of_another_shape_are_refused(x: tuple[int, ...], last: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"shape|axes"):
        run(TakeLastRow(4, "float32"), np.zeros(x, np.float32), np.zeros(last, np.float32))


def test_arrays_of_another_type_are_refused() -> None:
    arrays = np.zeros((2, 4), np.float16), np.zeros((1, 4), np.float32)
    with pytest.raises(ValueError, match=r"x: expected float32 .* found float16"):
        run(TakeLastRow(4, "float32"), *arrays)


def test_one_size_is_the_same_in_all_arrays() -> None:
    norm = RmsNorm(CHUNK, 8, 1e-6, "float32")
    with pytest.raises(ValueError, match=re.escape("shape (3, 8)")):
        run(norm, *(np.zeros(shape, np.float32) for shape in ((3, 8), (8,), (2, 8))))


def test_little_is_computed_as_much_is() -> None:
    """The first rows of many, for which LLVM does what it leaves out for a few."""
    norm, rows = RmsNorm(CHUNK, 160, 1e-6, "float32"), 1000
    x = RNG.normal(size=(rows, 160)).astype(np.float32)
    weight, y = RNG.normal(size=160).astype(np.float32), np.zeros_like(x)
    run(norm, x, weight, y)
    few = np.zeros((5, 160), np.float32)
    run(norm, x[:5].copy(), weight, few)
    np.testing.assert_array_equal(few, y[:5])
