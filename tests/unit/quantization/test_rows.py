"""Integers on the steps of a checkpoint: nothing is rounded, and what has no step is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_compile.errors import QuantizationError
from gemma4_compile.quantization.rows import WHOLE_ROW, RowScheme, find_steps
from gemma4_compile.quantization.schemes import SCHEMES

ALL = [one for one in SCHEMES.values() if isinstance(one, RowScheme)]
every = pytest.mark.parametrize("scheme", ALL, ids=lambda one: one.name)


def weights(scheme: RowScheme, rows: int, cols: int, seed: int) -> np.ndarray:
    """Levels times steps of any size; of some rows few levels alone, of one none but 0."""
    rng = np.random.default_rng(seed)
    span = 1 << (scheme.bits - 1)
    most = rng.integers(1, span + 1, (rows, 1))
    levels = np.clip(rng.integers(-span, span, (rows, cols)), -most, most - 1)
    levels[0] = 0
    blocks = cols // (scheme.block or cols)
    steps = np.exp(rng.uniform(-20, 3, (rows, blocks))) * rng.choice([-1, 1], (rows, blocks))
    return levels.astype(np.float32) * np.repeat(steps.astype(np.float32), cols // blocks, axis=1)


@every
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), units=st.integers(1, 3))
def test_what_is_stored_is_what_is_read(
    scheme: RowScheme, seed: int, rows: int, units: int
) -> None:
    given_rows = weights(scheme, rows, 256 * units, seed)
    stored = scheme.store(given_rows, name="w", first_row=0)
    assert np.array_equal(scheme.load(stored), given_rows)
    expected = scheme.tensors("w", "", given_rows.shape)
    assert [(one.shape, one.dtype) for one in expected] == [
        (array.shape, str(array.dtype)) for array in stored
    ]


def test_all_levels_of_a_word_are_used() -> None:
    levels = np.resize(np.arange(-2, 2, dtype=np.float32), (1, 48))
    words, scales = RowScheme(2).store(levels * np.float32(0.3), name="w", first_row=0)
    # Level -2 is code 3, and code 0 is level 1; the first channel is in the lowest bits.
    assert words.tolist() == [[0b00011011_00011011_00011011_00011011] * 3]
    assert scales.tolist() == [[-np.float32(0.3)]]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_lowest_level_alone_gives_its_step(bits: int) -> None:
    block = np.zeros((1, 64), np.float32)
    block[0, 3] = np.float32(-(1 << (bits - 1))) * np.float32(0.7)
    block[0, 4] = np.float32(0.7)
    steps, found = find_steps(block, bits)
    assert (steps.tolist(), found.tolist()) == ([np.float32(0.7)], [True])


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_weights_without_a_common_step_are_refused(bits: int) -> None:
    rows = np.random.default_rng(0).normal(0, 1, (4, 64)).astype(np.float32)
    rows[:2] = 0
    with pytest.raises(QuantizationError, match="`w`: row 7 is no whole multiples") as caught:
        RowScheme(bits).store(rows, name="w", first_row=5)
    assert "--quant" in str(caught.value.hint)


def test_a_weight_beside_a_level_by_the_last_bit_is_refused() -> None:
    row = weights(RowScheme(4), 2, 64, 3)[1:]
    where = np.flatnonzero(row[0])[5]
    row[0, where] = np.nextafter(np.nextafter(np.nextafter(row[0, where], 9), 9), 9)
    with pytest.raises(QuantizationError, match="no whole multiples"):
        RowScheme(4).store(row, name="w", first_row=0)


@every
def test_whole_rows_meet_vectors_of_one_step_alone(scheme: RowScheme) -> None:
    layout = scheme.layout(512, (8,))
    assert not layout.takes_int8, "its codes are up to 255, and it has no scale a group"
    assert layout.takes_steps == (scheme.block == WHOLE_ROW)
    assert scheme.takes_int8 == (layout.takes_steps and not scheme.any_inputs)
    assert not replace(scheme, any_inputs=True).takes_int8
    assert not scheme.layout(2**17, (8,)).takes_steps, "int32 might not hold the sums"


def test_what_is_not_finite_is_refused() -> None:
    rows = np.zeros((2, 64), np.float32)
    rows[1, 3] = np.inf
    with pytest.raises(QuantizationError, match="row 1 holds a weight that is not finite"):
        RowScheme(4).store(rows, name="w", first_row=0)


@pytest.mark.parametrize(
    ("scheme", "cols"), [(RowScheme(2), 40), (RowScheme(8), 32), (RowScheme(4, 256), 384)]
)
def test_columns_that_kernels_do_not_read_are_refused(scheme: RowScheme, cols: int) -> None:
    with pytest.raises(QuantizationError, match="its columns must be"):
        scheme.tensors("w", "", (4, cols))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rows_of_the_least_floats_are_held_without_a_warning(bits: int) -> None:
    least = np.float32(2.0**-149)
    rows = np.zeros((3, 64), np.float32)
    rows[0], rows[1], rows[2, 5] = least, -least, least
    scheme = RowScheme(bits)
    assert np.array_equal(scheme.load(scheme.store(rows, name="w", first_row=0)), rows)
