"""Integers in words, as the documentation has them."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.quantization.packing import pack, unpack


def test_lowest_channel_is_in_the_lowest_bits() -> None:
    nibbles = np.arange(16, dtype=np.uint8).reshape(1, 16)
    assert pack(nibbles, 4).tolist() == [[0x76543210, 0xFEDCBA98]]
    octets = np.array([[1, 2, 3, 254]], np.uint8)
    assert pack(octets, 8).tolist() == [[0xFE030201]]


@pytest.mark.parametrize("bits", [4, 8])
def test_unpack_undoes_pack(bits: int) -> None:
    values = np.random.default_rng(0).integers(0, 2**bits, (5, 96), dtype=np.uint8)
    assert np.array_equal(unpack(pack(values, bits), bits), values)
