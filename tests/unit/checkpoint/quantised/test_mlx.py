"""MLX next to its formulas: code * scale + offset, and floats of the microscaling formats."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gemma4_compile.checkpoint.quantised.mlx import read_weights
from gemma4_compile.checkpoint.safetensors_file import read_rows
from gemma4_compile.errors import CheckpointError, ConfigError
from tests.unit.checkpoint.quantised.files import Array, integers, pack, written

ROWS, COLUMNS = 10, 128
FLOATS = {
    "mxfp4": (4, 32, "float4_e2m1fn", "float8_e8m0fnu"),
    "mxfp8": (8, 32, "float8_e4m3fn", "float8_e8m0fnu"),
    "nvfp4": (4, 16, "float4_e2m1fn", "float8_e4m3fn"),
}


def affine(bits: int, group: int, *front: int) -> tuple[dict[str, Array], Array]:
    shape = (*front, ROWS, COLUMNS)
    codes = integers(0, 1 << bits, *shape)
    blocks = (*shape[:-1], COLUMNS // group)
    scales, biases = ((integers(-99, 99, *blocks, seed=s) / 512).astype("f4") for s in (1, 2))
    tensors = {"weight": pack(codes, bits).view(np.uint32), "scales": scales, "biases": biases}
    weight = codes * np.repeat(scales, group, axis=-1) + np.repeat(biases, group, axis=-1)
    return tensors, weight.astype(np.float32).reshape(-1, COLUMNS)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("front", [(), (3,)])
def test_affine(bits: int, group: int, front: tuple[int, ...], tmp_path: Path) -> None:
    tensors, weight = affine(bits, group, *front)
    stored = written(tmp_path, {f"a.{end}": array for end, array in tensors.items()}, weight="U32")
    found = read_weights({"bits": bits, "group_size": group}, stored)
    tensor = found.tensors["a.weight"]
    assert tensor.shape == (*front, ROWS, COLUMNS)
    for begin, end in ((0, len(weight)), (3, 4), (6, len(weight))):
        np.testing.assert_allclose(read_rows(tensor, begin, end), weight[begin:end], atol=1e-6)


def test_modules_may_have_forms_of_their_own(tmp_path: Path) -> None:
    (four, of_four), (eight, of_eight) = affine(4, 64), affine(8, 32)
    tensors = {f"x.{end}": array for end, array in four.items()}
    tensors |= {f"x.y.{end}": array for end, array in eight.items()}
    stored = written(tmp_path, {**tensors, "n.weight": np.ones((2, 2), np.uint32)}, weight="U32")
    values = {"bits": 4, "group_size": 64, "x.y": {"bits": 8, "group_size": 32}, "n": False}
    found = read_weights(values, stored).tensors
    np.testing.assert_allclose(read_rows(found["x.weight"], 0, ROWS), of_four, atol=1e-6)
    np.testing.assert_allclose(read_rows(found["x.y.weight"], 0, ROWS), of_eight, atol=1e-6)
    assert found["n.weight"] is stored["n.weight"]


@pytest.mark.parametrize("mode", FLOATS)
def test_floats(mode: str, tmp_path: Path) -> None:
    bits, group, code_type, scale_type = FLOATS[mode]
    codes = integers(0, 1 << bits, ROWS, COLUMNS)
    codes[codes == 255] = 1
    codes[codes == 127] = 1
    scales = integers(110, 126, ROWS, COLUMNS // group).astype(np.uint8)
    tensors: dict[str, Array] = {"a.weight": pack(codes, bits).view(np.uint32), "a.scales": scales}
    found = read_weights(
        {"bits": bits, "group_size": group, "mode": mode}, written(tmp_path, tensors, weight="U32")
    )
    numbers = codes.astype(np.uint8).view(getattr(ml_dtypes, code_type)).astype(np.float32)
    steps = scales.view(getattr(ml_dtypes, scale_type)).astype(np.float32)
    expected = numbers * np.repeat(steps, group, axis=1)
    assert np.array_equal(read_rows(found.tensors["a.weight"], 0, ROWS), expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"group_size": 64}, "quantization.bits` is missing"),
        ({"bits": 4}, "group_size"),
        ({"bits": 3, "group_size": 64}, r"quantization\.bits`: '3' of MLX"),
        ({"bits": 4, "group_size": 48}, r"group_size`: '48' of MLX"),
        ({"bits": 4, "group_size": 64, "mode": "newer"}, r"mode`: 'newer' of MLX"),
        ({"bits": 8, "group_size": 32, "mode": "mxfp4"}, r"bits`: '8' of MLX"),
    ],
)
def test_configs_that_are_not_read(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_weights(values, {})


@pytest.mark.parametrize(
    ("end", "value", "message"),
    [
        ("scales", None, r"`a\.scales` is missing"),
        ("biases", None, r"`a\.biases` is missing"),
        ("weight", None, r"`a\.weight` is missing"),
        ("scales", np.ones((ROWS, 3), np.float32), r"shape \(10, 3\), expected \(10, 2\)"),
        ("weight", np.ones(16, np.uint32), "expected one or more matrices"),
        ("biases", np.ones((ROWS, 2), np.int32), "dtype I32"),
    ],
)
def test_damage_is_named(end: str, value: Array | None, message: str, tmp_path: Path) -> None:
    tensors = {f"a.{name}": array for name, array in affine(4, 64)[0].items() if name != end}
    if value is not None:
        tensors[f"a.{end}"] = value
    with pytest.raises(CheckpointError, match=message):
        read_weights({"bits": 4, "group_size": 64}, written(tmp_path, tensors, weight="U32"))
