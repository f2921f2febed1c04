"""The sound input as a component: which tensors of a checkpoint it takes, and what it exports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm

from gemma4_compile import abi
from gemma4_compile.checkpoint.float16_range import check_norms
from gemma4_compile.checkpoint.match import match, row_reader
from gemma4_compile.checkpoint.safetensors_file import TensorInfo, read_header
from gemma4_compile.compile.build import build_module, decoder_options
from gemma4_compile.errors import CheckpointError, QuantizationError
from gemma4_compile.model_spec.audio.component import AUDIO
from gemma4_compile.model_spec.audio.parameters import parameter_table
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.component import TEXT
from gemma4_compile.quantization.convert import conversion_steps
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec
from gemma4_compile.tiny.safetensors_file import write_safetensors
from tests import sounds
from tests.models import E2B_LIKE, config_file, random_weights

AUDIO_WEIGHTS = sounds.random_weights(sounds.TOWER)


@pytest.fixture
def tensors(tmp_path: Path) -> dict[str, TensorInfo]:
    """A checkpoint with a tower, of which the first bound is infinite."""
    text = {f"model.language_model.{n}": v for n, v in random_weights(E2B_LIKE).items()}
    first = next(name for name, value in AUDIO_WEIGHTS.items() if not value.shape)
    weights = {**AUDIO_WEIGHTS, first: np.asarray(-np.inf, np.float32)}
    write_safetensors(tmp_path / "model.safetensors", {**text, **weights}, "float32")
    return read_header(tmp_path / "model.safetensors")


def test_its_tensors_are_taken_where_sounds_are(tensors: dict[str, TensorInfo]) -> None:
    found = match(tensors, sounds.config_of(sounds.TOWER))
    assert AUDIO_WEIGHTS.keys() <= found.keys()


def test_its_tensors_are_left_where_sounds_are_not(tensors: dict[str, TensorInfo]) -> None:
    config = Gemma4Config.from_dict(config_file(E2B_LIKE, "hub", "float32"))
    found = match(tensors, config)
    assert not AUDIO_WEIGHTS.keys() & found.keys()
    assert "embed_tokens.weight" in found


def test_a_missing_and_a_foreign_tensor_are_named(tensors: dict[str, TensorInfo]) -> None:
    config = sounds.config_of(sounds.TOWER)
    name = "model.audio_tower.layers.1.self_attn.post.output_max"
    without = {key: value for key, value in tensors.items() if key != name}
    with pytest.raises(CheckpointError, match=f"`{name}` is missing"):
        match(without, config)
    more = {**tensors, "model.audio_tower.layers.2.norm_out.weight": tensors[name]}
    with pytest.raises(CheckpointError, match="belongs to no part of the model"):
        match(more, config)


def test_infinite_bounds_are_stored_as_none(tensors: dict[str, TensorInfo]) -> None:
    config = sounds.config_of(sounds.TOWER)
    read = row_reader(match(tensors, config))
    name = "audio_tower.layers.0.feed_forward1.ffw_layer_1.bounds"
    plan = storage_plan(parameter_table(config), RECIPES["q4f16"], None)
    (stored,) = (one for one in plan if one.parameter.name == name)
    (step,) = conversion_steps(stored)
    (block,) = step.run(read)
    expected = [AUDIO_WEIGHTS[source.name] for source in stored.parameter.sources]
    np.testing.assert_array_equal(block.data[1:], expected[1:])
    assert block.data[0] == -np.finfo(np.float32).max


@pytest.mark.parametrize(
    "norm",
    [
        "subsample_conv_projection.layer0.norm",
        "layers.1.feed_forward2.pre_layer_norm",
        "layers.0.norm_pre_attn",
        "layers.0.lconv1d.conv_norm",
    ],
)
def test_norms_beyond_float16_are_refused(norm: str) -> None:
    weights = dict(AUDIO_WEIGHTS)
    name = f"model.audio_tower.{norm}.weight"
    weights[name] = weights[name] * np.float32(1e5)
    table = parameter_table(sounds.config_of(sounds.TOWER))

    def read(source: str, begin: int, end: int) -> sounds.Float32Array:
        return weights[source][begin:end]

    check_norms(table, RECIPES["q4f32"], read)
    with pytest.raises(QuantizationError, match=f"`{name}` makes values"):
        check_norms(table, RECIPES["q4f16"], read)


def test_text_alone_is_exported_as_without_the_component() -> None:
    config = Gemma4Config.from_dict(config_file(E2B_LIKE, "hub", "float32"))
    recipe, target = RECIPES["f32"], target_spec("cpu")
    options = decoder_options(recipe, target, 16)
    plan = storage_plan(model_parameters(config, COMPONENTS), recipe, None)
    module = build_module(config, recipe, target, options, plan)
    alone = build_module(config, recipe, target, options, plan, (TEXT,))
    tvm.ir.assert_structural_equal(module, alone, map_free_vars=True)


def test_sounds_add_two_functions_on_one_tuple() -> None:
    config = sounds.config_of(sounds.TOWER)
    recipe, target = RECIPES["q4f16"], target_spec("webgpu")
    module = build_module(config, recipe, target, decoder_options(recipe, target, 16))
    names = (abi.EMBED_AUDIO, abi.AUDIO_ADAPTER, abi.PREFILL, abi.DECODE)
    counts = {len(module[name].params[-1].ty.fields) for name in names}
    tensors = [
        tensor
        for stored in storage_plan(model_parameters(config, (TEXT, AUDIO)), recipe, None)
        for tensor in stored.tensors
    ]
    assert counts == {len(tensors)}
