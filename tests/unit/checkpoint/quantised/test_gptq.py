"""GPTQ and AWQ next to their formula: (code - zero point) * scale, from integers packed here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.checkpoint.quantised.gptq import read_awq, read_gptq
from gemma4_compile.checkpoint.safetensors_file import read_rows
from gemma4_compile.errors import CheckpointError, ConfigError
from tests.unit.checkpoint.quantised.files import Array, integers, pack, written

INPUTS, OUTPUTS, GROUP = 96, 24, 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column at each place of a word


def matrix(bits: int) -> tuple[Array, Array, Array]:
    """Codes (inputs, outputs), zero points and scales (groups, outputs)."""
    codes = integers(0, 1 << bits, INPUTS, OUTPUTS)
    zeros = integers(0, 1 << bits, INPUTS // GROUP, OUTPUTS, seed=1)
    zeros[0, :2] = 0, (1 << bits) - 1
    scales = (integers(1, 2000, INPUTS // GROUP, OUTPUTS, seed=2) / 8192).astype(np.float16)
    return codes, zeros, scales


def expected(codes: Array, zeros: Array, scales: Array, groups: Array) -> Array:
    return ((codes - zeros[groups]) * scales[groups].astype(np.float32)).T.astype(np.float32)


def gptq(bits: int, shift: int, groups: Array) -> tuple[dict[str, Array], Array]:
    codes, zeros, scales = matrix(bits)
    tensors = {
        "a.qweight": pack(codes.T, bits).T,
        "a.qzeros": pack((zeros - shift) % (1 << bits), bits),
        "a.scales": scales,
        "a.g_idx": groups.astype(np.int32),
        "norm.weight": np.ones(4, np.float32),
    }
    return tensors, expected(codes, zeros, scales, groups)


IN_ORDER = np.arange(INPUTS) // GROUP
BY_ACTIVATION = np.random.default_rng(3).permutation(IN_ORDER)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2", None])
@pytest.mark.parametrize("groups", [IN_ORDER, BY_ACTIVATION], ids=["in order", "by activation"])
def test_gptq(bits: int, form: str | None, groups: Array, tmp_path: Path) -> None:
    tensors, weight = gptq(bits, 0 if form == "gptq_v2" else 1, groups)
    config: dict[str, Any] = {"bits": bits, "group_size": GROUP, "checkpoint_format": form}
    config["dynamic"] = {"-:.*norm.*": {}}
    found = read_gptq(config, written(tmp_path, tensors)).tensors
    assert set(found) == {"a.weight", "norm.weight"}
    assert found["a.weight"].shape == (OUTPUTS, INPUTS)
    for begin, end in ((0, OUTPUTS), (3, 4), (5, 19)):
        assert np.array_equal(read_rows(found["a.weight"], begin, end), weight[begin:end])


def test_gptq_without_an_index_has_groups_in_order(tmp_path: Path) -> None:
    tensors, weight = gptq(4, 1, IN_ORDER)
    del tensors["a.g_idx"]
    found = read_gptq({"bits": 4, "group_size": GROUP}, written(tmp_path, tensors)).tensors
    assert np.array_equal(read_rows(found["a.weight"], 0, OUTPUTS), weight)


def awq() -> tuple[dict[str, Array], Array]:
    codes, zeros, scales = matrix(4)
    tensors = {
        "a.qweight": pack(codes, 4, AWQ_ORDER),
        "a.qzeros": pack(zeros, 4, AWQ_ORDER),
        "a.scales": scales,
    }
    return tensors, expected(codes, zeros, scales, IN_ORDER)


@pytest.mark.parametrize(
    "config",
    [
        {"bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True},
        {"w_bit": 4, "q_group_size": GROUP, "version": "GEMM"},
    ],
)
def test_awq(config: dict[str, object], tmp_path: Path) -> None:
    tensors, weight = awq()
    found = read_awq(config, written(tmp_path, tensors)).tensors
    for begin, end in ((0, OUTPUTS), (7, 9), (8, 16)):
        assert np.array_equal(read_rows(found["a.weight"], begin, end), weight[begin:end])


@pytest.mark.parametrize(
    ("config", "rounded"),
    [
        ({"bits": 4, "group_size": 32}, None),
        ({"bits": 4, "group_size": -1}, None),
        ({"bits": 4, "group_size": 48}, "4-bit integers in groups of 48"),
        ({"bits": 4, "group_size": 32, "desc_act": True}, "4-bit integers in groups of 32 with"),
        ({"bits": 8, "group_size": 32}, "8-bit integers in groups of 32"),
        ({"bits": 4, "group_size": 32, "sym": False}, "with zero points"),
    ],
)
def test_what_four_bits_do_not_hold_is_named(
    config: dict[str, Any], rounded: str | None, tmp_path: Path
) -> None:
    groups = 1 if config["group_size"] == -1 else -(-INPUTS // config["group_size"])
    tensors = {
        "a.qweight": np.zeros((INPUTS * config["bits"] // 32, OUTPUTS), np.int32),
        "a.qzeros": np.zeros((groups, OUTPUTS * config["bits"] // 32), np.int32),
        "a.scales": np.zeros((groups, OUTPUTS), np.float16),
    }
    found = read_gptq(config, written(tmp_path, tensors))
    assert (found.rounded is None) == (rounded is None)
    assert (rounded or "") in (found.rounded or "")


@pytest.mark.parametrize(
    ("read", "config", "words"),
    [
        (read_gptq, {"bits": 3, "group_size": 32}, r"quantization_config\.bits"),
        (read_gptq, {"bits": "4"}, r"quantization_config\.bits"),
        (read_gptq, {}, r"quantization_config\.bits"),
        (read_gptq, {"bits": 4, "group_size": 0}, r"\.group_size"),
        (read_gptq, {"bits": 4, "group_size": 1 << 60}, r"\.group_size"),
        (read_gptq, {"bits": 4, "checkpoint_format": "marlin"}, r"checkpoint_format.*'marlin'"),
        (read_gptq, {"bits": 4, "dynamic": {"-:a": {}, "+:.*": {"bits": 8}}}, r"\.dynamic"),
        (read_gptq, {"bits": 4, "dynamic": ["-:a"]}, r"\.dynamic"),
        (read_awq, {"bits": 4, "version": "gemv"}, r"\.version"),
        (read_awq, {"bits": 8}, r"\.bits"),
    ],
)
def test_configs_that_are_not_read(read: Any, config: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read(config, {})


def test_damage_is_named(tmp_path: Path) -> None:
    config = {"bits": 4, "group_size": GROUP}
    tensors, _ = gptq(4, 1, IN_ORDER)
    changes: list[tuple[str, Array | None, str]] = [
        ("a.scales", None, "`a.scales` is missing"),
        ("a.qzeros", None, "`a.qzeros` is missing"),
        ("a.qweight", None, "`a.qweight` is missing"),
        ("a.scales", tensors["a.scales"][1:], r"`a.scales` .* shape \(2, 24\), expected \(3, 24\)"),
        ("a.scales", tensors["a.scales"].astype(np.int32), "`a.scales` .* dtype I32"),
        ("a.qzeros", tensors["a.qzeros"][:, :2], "`a.qzeros` .* shape"),
        ("a.g_idx", tensors["a.g_idx"][1:], "`a.g_idx` .* shape"),
        ("a.qweight", tensors["a.qweight"][0], "`a.qweight` .* expected a matrix"),
        ("a.qweight", tensors["a.qweight"].view(np.float32), "`a.qweight` .* dtype F32"),
    ]
    for name, value, message in changes:
        changed = {key: item for key, item in tensors.items() if key != name}
        if value is not None:
            changed[name] = value
        with pytest.raises(CheckpointError, match=message):
            read_gptq(config, written(tmp_path, changed))


@pytest.mark.parametrize("group", [-1, INPUTS // GROUP, 1 << 30])
def test_a_group_that_is_not_there_is_named(group: int, tmp_path: Path) -> None:
    index = IN_ORDER.copy()
    index[7] = group
    tensors, _ = gptq(4, 1, IN_ORDER)
    tensors["a.g_idx"] = index.astype(np.int32)
    found = read_gptq({"bits": 4, "group_size": GROUP}, written(tmp_path, tensors)).tensors
    with pytest.raises(CheckpointError, match=f"`a.g_idx` .* group {group}, there are 3"):
        read_rows(found["a.weight"], 0, 1)
