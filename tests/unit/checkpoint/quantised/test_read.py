"""A quantised checkpoint as a source: whole models, and what the user is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.checkpoint.match import match, row_reader
from gemma4_compile.checkpoint.quantised.read import dequantised, quantization_of
from gemma4_compile.checkpoint.safetensors_file import read_header, read_rows
from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.errors import CheckpointError, ConfigError, Gemma4CompileError
from tests import models
from tests.unit.checkpoint.quantised.files import Array, integers, pack, written

INT4 = {"num_bits": 4, "group_size": 32, "strategy": "group"}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4}},
}


def with_config(path: Path, quantization: object, *, is_of_text: bool = False) -> None:
    values = json.loads((path / "config.json").read_text())
    (values["text_config"] if is_of_text else values)["quantization_config"] = quantization
    (path / "config.json").write_text(json.dumps(values))


def write_packed(path: Path, *, is_of_text: bool = False) -> dict[str, Array]:
    """Write a model with experts in the layout of one matrix an expert, in 4 bits."""
    models.write_checkpoint(path, models.MOE_LIKE)
    with_config(path, COMPRESSED, is_of_text=is_of_text)
    tensors: dict[str, Array] = {}
    weights: dict[str, Array] = {}
    for seed, (name, tensor) in enumerate(read_header(path / "model.safetensors").items()):
        if ".experts." not in name and not name.endswith("_proj.weight"):
            rows = read_rows(tensor, 0, tensor.row_count)
            tensors[name] = rows.reshape(tensor.shape)
            continue
        count, columns = tensor.row_count, tensor.shape[-1]
        codes = integers(0, 16, count, columns, seed=seed)
        scales = (integers(1, 99, count, columns // 32, seed=seed) / 1024).astype(np.float16)
        weights[name] = (codes - 8) * np.repeat(scales.astype(np.float32), 32, axis=1)
        parts = [(name.removesuffix(".weight"), codes, scales)]
        if name.endswith(".experts.gate_up_proj"):
            count = 2 * tensor.shape[0]
            halves = zip(np.split(codes, count), np.split(scales, count), strict=True)
            stem = name.removesuffix("gate_up_proj")
            parts = [
                (f"{stem}{i // 2}.{('gate', 'up')[i % 2]}_proj", *half)
                for i, half in enumerate(halves)
            ]
        elif name.endswith(".experts.down_proj"):
            count = tensor.shape[0]
            halves = zip(np.split(codes, count), np.split(scales, count), strict=True)
            stem = name.removesuffix("down_proj")
            parts = [(f"{stem}{i}.down_proj", *half) for i, half in enumerate(halves)]
        for module, code, scale in parts:
            tensors[f"{module}.weight_packed"] = pack(code, 4)
            tensors[f"{module}.weight_scale"] = scale
            tensors[f"{module}.weight_shape"] = np.array(code.shape, np.int64)
    written(path, tensors)
    return weights


@pytest.mark.parametrize("is_of_text", [False, True])
def test_experts_and_layers_of_a_quantised_checkpoint_are_read(
    is_of_text: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = write_packed(tmp_path, is_of_text=is_of_text)
    with open_source(str(tmp_path), None, weights=True) as source:
        assert source.checkpoint is not None
        matched = match(source.checkpoint.tensors, source.config)
    read = row_reader(matched)
    front = "model.language_model."
    assert len(expected) > 20
    for name, weight in expected.items():
        rows = read(name.removeprefix(front), 0, len(weight))
        assert np.array_equal(rows, weight.astype(np.float32)), name
    assert "rounded before" not in capsys.readouterr().err


def test_what_changes_replies_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models.write_checkpoint(tmp_path, models.E2B_LIKE)
    stored = read_header(tmp_path / "model.safetensors")
    values = {n: read_rows(t, 0, t.row_count).reshape(t.shape) for n, t in stored.items()}
    name = "model.language_model.layers.0.mlp.up_proj.weight"
    rows = len(values[name])
    values[name] = np.ones(values[name].shape, np.int8)
    values[name.replace(".weight", ".weight_scale")] = np.ones((rows, 1), np.float32)
    written(tmp_path, values)
    group: dict[str, Any] = {
        "weights": {"num_bits": 8, "strategy": "channel"},
        "input_activations": {"num_bits": 8, "dynamic": True},
    }
    with_config(tmp_path, {**COMPRESSED, "config_groups": {"group_0": group}})
    with open_source(str(tmp_path), None, weights=True):
        told = capsys.readouterr().err
    assert told.count("rounded before (compressed-tensors, 8-bit integers by rows)") == 1
    assert told.count("inputs of layers to 8-bit ints") == 1
    with open_source(str(tmp_path), None, weights=False):
        assert capsys.readouterr().err == ""


def test_whole_weights_of_a_config_that_quantises_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models.write_checkpoint(tmp_path, models.E2B_LIKE)
    with_config(tmp_path, {"load_in_4bit": True})
    with open_source(str(tmp_path), None, weights=True):
        assert "its weights are whole" in capsys.readouterr().err


def test_a_config_that_does_not_say_it_is_to_say_it(tmp_path: Path) -> None:
    write_packed(tmp_path)
    with_config(tmp_path, None)
    with open_source(str(tmp_path), None, weights=True) as source:
        assert source.checkpoint is not None
        with pytest.raises(CheckpointError, match=r"quantised checkpoint \(comp") as caught:
            match(source.checkpoint.tensors, source.config)
    assert "write the `quantization_config`" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("quantization", "words", "way_out"),
    [
        ({"quant_method": "gemma"}, "tie_word_embeddings", "download config.json again"),
        ({"quant_method": "gptq", "bits": 3}, "quantization_config.bits", "AWQ"),
        ({"quant_method": "hqq"}, "quantised checkpoints (hqq)", "dequantize"),
    ],
)
def test_what_is_not_read_is_refused_before_the_weights(
    quantization: dict[str, object], words: str, way_out: str, tmp_path: Path
) -> None:
    models.write_checkpoint(tmp_path, models.E2B_LIKE)
    with_config(tmp_path, quantization)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError) as caught, open_source(str(tmp_path), None, weights=False):
        pass
    assert words in str(caught.value)
    assert way_out in str(caught.value.hint)


def test_the_top_level_is_looked_at_first_as_in_transformers() -> None:
    both = {"quantization_config": {"a": 1}, "text_config": {"quantization_config": {"b": 1}}}
    assert quantization_of(both) == {"a": 1}
    assert quantization_of({**both, "quantization_config": None}) == {"b": 1}
    assert quantization_of({"quantization": {"bits": 4}}) == {"bits": 4}
    assert quantization_of({"text_config": None}) is None


ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    2**70,
    float("nan"),
    "x",
    "\ud800",
    [],
    [1, 2],
    {},
    {"x": {}},
    [[]],
)
CONFIGS: list[dict[str, Any]] = [
    {
        **COMPRESSED,
        "format": "pack-quantized",
        "sparsity_config": {"format": "dense"},
        "kv_cache_scheme": {"num_bits": 8},
        "transform_config": {"config_groups": {}},
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "format": "pack-quantized",
                "weights": {
                    **INT4,
                    "type": "int",
                    "symmetric": True,
                    "block_structure": [1, 2],
                },
                "input_activations": {"type": "int", "num_bits": 8, "dynamic": True},
                "output_activations": None,
            }
        },
    },
    {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq", "sym": True},
    {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
    {"quant_method": "fp8", "weight_block_size": [128, 128]},
    {"bits": 4, "group_size": 64, "mode": "affine", "a": {"bits": 8}},
]


def changed(value: Any) -> list[Any]:
    """The value with each part of it replaced by every odd one."""
    found: list[Any] = list(ODD)
    if isinstance(value, dict):
        found += [{**value, key: odd} for key, inner in value.items() for odd in changed(inner)]
    return found


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.get("quant_method", "mlx"))
def test_configs_of_any_values_are_read_or_refused(config: dict[str, Any], tmp_path: Path) -> None:
    tensors = written(
        tmp_path,
        {
            **{f"a.{end}": np.ones((4, 4), np.int32) for end in ("weight_packed", "qweight")},
            **{f"a.{end}": np.ones((4, 4), np.float32) for end in ("weight_scale", "scales")},
            "a.qzeros": np.ones((4, 4), np.int32),
            "a.weight": np.ones((4, 4), np.uint8),
        },
    )
    outcomes = set()
    for values in changed(config):
        for given in (tensors, {}):
            try:
                dequantised({"quantization_config": values}, given, is_named=False)
                outcomes.add("read")
            except Gemma4CompileError:
                outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_scales_of_keys_and_values_alone_leave_the_weights_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As llm-compressor saves a model whose cache alone is quantised."""
    name = "model.layers.0.self_attn.k_scale"
    tensors = written(
        tmp_path, {name: np.ones(1, np.float32), "model.norm.weight": np.ones(4, np.float32)}
    )
    scheme = {"num_bits": 8, "type": "float"}
    config = {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}}
    found = dequantised({"quantization_config": {**config, "kv_cache_scheme": scheme}}, tensors)
    assert found.keys() == {"model.norm.weight"}
    assert "its weights are whole" in capsys.readouterr().err
