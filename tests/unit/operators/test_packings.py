"""Integers in words, as the documentation has them, and as the bytes that meet vectors of int8."""

from __future__ import annotations

import re
from operator import add, and_, floordiv, lshift, mod, mul, or_, rshift, sub, xor
from typing import Any

import numpy as np
import pytest
from tvm import tirx

from gemma4_compile.operators.packing import ProductPacking, word
from gemma4_compile.operators.packings import (
    BYTES,
    NIBBLES,
    PRODUCT_PACKINGS,
    SIXES,
)
from tools.imports import SOURCES

STEPS = {
    "Add": add,
    "BitwiseAnd": and_,
    "BitwiseOr": or_,
    "BitwiseXor": xor,
    "FloorDiv": floordiv,
    "FloorMod": mod,
    "LShift": lshift,
    "Mul": mul,
    "RShift": rshift,
    "Sub": sub,
}
HOME = "gemma4_compile.operators.packings"
OTHERS = "gemma4_compile.checkpoint.quantised."  # reads formats that are not ours
QUESTION = re.compile(r"\bbits [!=]= \d|\.bits [!=]= ")
every = pytest.mark.parametrize("packing", PRODUCT_PACKINGS.values(), ids=lambda one: str(one.bits))


def value_of(expression: Any) -> int:
    """The value of an expression of constants."""
    if isinstance(expression, tirx.IntImm):
        return int(expression.value)
    step: Any = STEPS[type(expression).__name__]
    return int(step(value_of(expression.a), value_of(expression.b))) & 0xFFFFFFFF


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
    for run in packing.pack(values).reshape(-1, packing.run_words):
        made = packing.halves([tirx.const(int(word), "uint32") for word in run])
        found = np.array([value_of(half) for half in made], np.uint32).view(np.int8)
        stored = packing.unpack(run[None])[0].astype(int)
        order = stored.reshape(-1, 4, 2).transpose(0, 2, 1) if packing.interleaved else stored
        assert (found - packing.byte_zero).tolist() == (order.ravel() - packing.zero_point).tolist()


@every
def test_four_channels_are_found_in_their_words(packing: ProductPacking) -> None:
    values = np.random.default_rng(0).integers(0, 2**packing.bits - 1, (1, 96), dtype=np.uint8)
    words = packing.pack(values)[0]
    found = []
    for quad in range(96 // 4):
        places = packing.quad_places(tirx.const(quad, "int32"))
        shifted = [
            tirx.const(int(words[value_of(place)]) >> value_of(below), "uint32")
            for place, below in places
        ]
        found += [value_of(packing.quad_integer(shifted, channel, word)) for channel in range(4)]
    assert found == values[0].tolist()


def test_upper_bits_of_six_are_one_shift_from_their_bytes() -> None:
    """By the documentation's words: channels 0 and 1, 8 and 9 share a byte of the third word."""
    codes = np.zeros((1, 16), np.uint8)
    codes[0, [0, 1, 8, 9]] = 0b010000, 0b100000, 0b110101, 0b001010
    assert SIXES.pack(codes).tolist() == [[0, 0xA5, 0b11_10_01]]


def test_nobody_else_asks_for_a_number_of_bits() -> None:
    asked = [
        f"{module}:{number}"
        for module, path in SOURCES.items()
        if module != HOME and not module.startswith(OTHERS)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if QUESTION.search(line)
    ]
    assert asked == []
