"""4 bits with minima: words, rows, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gemma4_compile.errors import QuantizationError
from gemma4_compile.operators.base import operator_of
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.minima import MinimaLayout, pack_terms, unpack_terms
from gemma4_compile.operators.packings import NIBBLES
from gemma4_compile.operators.rows import ONE
from gemma4_compile.quantization.minima import MinimaScheme
from gemma4_compile.quantization.minima_search import search_minima
from gemma4_compile.quantization.schemes import SCHEMES

SCHEME = MinimaScheme()


@given(
    sizes=arrays(np.uint8, (3, 2, 8, 2), elements=st.integers(0, 63)),
    bits=arrays(np.uint16, (3, 2, 2), elements=st.integers(0, 0x7F7F)),
)
def test_all_sizes_come_back(sizes: np.ndarray, bits: np.ndarray) -> None:
    units = (bits.astype(np.uint32) << 16).view(np.float32)
    words = pack_terms(units, sizes)
    assert words.shape == (3, 8)
    found_units, found_sizes = unpack_terms(words)
    assert np.array_equal(found_units, units)
    assert np.array_equal(found_sizes, sizes)


def test_a_block_has_its_units_and_sizes_where_the_documentation_says() -> None:
    sizes = np.zeros((1, 1, 8, 2), np.uint8)
    sizes[0, 0, 0], sizes[0, 0, 7] = (0b10_0011, 0b01_0101), (0b11_1001, 0b10_0110)
    (words,) = pack_terms(np.array([[[1.0, -2.0]]], np.float32), sizes)
    assert [hex(word) for word in words] == ["0x3f80c000", "0x90000003", "0x60000005", "0x8001c002"]


@settings(deadline=None)  # the first call compiles the search
@given(
    rows=st.integers(1, 3),
    groups=st.integers(1, 19),
    size=st.integers(-30, 18),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_are_stored_within_the_bound(rows: int, groups: int, size: int, seed: int) -> None:
    """Of every number of groups, with sizes that differ from group to group and some zeros."""
    rng = np.random.default_rng(seed)
    each = np.exp2(size + rng.uniform(-6, 0, (rows, groups))) * (rng.random((rows, groups)) < 0.9)
    weight = (rng.standard_t(3, (rows, groups, 32)) * each[..., None]).astype(np.float32)
    weight = weight.reshape(rows, -1)
    stored = SCHEME.store(weight, name="w", first_row=0)
    assert [(one.shape, one.dtype) for one in SCHEME.tensors("w", "", weight.shape)] == [
        (array.shape, str(array.dtype)) for array in stored
    ]
    found = SCHEME.load(stored)
    relative, smallest = SCHEME.row_bound
    error = np.linalg.norm(found - weight, axis=1)
    length = np.linalg.norm(weight.astype(np.float64), axis=1)
    assert (error <= relative * length + smallest * np.sqrt(weight.shape[1])).all()
    assert not found[weight.reshape(rows, -1) == 0].any() or error.any()


def test_what_is_loaded_is_what_the_search_found() -> None:
    weight = np.random.default_rng(3).normal(size=(4, 256)).astype(np.float32)
    found = search_minima(weight.reshape(-1, 32))
    sizes = found.sizes.reshape(-1, 2) * np.repeat(found.units, 8, axis=0)
    codes = NIBBLES.unpack(found.words).astype(np.float32)
    expected = (codes * sizes[:, :1] - sizes[:, 1:]).reshape(4, 256)
    assert np.array_equal(SCHEME.load(SCHEME.store(weight, name="w", first_row=0)), expected)


def test_it_takes_four_and_a_half_bits_where_blocks_divide_a_row() -> None:
    def bits(cols: int) -> float:
        return sum(one.nbytes for one in SCHEME.tensors("w", "", (64, cols))) * 8 / (64 * cols)

    assert [bits(cols) for cols in (256, 1536, 2816, 21504)] == [4.5] * 4
    assert [round(bits(cols), 3) for cols in (704, 2112)] == [4.545, 4.545]  # of 26B-A4B


@pytest.mark.parametrize("shape", [(4, 48), (4, 16), (64,)])
def test_groups_must_divide_the_columns(shape: tuple[int, ...]) -> None:
    with pytest.raises(QuantizationError, match=r"`w`.*groups of 32"):
        SCHEME.tensors("w", "", shape)


@pytest.mark.parametrize(
    ("value", "what"),
    [(np.nan, "not finite"), (np.inf, "not finite"), (2.0**60, "2\\^60 or more")],
)
def test_weights_that_cannot_be_held_are_an_error(value: float, what: str) -> None:
    weight = np.ones((4, 64), np.float32)
    weight[3, 1] = value
    with pytest.raises(QuantizationError, match=f"`w`: row 13 holds a weight .*{what}"):
        SCHEME.store(weight, name="w", first_row=10)


def test_a_description_is_read_back() -> None:
    operator = Linear(ONE, SCHEME.layout(288, (64,)), "float32")
    again = operator_of(operator.prim_func())
    assert again == operator
    assert isinstance(again, Linear)
    assert isinstance(again.layout, MinimaLayout)


def test_it_is_found_by_its_name() -> None:
    assert SCHEMES["q4_k"] == SCHEME
