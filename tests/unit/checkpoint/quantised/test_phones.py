"""Google's checkpoints for phones: levels, steps, and what is wrong with some."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from gemma4_compile.checkpoint.match import Checkpoint, match, row_reader
from gemma4_compile.checkpoint.quantised.phones import stored_form
from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.errors import CheckpointError, ConfigError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality
from tests import phone_checkpoints

Tensors = dict[str, npt.NDArray[Any]]
Change = Callable[[Tensors], object]
FILE = "model.safetensors"
LAYER = "model.layers.0"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("phone")
    phone_checkpoints.write(path)
    return path


def changed(stored: Path, path: Path, change: Change) -> Path:
    """The checkpoint with some tensors changed."""
    tensors = load_file(stored / FILE)
    change(tensors)
    save_file(tensors, path / FILE)
    (path / "config.json").write_text((stored / "config.json").read_text())
    return path


def numbers(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.int64]:
    """Integers of rows of bytes, one by one."""
    per_byte = 8 // bits
    return np.array(
        [
            [
                ((int(row[i // per_byte]) >> (bits * (i % per_byte))) & ((1 << bits) - 1))
                - (1 << (bits - 1))
                for i in range(len(row) * per_byte)
            ]
            for row in codes
        ]
    )


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("lm_head", 2),
        ("layers.0.mlp.down_proj", 4),
        ("layers.6.mlp.up_proj", 2),
        ("layers.2.self_attn.k_proj", 4),
        ("layers.1.per_layer_projection", 8),
    ],
)
def test_levels_are_multiplied_by_the_step_of_their_row(stored: Path, name: str, bits: int) -> None:
    checkpoint = Checkpoint.open(stored)
    matched = match(checkpoint.tensors, Gemma4Config.from_dict(checkpoint.config))
    tensors = load_file(stored / FILE)
    module = name if name == "lm_head" else f"model.{name}"
    codes = tensors[f"{module}.weight"][:5]
    levels = codes if bits == 8 else numbers(codes, bits)
    rows = row_reader(matched)(f"{name}.weight", 0, 5)
    assert (rows == levels.astype(np.float32) * tensors[f"{module}.weight_scale"][:5]).all()
    assert stored_form(matched[f"{name}.weight"]) == (bits, rows.shape[1])


def test_a_table_has_a_step_for_each_block(stored: Path) -> None:
    checkpoint = Checkpoint.open(stored)
    matched = match(checkpoint.tensors, Gemma4Config.from_dict(checkpoint.config))
    tensors = load_file(stored / FILE)
    table = "model.embed_tokens_per_layer"
    levels = numbers(tensors[f"{table}.embedding_quantized"][7:9], 4)
    scales = np.repeat(tensors[f"{table}.embedding_scale"][7:9], 256, axis=1)
    rows = row_reader(matched)("embed_tokens_per_layer.weight", 7, 9)
    assert (rows == levels.astype(np.float32) * scales).all()
    assert stored_form(matched["embed_tokens_per_layer.weight"]) == (4, 256)


def test_steps_are_read_and_a_module_without_one_rounds_nothing(
    stored: Path, tmp_path: Path
) -> None:
    def remove(tensors: Tensors) -> None:
        del tensors[f"{LAYER}.mlp.down_proj.output_activation_scale"]

    checkpoint = Checkpoint.open(changed(stored, tmp_path, remove))
    matched = match(checkpoint.tensors, Gemma4Config.from_dict(checkpoint.config))
    read = row_reader(matched)
    assert read("lm_head.input_activation_scale", 0, 1) == np.float32(5 * 0.023)
    assert read("layers.0.mlp.down_proj.input_activation_scale", 0, 1) == np.float32(0.023)
    assert read("layers.0.mlp.down_proj.output_activation_scale", 0, 1) == 0


def test_steps_of_the_cache_and_tensors_of_towers_are_left_alone(
    stored: Path, tmp_path: Path
) -> None:
    def add(tensors: Tensors) -> None:
        tensors[f"{LAYER}.self_attn.k_cache_scale"] = np.array(0.5, np.float32)
        tower = "model.vision_tower.encoder.layers.0.self_attn.q_proj.linear"
        tensors[f"{tower}.weight"] = np.zeros((8, 8), np.int8)
        tensors[f"{tower}.weight_scale"] = np.ones((8, 1), np.float32)
        tensors[f"{tower}.input_activation_scale"] = np.array(1.0, np.float32)

    checkpoint = Checkpoint.open(changed(stored, tmp_path, add))
    match(checkpoint.tensors, Gemma4Config.from_dict(checkpoint.config))


def opened_head(path: Path) -> tuple[bool, set[str]]:
    """Whether the head is the token embedding, and the sources of its steps."""
    with open_source(str(path), None, weights=True) as source:
        assert source.checkpoint is not None
        matched = match(source.checkpoint.tensors, source.config)
        steps = {name for name in matched if name.startswith("lm_head.") and "scale" in name}
        return source.config.ties_head, steps


def test_a_head_that_is_stored_twice_is_one_matrix(stored: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()

    def change(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"] ^ np.uint8(1)

    steps = {"lm_head.input_activation_scale", "lm_head.output_activation_scale"}
    assert opened_head(stored) == (True, steps)
    assert opened_head(changed(stored, tmp_path / "other", change)) == (False, steps)


def test_a_tied_head_of_compressed_tensors_rounds_nothing(compressed: Path, tmp_path: Path) -> None:
    def remove_head(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith("lm_head.")]:
            del tensors[name]

    changed(compressed, tmp_path, remove_head)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    checkpoint = Checkpoint.open(tmp_path)
    read = row_reader(match(checkpoint.tensors, Gemma4Config.from_dict(checkpoint.config)))
    assert read("lm_head.output_activation_scale", 0, 1) == 0


def set_to(name: str, value: npt.NDArray[Any]) -> Change:
    return lambda tensors: tensors.update({name: value})


def remove(name: str) -> Change:
    return lambda tensors: tensors.pop(name)


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compressed")
    phone_checkpoints.write_compressed(path)
    return path


def test_the_form_of_compressed_tensors_is_the_same_model(stored: Path, compressed: Path) -> None:
    readers = []
    for path in (stored, compressed):
        checkpoint = Checkpoint.open(path)
        config = Gemma4Config.from_dict(checkpoint.config)
        assert config.rounds_activations
        readers.append(match(checkpoint.tensors, config))
    assert readers[0].keys() == readers[1].keys()
    for name, tensor in readers[0].items():
        count = tensor.row_count
        ours, theirs = (row_reader(matched)(name, 0, count) for matched in readers)
        assert np.array_equal(ours, theirs), name
        if tensor.decoder is not None and "embed" not in name:
            assert stored_form(readers[1][name]) == stored_form(tensor)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda tensors: tensors.update(
                {f"{LAYER}.mlp.up_proj.input_zero_point": np.ones(1, np.int8)}
            ),
            "has a zero point",
        ),
        (
            lambda tensors: tensors.update(
                {f"{LAYER}.mlp.up_proj.output_scale": np.full(1, np.inf, np.float32)}
            ),
            "is inf, expected a step",
        ),
        (
            lambda tensors: [
                tensors.pop(name)
                for name in list(tensors)
                if name.endswith(("input_scale", "output_scale"))
            ],
            "no `input_scale` and no `output_scale`",
        ),
    ],
)
def test_what_does_not_fit_in_compressed_tensors_is_named(
    change: Change, words: str, compressed: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=words):
        Checkpoint.open(changed(compressed, tmp_path, change))


BROKEN: dict[str, tuple[Change, str]] = {
    "a step that is no number": (
        set_to(f"{LAYER}.mlp.up_proj.output_activation_scale", np.array(np.nan, np.float32)),
        "is nan, expected a step",
    ),
    "a step below zero": (
        set_to(f"{LAYER}.mlp.up_proj.output_activation_scale", np.array(-1, np.float32)),
        "is -1.0, expected a step",
    ),
    "steps of rows": (
        set_to(f"{LAYER}.mlp.up_proj.output_activation_scale", np.ones(7, np.float32)),
        r"has shape \(7,\), expected \(\) or \(1,\)",
    ),
    "no scales": (remove(f"{LAYER}.mlp.up_proj.weight_scale"), "up_proj.weight_scale` is missing"),
    "no weight": (remove(f"{LAYER}.mlp.up_proj.weight"), "up_proj.weight` is missing"),
    "no table": (
        remove("model.embed_tokens.embedding_quantized"),
        "embed_tokens.embedding_quantized` is missing",
    ),
    "three bits": (
        set_to(f"{LAYER}.mlp.up_proj.weight", np.zeros((128, 36), np.uint8)),
        "128 rows of 96 integers of 2 or 4 bits",
    ),
    "floats": (
        set_to(f"{LAYER}.mlp.up_proj.weight", np.zeros((128, 96), np.float32)),
        "has dtype F32, expected U8 or I8",
    ),
    "scales of other rows": (
        set_to(f"{LAYER}.mlp.up_proj.weight_scale", np.ones((127, 1), np.float32)),
        r"has shape \(127, 1\), expected \(128, 1\)",
    ),
    "blocks that do not divide a row": (
        set_to("model.embed_tokens.embedding_scale", np.ones((256, 5), np.float32)),
        "96 columns are no whole number of its blocks",
    ),
    "inputs that are rounded twice": (
        set_to(f"{LAYER}.self_attn.k_proj.input_activation_scale", np.array(0.5, np.float32)),
        r"q_proj.input_activation_scale` and `.*k_proj.input_activation_scale` differ",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_fit_is_named(name: str, stored: Path, tmp_path: Path) -> None:
    change, words = BROKEN[name]
    with pytest.raises(CheckpointError, match=words):
        Checkpoint.open(changed(stored, tmp_path, change))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_bits": 3}, r"quantization_config.num_bits`: 3 bits are not read"),
        ({"quantize_embeddings": False}, "quantize_embeddings`: expected true"),
        ({"module_quant_configs": 7}, "module_quant_configs"),
        ({"module_quant_configs": {"(a+)+$": {"num_bits": 5}}}, "num_bits`: 5 bits"),
        ({"module_quant_configs": {str(i): {} for i in range(300)}}, "more than 256 patterns"),
    ],
)
def test_what_is_not_read_of_the_config_is_named(
    values: dict[str, Any], words: str, stored: Path, tmp_path: Path
) -> None:
    changed(stored, tmp_path, lambda tensors: None)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] |= values
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=words):
        Checkpoint.open(tmp_path)


def test_a_pattern_that_would_take_for_ever_is_never_run(stored: Path, tmp_path: Path) -> None:
    changed(stored, tmp_path, lambda tensors: None)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["module_quant_configs"] = {"(m|mo|o)*(m|mo|o)*$!": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert Checkpoint.open(tmp_path).tensors


EXPERTS = {
    **{"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2},
    **{"moe_intermediate_size": 32, "hidden_size_per_layer_input": 0},
}


@pytest.mark.parametrize(
    ("values", "modalities", "words"),
    [
        ({"tie_word_embeddings": True}, {Modality.TEXT}, "tie_word_embeddings`: expected false"),
        (EXPERTS, {Modality.TEXT}, "experts whose inputs"),
        ({}, {Modality.TEXT, Modality.IMAGE}, "are not compiled yet"),
    ],
)
def test_what_is_not_compiled_of_them_is_refused(
    values: dict[str, Any], modalities: set[Modality], words: str, stored: Path
) -> None:
    config = {**json.loads((stored / "config.json").read_text()), **values}
    with pytest.raises(ConfigError, match=words):
        Gemma4Config.from_dict(config, modalities=modalities)
