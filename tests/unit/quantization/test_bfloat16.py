"""bfloat16 as it is: nothing is rounded, and other values are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_compile.errors import QuantizationError
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.quantization.bfloat16 import BFloat16Scheme
from tests.numerics.definitions import run
from tests.numerics.linear.test_linear import close

SCHEME = BFloat16Scheme()


def matrix(seed: int, rows: int, cols: int) -> np.ndarray:
    """Values of every finite size, by their bits."""
    bits = np.random.default_rng(seed).integers(0, 2**16, (rows, cols), dtype=np.uint32) << 16
    values = bits.astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(values), values, np.float32(0))


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), pairs=st.integers(1, 40))
def test_what_is_stored_is_what_is_read(seed: int, rows: int, pairs: int) -> None:
    given_rows = matrix(seed, rows, 2 * pairs)
    stored = SCHEME.store(given_rows, name="w", first_row=0)
    assert np.array_equal(SCHEME.load(stored), given_rows)
    (expected,) = SCHEME.tensors("w", ".part1", given_rows.shape)
    assert (expected.name, expected.shape) == ("w.pairs.part1", stored[0].shape)
    assert expected.nbytes == 2 * given_rows.size


@pytest.mark.parametrize(
    ("value", "message"),
    [(1 + 2.0**-8, "row 6 holds a weight that is no bfloat16"), (np.inf, "row 6 .* not finite")],
)
def test_other_values_are_refused(value: float, message: str) -> None:
    rows = np.ones((3, 4), np.float32)
    rows[1, 2] = value
    with pytest.raises(QuantizationError, match=message):
        SCHEME.store(rows, name="w", first_row=5)


def test_an_odd_number_of_columns_is_refused() -> None:
    with pytest.raises(QuantizationError, match="even number"):
        SCHEME.tensors("w", "", (4, 33))


def test_a_matmul_reads_both_halves_of_a_word() -> None:
    rng = np.random.default_rng(3)
    weights = rng.normal(0, 1, (40, 96)).astype(np.float32)
    weights = (weights.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    x, y = rng.normal(0, 1, (3, 96)).astype(np.float32), np.zeros((3, 40), np.float32)
    operator = Linear(CHUNK, SCHEME.layout(96, (40,)), "float32")
    run(operator, x, *SCHEME.store(weights, name="w", first_row=0), y)
    close(y, x.astype(np.float64) @ weights.T.astype(np.float64))
