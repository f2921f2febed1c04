"""Integers in words, as the documentation has them, and as the bytes that meet vectors of int8."""

from __future__ import annotations

import re
from operator import and_, rshift, xor
from typing import Any

import numpy as np
import pytest
from tvm import tirx

from gemma4_compile.operators.packings import (
    BYTES,
    NIBBLES,
    PRODUCT_PACKINGS,
    ProductPacking,
    packing_of,
)
from tools.imports import SOURCES

HOME = "gemma4_compile.operators.packings"
OTHERS = "gemma4_compile.checkpoint.quantised."  # reads formats that are not ours
QUESTION = re.compile(r"\bbits [!=]= \d|\.bits [!=]= ")
every = pytest.mark.parametrize("packing", PRODUCT_PACKINGS.values(), ids=lambda one: str(one.bits))


def value_of(expression: Any) -> int:
    """The value of an expression of constants."""
    if isinstance(expression, tirx.IntImm):
        return int(expression.value)
    step: Any = {"BitwiseAnd": and_, "BitwiseXor": xor, "RShift": rshift}[type(expression).__name__]
    return step(value_of(expression.a), value_of(expression.b))


def test_lowest_channel_is_in_the_lowest_bits() -> None:
    nibbles = np.arange(16, dtype=np.uint8).reshape(1, 16)
    assert NIBBLES.pack(nibbles).tolist() == [[0x76543210, 0xFEDCBA98]]
    octets = np.array([[1, 2, 3, 254]], np.uint8)
    assert BYTES.pack(octets).tolist() == [[0xFE030201]]


@every
def test_unpack_undoes_pack(packing: ProductPacking) -> None:
    values = np.random.default_rng(0).integers(0, 2**packing.bits, (5, 96), dtype=np.uint8)
    assert np.array_equal(packing.unpack(packing.pack(values)), values)


@every
def test_bytes_of_a_word_are_its_integers(packing: ProductPacking) -> None:
    values = np.random.default_rng(0).integers(0, 2**packing.bits - 1, (1, 96), dtype=np.uint8)
    for word in packing.pack(values)[0]:
        made = packing.halves(tirx.const(int(word), "uint32"))
        found = np.array([value_of(half) for half in made], np.uint32).view(np.int8)
        stored = packing.unpack(np.array([[word]], np.uint32))[0].astype(int)
        order = np.concatenate([stored[0::2], stored[1::2]]) if packing.interleaved else stored
        assert (found - packing.byte_zero).tolist() == (order - packing.zero_point).tolist()


def test_any_number_of_bits_is_read_one_by_one() -> None:
    pairs = packing_of(2)
    assert (pairs.values_per_word, pairs.zero_point) == (16, 1)
    assert not isinstance(pairs, ProductPacking)
    assert [packing_of(bits) for bits in (4, 8)] == [NIBBLES, BYTES]


def test_nobody_else_asks_for_a_number_of_bits() -> None:
    asked = [
        f"{module}:{number}"
        for module, path in SOURCES.items()
        if module != HOME and not module.startswith(OTHERS)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if QUESTION.search(line)
    ]
    assert asked == []
