"""compressed-tensors: what does not fit its config, and what is left out; values are in parity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.checkpoint.quantised.compressed import read_weights
from gemma4_compile.checkpoint.safetensors_file import read_rows
from gemma4_compile.errors import CheckpointError
from tests.unit.checkpoint.quantised.files import Array, integers, pack, written

ROWS, COLUMNS, GROUP = 6, 64, 32


def config(weights: dict[str, object] | None = None, **group: object) -> dict[str, Any]:
    given = {"num_bits": 4, "group_size": GROUP, "strategy": "group", **(weights or {})}
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": given, **group}}}


def packed() -> tuple[dict[str, Array], Array]:
    codes = integers(0, 16, ROWS, COLUMNS)
    scales = (integers(1, 999, ROWS, COLUMNS // GROUP, seed=1) / 4096).astype(np.float16)
    tensors = {
        "a.weight_packed": pack(codes, 4),
        "a.weight_scale": scales,
        "a.weight_shape": np.array([ROWS, COLUMNS], np.int64),
        "norm.weight": np.ones(4, np.float32),
    }
    weight = (codes - 8) * np.repeat(scales.astype(np.float32), GROUP, axis=1)
    return tensors, weight.astype(np.float32)


def test_groups_of_integers_are_exact_and_the_rest_is_as_it_was(tmp_path: Path) -> None:
    tensors, weight = packed()
    found = read_weights(config(), written(tmp_path, tensors))
    assert set(found.tensors) == {"a.weight", "norm.weight"}
    assert np.array_equal(read_rows(found.tensors["a.weight"], 0, ROWS), weight)
    assert np.array_equal(read_rows(found.tensors["norm.weight"], 0, 4), np.ones(4))
    assert found.rounded is None
    assert found.left_out == ()


def test_columns_that_lie_apart_have_an_index(tmp_path: Path) -> None:
    tensors, _ = packed()
    index = np.random.default_rng(2).permutation(np.arange(COLUMNS) // GROUP)
    tensors["a.weight_g_idx"] = index.astype(np.int32)
    found = read_weights(config({"actorder": "group"}), written(tmp_path, tensors))
    codes = integers(0, 16, ROWS, COLUMNS)
    expected = (codes - 8) * tensors["a.weight_scale"].astype(np.float32)[:, index]
    assert np.array_equal(read_rows(found.tensors["a.weight"], 0, ROWS), expected)
    assert found.rounded is not None
    tensors["a.weight_g_idx"][3] = 2
    found = read_weights(config(), written(tmp_path, tensors))
    with pytest.raises(CheckpointError, match="names group 2, there are 2"):
        read_rows(found.tensors["a.weight"], 0, 1)


def test_schemes_of_several_groups_are_told_apart_by_their_tensors(tmp_path: Path) -> None:
    tensors, weight = packed()
    whole = integers(-127, 128, ROWS, COLUMNS).astype(np.int8)
    scales = np.full((ROWS, 1), 0.25, np.float32)
    tensors |= {"b.weight": whole, "b.weight_scale": scales}
    groups = config()["config_groups"] | {
        "group_1": {
            "targets": ["re:.*b$"],
            "weights": {"num_bits": 8, "strategy": "channel"},
            "input_activations": {"num_bits": 8, "dynamic": True, "strategy": "token"},
        }
    }
    found = read_weights(
        {"config_groups": groups, "kv_cache_scheme": {"num_bits": 8}}, written(tmp_path, tensors)
    )
    assert np.array_equal(read_rows(found.tensors["a.weight"], 0, ROWS), weight)
    assert np.array_equal(read_rows(found.tensors["b.weight"], 0, ROWS), whole / np.float32(4))
    assert found.rounded == "8-bit integers by rows"
    expected = ("inputs of layers to 8-bit ints", "keys and values of the cache")
    assert found.left_out == expected


def test_scales_of_activations_and_of_the_cache_are_left_out(tmp_path: Path) -> None:
    tensors, _ = packed()
    one = np.ones(1, np.float32)
    tensors |= {"a.input_scale": one, "b.input_scale": one, "x.self_attn.k_scale": one}
    tensors["x.self_attn.k_proj.output_scale"] = one
    found = read_weights(config(), written(tmp_path, tensors))
    assert set(found.tensors) == {"a.weight", "norm.weight"}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("a.weight_scale", None, r"`a\.weight_scale` is missing"),
        ("a.weight_shape", None, r"`a\.weight_shape` is missing"),
        ("a.weight_packed", None, r"`a\.weight_packed` is missing"),
        ("a.weight_shape", np.array([ROWS, 65], np.int64), r"says \(6, 65\)"),
        ("a.weight_shape", np.array([ROWS, -64], np.int64), r"says \(6, -64\)"),
        ("a.weight_shape", np.array([ROWS + 1, COLUMNS], np.int64), r"says \(7, 64\)"),
        ("a.weight_shape", np.array([1 << 40, 1 << 40], np.int64), "says"),
        ("a.weight_shape", np.array([ROWS], np.int64), "`a.weight_shape` .* shape"),
        ("a.weight_scale", np.ones((ROWS, 1), np.float16), "is none of what config.json says"),
        ("a.weight_scale", np.ones((ROWS, 2), np.int32), "dtype I32"),
        ("a.weight_packed", np.ones((ROWS, 8), np.float32), "is none of what config.json says"),
        ("a.weight_packed", np.ones(8, np.int32), "expected a matrix"),
    ],
)
def test_damage_is_named(name: str, value: Array | None, message: str, tmp_path: Path) -> None:
    tensors, _ = packed()
    del tensors[name]
    if value is not None:
        tensors[name] = value
    with pytest.raises(CheckpointError, match=message):
        read_weights(config(), written(tmp_path, tensors))


def test_zero_points_of_a_symmetric_scheme_are_zeros(tmp_path: Path) -> None:
    tensors, weight = packed()
    zeros = np.zeros((ROWS, COLUMNS // GROUP), np.int8)
    found = read_weights(config(), written(tmp_path, {**tensors, "a.weight_zero_point": zeros}))
    assert np.array_equal(read_rows(found.tensors["a.weight"], 0, ROWS), weight)
    zeros[ROWS - 1, 1] = -3
    found = read_weights(config(), written(tmp_path, {**tensors, "a.weight_zero_point": zeros}))
    with pytest.raises(CheckpointError, match=r"`a\.weight_zero_point` .* has zero points"):
        read_rows(found.tensors["a.weight"], 0, ROWS)


def test_weights_that_are_rounded_while_they_run_are_named(tmp_path: Path) -> None:
    one = np.ones((4, 64), np.float32)
    tensors = {"a.weight": one, "a.weight_scale": one[:, :2]}
    with pytest.raises(CheckpointError, match="rounded while the model runs"):
        read_weights(config(), written(tmp_path, tensors))
