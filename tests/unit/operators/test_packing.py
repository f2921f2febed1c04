"""Integers of any number of bits in words and back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis.extra.numpy import arrays
from hypothesis.strategies import DataObject, data, integers, sampled_from

from gemma4_compile.operators.packing import ProductPacking
from gemma4_compile.operators.packings import BYTES, NIBBLES, SIXES, packing_of


@given(rows=integers(1, 3), runs=integers(1, 6), bits=sampled_from([2, 4, 6, 8]), data=data())
def test_all_codes_come_back(rows: int, runs: int, bits: int, data: DataObject) -> None:
    shape = (rows, 32 * runs)
    codes = data.draw(arrays(np.uint8, shape, elements=integers(0, 2**bits - 1)))
    packing = packing_of(bits)
    words = packing.pack(codes)
    assert words.shape == (rows, packing.words(32 * runs))
    assert np.array_equal(packing.unpack(words), codes)


def test_any_number_of_bits_is_read_one_by_one() -> None:
    pairs = packing_of(2)
    assert (pairs.run, pairs.zero_point) == (16, 1)
    assert not isinstance(pairs, ProductPacking)
    assert [packing_of(bits) for bits in (4, 6, 8)] == [NIBBLES, SIXES, BYTES]
