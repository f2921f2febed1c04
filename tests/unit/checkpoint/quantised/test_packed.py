"""Packed codes next to what they were packed from, and small floats next to ml_dtypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gemma4_compile.checkpoint.quantised.packed import (
    E2M1,
    E4M3,
    E8M0,
    AcrossRows,
    AlongRows,
    OfInputs,
    OfOutputs,
    integers,
    signed,
    unpack,
)
from gemma4_compile.checkpoint.safetensors_file import Decoder
from tests.unit.checkpoint.quantised import files

ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_codes_come_back_from_words(bits: int) -> None:
    codes = files.integers(0, 1 << bits, 3, 64)
    assert np.array_equal(unpack(files.pack(codes, bits), bits), codes)


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [(E4M3, "float8_e4m3fn"), (E2M1, "float4_e2m1fn"), (E8M0, "float8_e8m0fnu")],
)
def test_small_floats(numbers: tuple[float, ...], dtype: str) -> None:
    kind: Any = getattr(ml_dtypes, dtype)
    expected = np.arange(len(numbers), dtype=np.uint8).view(kind).astype(np.float32)
    assert np.array_equal(np.array(numbers, np.float32), expected, equal_nan=True)


def test_integers_and_their_twos_complement() -> None:
    assert integers(2, -2) == (-2, -1, 0, 1)
    expected = np.arange(256, dtype=np.uint8).view(np.int8)
    assert np.array_equal(signed(8), expected)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_every_axis_is_read_by_blocks_of_rows(bits: int, tmp_path: Path) -> None:
    rows, columns = 23, 32
    codes = files.integers(0, 1 << bits, rows, columns)
    numbers = integers(bits, -3)
    stored = files.written(
        tmp_path,
        {
            "along": files.pack(codes, bits),
            "across": files.pack(codes.T, bits).T,
            "of_inputs": files.pack(codes, bits).T,
            "of_outputs": files.pack(codes.T, bits),
        },
    )
    decoders: list[Decoder] = [
        AlongRows(stored["along"], bits, numbers, columns),
        AcrossRows(stored["across"], bits, numbers),
        OfInputs(stored["of_inputs"], bits, numbers),
        OfOutputs(stored["of_outputs"], bits, numbers, tuple(range(32 // bits))),
    ]
    for decoder in decoders:
        for begin, end in ((0, rows), (0, 1), (7, 8), (3, 18), (16, rows)):
            assert np.array_equal(decoder.read_rows(begin, end), codes[begin:end] - 3)


def test_columns_may_have_another_order_in_a_word(tmp_path: Path) -> None:
    codes = files.integers(0, 16, 16, 5)
    places = tuple(ORDER.index(place) for place in range(8))
    stored = files.written(tmp_path, {"a": files.pack(codes.T, 4, places)})
    rows = OfOutputs(stored["a"], 4, integers(4, 0), ORDER).read_rows(3, 13)
    assert np.array_equal(rows, codes[3:13])
