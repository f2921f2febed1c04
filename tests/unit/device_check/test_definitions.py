"""Definitions compiled for the CPU and called on arrays."""

from __future__ import annotations

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


def test_arrays_of_another_shape_are_refused() -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        run(TakeLastRow(4, "float32"), np.zeros((2, 5), np.float32), np.zeros((1, 4), np.float32))
