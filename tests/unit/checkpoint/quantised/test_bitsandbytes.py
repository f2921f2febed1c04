"""bitsandbytes next to its formulas: rows of integers, and blocks of codes of a table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.checkpoint.quantised.bitsandbytes import read_weights
from gemma4_compile.checkpoint.safetensors_file import read_rows
from gemma4_compile.errors import CheckpointError
from tests.unit.checkpoint.quantised.files import Array, integers, written

ROWS, COLUMNS, BLOCK, NESTED = 10, 37, 8, 16
STATE = "a.weight.quant_state.bitsandbytes__nf4"
TABLE = np.linspace(-1, 1, 16).astype(np.float32) ** 3


def state(**changes: object) -> Array:
    fields = {"quant_type": "nf4", "blocksize": BLOCK, "shape": [ROWS, COLUMNS]}
    text = json.dumps({**fields, **changes}).encode()
    return np.frombuffer(text, np.uint8).copy()


def table(*, is_nested: bool) -> tuple[dict[str, Array], Array]:
    codes = integers(0, 16, ROWS * COLUMNS).astype(np.uint8)
    blocks = -(-codes.size // BLOCK)
    packed = (codes[::2] << 4) | codes[1::2]
    tensors: dict[str, Array] = {"a.weight": packed[:, None], "a.weight.quant_map": TABLE}
    if is_nested:
        levels = np.sort(np.random.default_rng(1).standard_normal(256)).astype(np.float32)
        of_blocks = integers(0, 256, blocks, seed=2).astype(np.uint8)
        scales = np.random.default_rng(3).random(-(-blocks // NESTED)).astype(np.float32)
        largest = levels[of_blocks] * np.repeat(scales, NESTED)[:blocks] + np.float32(0.25)
        tensors |= {
            "a.weight.absmax": of_blocks,
            "a.weight.nested_absmax": scales,
            "a.weight.nested_quant_map": levels,
            STATE: state(nested_blocksize=NESTED, nested_offset=0.25),
        }
    else:
        largest = np.random.default_rng(4).random(blocks).astype(np.float32)
        tensors |= {"a.weight.absmax": largest, STATE: state()}
    weight = TABLE[codes] * np.repeat(largest, BLOCK)[: codes.size]
    return tensors, weight.reshape(ROWS, COLUMNS)


@pytest.mark.parametrize("is_nested", [True, False])
@pytest.mark.parametrize("is_row", [True, False])
def test_codes_of_a_table(is_nested: bool, is_row: bool, tmp_path: Path) -> None:
    tensors, weight = table(is_nested=is_nested)
    if is_row:
        tensors["a.weight"] = tensors["a.weight"].T
    weights = read_weights({}, written(tmp_path, tensors))
    assert set(weights.tensors) == {"a.weight"}
    assert weights.rounded == "4-bit codes of a table"
    for begin, end in ((0, ROWS), (3, 4), (1, 8), (9, ROWS), (5, 5)):
        rows = read_rows(weights.tensors["a.weight"], begin, end)
        np.testing.assert_allclose(rows, weight[begin:end], rtol=3e-7)


def test_integers_by_rows(tmp_path: Path) -> None:
    codes = integers(-127, 128, ROWS, COLUMNS).astype(np.int8)
    largest = np.random.default_rng(1).random(ROWS).astype(np.float32)
    tensors: dict[str, Array] = {
        "a.weight": codes,
        "a.SCB": largest,
        "a.weight_format": np.array(0, np.uint8),
    }
    weights = read_weights({}, written(tmp_path, tensors))
    assert weights.left_out == ("inputs of layers to 8-bit integers",)
    expected = codes * largest[:, None] / 127
    for begin, end in ((0, ROWS), (3, 4)):
        rows = read_rows(weights.tensors["a.weight"], begin, end)
        np.testing.assert_allclose(rows, expected[begin:end], rtol=3e-7)
    with pytest.raises(CheckpointError, match=r"`a\.weight_format` names an order"):
        read_weights({}, written(tmp_path, {**tensors, "a.weight_format": np.array([3], np.uint8)}))
    with pytest.raises(CheckpointError, match=r"`a\.SCB` .* shape"):
        read_weights({}, written(tmp_path, {**tensors, "a.SCB": largest[1:]}))
    with pytest.raises(CheckpointError, match=r"`a\.weight` is missing"):
        read_weights({}, written(tmp_path, {"a.SCB": largest}))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (STATE, state(blocksize=0), "`blocksize`"),
        (STATE, state(blocksize=1 << 40), "`blocksize`"),
        (STATE, state(shape=[ROWS, COLUMNS, 1]), "`shape`"),
        (STATE, state(shape=[-1, -370]), "rows"),
        (STATE, state(shape=[1 << 29, 1 << 29]), r"`a\.weight` .* shape"),
        (STATE, state(nested_offset="x"), "`nested_offset`"),
        (STATE, np.frombuffer(b"{", np.uint8), "is damaged"),
        (STATE, np.zeros(1 << 17, np.uint8), "is damaged"),
        ("a.weight.quant_map", TABLE[:15], r"quant_map` .* shape"),
        ("a.weight.absmax", np.zeros(3, np.float32), r"absmax` .* shape"),
        ("a.weight.absmax", np.zeros(47, np.uint8), r"absmax` .* dtype U8"),
        ("a.weight.nested_absmax", np.zeros(1, np.float32), r"absmax` .* dtype F32"),
        ("a.weight", np.zeros((184, 1), np.uint8), r"`a\.weight` .* shape"),
    ],
)
def test_damage_is_named(name: str, value: Array, message: str, tmp_path: Path) -> None:
    tensors, _ = table(is_nested=False)
    with pytest.raises(CheckpointError, match=message):
        read_weights({}, written(tmp_path, {**tensors, name: value}))
