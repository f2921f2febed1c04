"""Codes packed into words: blocks of rows of the numbers that they stand for.

Formats differ in three things: the bits of a code, which axis of the weight runs along a word, and
the number of each code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma4_compile.checkpoint.safetensors_file import (
    Float32Array,
    OfOne,
    StoredArray,
    TensorInfo,
    computed,
    read_stored,
    widened,
)

Codes = npt.NDArray[np.uint8]
Numbers = tuple[float, ...]
"""What each code stands for, in their order."""

WORD_BITS = 32
BITS = (2, 4, 8)
"""Of codes that lie in no two words."""


@cache
def integers(bits: int, first: int) -> Numbers:
    """Codes of consecutive integers, the first one given."""
    return tuple(float(first + code) for code in range(1 << bits))


@cache
def signed(bits: int) -> Numbers:
    """Codes of two's complement."""
    return tuple(float(code - ((code >> (bits - 1)) << bits)) for code in range(1 << bits))


@cache
def minifloats(exponent_bits: int, mantissa_bits: int) -> Numbers:
    """Codes of a sign, an exponent and a mantissa, as OCP has them, with no infinity.

    Of 8 bits the largest code is no number (E4M3).
    """
    bias = (1 << (exponent_bits - 1)) - 1
    count = 1 << (exponent_bits + mantissa_bits)
    positive = []
    for code in range(count):
        exponent, mantissa = divmod(code, 1 << mantissa_bits)
        lead = float(exponent > 0) + mantissa / (1 << mantissa_bits)
        positive.append(lead * 2.0 ** (max(exponent, 1) - bias))
    if exponent_bits + mantissa_bits == 7:
        positive[-1] = float("nan")
    return (*positive, *(-number for number in positive))


E4M3 = minifloats(4, 3)
E2M1 = minifloats(2, 1)
E8M0 = (*(2.0 ** (code - 127) for code in range(255)), float("nan"))
"""Powers of two, of the scales of microscaling formats."""


def unpack(words: StoredArray, bits: int) -> Codes:
    """Codes of words along the last axis, the lowest bits first.

    Returns
    -------
    (..., words * bits of a word / bits)
    """
    of_words = np.ascontiguousarray(words).view(np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    if len(shifts) == 1:
        return of_words
    codes = (of_words[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(*of_words.shape[:-1], -1)


@cache
def _of_bytes(bits: int, numbers: Numbers) -> npt.NDArray[np.void]:
    """What the codes of each byte stand for, side by side."""
    codes = unpack(np.arange(256, dtype=np.uint8)[:, None], bits)
    found = np.array(numbers, np.float32)[codes]
    return found.view(np.dtype((np.void, found.shape[1] * 4))).reshape(256)


def _numbers(words: StoredArray, bits: int, numbers: Numbers) -> Float32Array:
    """Numbers of words along the last axis; a byte at a time, which is four times as fast."""
    of_words = np.ascontiguousarray(words).view(np.uint8)
    found = np.take(_of_bytes(bits, numbers), of_words)
    return found.view(np.float32).reshape(*of_words.shape[:-1], -1)


@dataclass(frozen=True)
class AlongRows(OfOne):
    """Codes of a row, one after the other in the same row of words: (rows, words) stored."""

    bits: int
    numbers: Numbers
    columns: int

    def read_rows(self, begin: int, end: int) -> Float32Array:
        """Numbers of rows [begin, end)."""
        words = read_stored(self.stored, begin, end).reshape(end - begin, -1)
        return _numbers(words, self.bits, self.numbers)[:, : self.columns]


@dataclass(frozen=True)
class AcrossRows(OfOne):
    """Codes of a column, one after the other in the same column of words: (words, columns)."""

    bits: int
    numbers: Numbers

    def read_rows(self, begin: int, end: int) -> Float32Array:
        """Numbers of rows [begin, end)."""
        count = WORD_BITS // self.bits
        first = begin // count
        words = read_stored(self.stored, first, ceil(end / count))
        rows = _numbers(words.T, self.bits, self.numbers).T
        return rows[begin - first * count : end - first * count]


@dataclass(frozen=True)
class OfInputs(OfOne):
    """A matrix stored as (inputs, outputs), its codes packed along the inputs."""

    bits: int
    numbers: Numbers

    def read_rows(self, begin: int, end: int) -> Float32Array:
        """Numbers of outputs [begin, end)."""
        words = read_stored(self.stored, 0, self.stored.shape[0], (begin, end))
        return _numbers(words.T, self.bits, self.numbers)


@dataclass(frozen=True)
class OfOutputs(OfOne):
    """A matrix stored as (inputs, outputs), its codes packed along the outputs.

    `order` are the places, in a word, of its columns.
    """

    bits: int
    numbers: Numbers
    order: tuple[int, ...]

    def read_rows(self, begin: int, end: int) -> Float32Array:
        """Numbers of outputs [begin, end)."""
        count = WORD_BITS // self.bits
        first = begin // count
        words = read_stored(self.stored, 0, self.stored.shape[0], (first, ceil(end / count)))
        found = _numbers(words, self.bits, self.numbers).reshape(len(words), -1, count)
        columns = found[..., self.order].reshape(len(words), -1)
        return columns[:, begin - first * count : end - first * count].T


@dataclass(frozen=True)
class Transposed(OfOne):
    """Floats stored as (inputs, outputs)."""

    def read_rows(self, begin: int, end: int) -> Float32Array:
        """Numbers of outputs [begin, end)."""
        values = read_stored(self.stored, 0, self.stored.shape[0], (begin, end))
        return np.ascontiguousarray(widened(values, self.stored.dtype).T)


def bytes_as(tensor: TensorInfo, numbers: Numbers) -> TensorInfo:
    """A tensor of bytes as what they stand for."""
    width = tensor.shape[-1] if len(tensor.shape) > 1 else 1
    return computed(tensor.name, tensor.shape, AlongRows(tensor, 8, numbers, width))


def index_of(tensor: TensorInfo) -> npt.NDArray[Any]:
    """A vector of integers, as it is stored."""
    return read_stored(tensor, 0, tensor.row_count)
