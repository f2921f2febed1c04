"""transformers' FP8: bytes of E4M3 with a scale for each block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.checkpoint.quantised.fp8 import read_weights
from gemma4_compile.checkpoint.safetensors_file import read_rows
from gemma4_compile.errors import CheckpointError, ConfigError
from tests.unit.checkpoint.quantised.files import Array, integers, written

ROWS, COLUMNS = 20, 30


def value(byte: int) -> float:
    """A number of E4M3, by its definition."""
    sign, exponent, mantissa = byte >> 7, (byte >> 3) & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if sign else size


CODES = integers(0, 256, ROWS, COLUMNS).astype(np.uint8)
VALUES = np.vectorize(value)(CODES).astype(np.float32)


def blocks(height: int, width: int) -> tuple[Array, Array]:
    shape = -(-ROWS // height), -(-COLUMNS // width)
    scales = np.random.default_rng(1).random(shape).astype(np.float32)
    whole = np.repeat(np.repeat(scales, height, axis=0), width, axis=1)
    return scales, whole[:ROWS, :COLUMNS]


@pytest.mark.parametrize("block", [(8, 8), (4, 15), (128, 128), (1, 30)])
def test_blocks_at_the_edge_are_cut(block: tuple[int, int], tmp_path: Path) -> None:
    scales, whole = blocks(*block)
    tensors = written(tmp_path, {"a.weight": CODES, "a.weight_scale_inv": scales}, weight="F8_E4M3")
    weights = read_weights({"weight_block_size": list(block)}, tensors)
    assert weights.left_out == ("inputs of layers to 8-bit floats",)
    for begin, end in ((0, ROWS), (7, 9), (8, 16)):
        rows = read_rows(weights.tensors["a.weight"], begin, end)
        expected = (VALUES * whole)[begin:end]
        assert np.array_equal(rows, expected, equal_nan=True)


@pytest.mark.parametrize("end", ["weight_scale_inv", "weight_scale"])
def test_one_scale(end: str, tmp_path: Path) -> None:
    tensors: dict[str, Array] = {
        "a.weight": CODES,
        f"a.{end}": np.array([0.5], np.float32),
        "a.input_scale": np.array([2], np.float32),
    }
    weights = read_weights({}, written(tmp_path, tensors, weight="F8_E4M3"))
    rows = read_rows(weights.tensors["a.weight"], 3, 5)
    assert np.array_equal(rows, VALUES[3:5] / 2, equal_nan=True)


@pytest.mark.parametrize("sizes", [[0, 1], [8], [8, True], "8x8", [1 << 30, 4]])
def test_blocks_that_are_none(sizes: object) -> None:
    with pytest.raises(ConfigError, match="weight_block_size"):
        read_weights({"weight_block_size": sizes}, {})


def test_scales_that_do_not_fit(tmp_path: Path) -> None:
    config: dict[str, Any] = {"weight_block_size": [8, 8]}
    tensors: dict[str, Array] = {
        "a.weight": CODES,
        "a.weight_scale_inv": np.zeros((3, 3), np.float32),
    }
    with pytest.raises(CheckpointError, match=r"shape \(3, 3\), expected \(3, 4\)"):
        read_weights(config, written(tmp_path, tensors, weight="F8_E4M3"))
    del tensors["a.weight"]
    with pytest.raises(CheckpointError, match=r"`a\.weight` is missing"):
        read_weights(config, written(tmp_path, tensors))
