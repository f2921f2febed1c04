"""A picture's part as a component: tensors of a checkpoint, parameters, and where it is absent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.checkpoint.match import Checkpoint, match, row_reader
from gemma4_compile.checkpoint.nonfinite import finite_reader
from gemma4_compile.compile.build import build_module, decoder_options
from gemma4_compile.errors import CheckpointError
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec
from gemma4_compile.tiny.safetensors_file import write_safetensors
from tests import models
from tests.vision_models import KINDS, config_of, random_weights


def write(folder: Path, kind: str, without: str = "", more: tuple[str, ...] = ()) -> Checkpoint:
    """A checkpoint with both parts, less some tensors and with others."""
    text = models.KINDS[KINDS[kind][0]]
    path = models.write_checkpoint(folder / "checkpoint", text, dtype="float32").path
    decoder = models.random_weights(text, dtype="float32")
    tensors = {f"model.language_model.{name}": value for name, value in decoder.items()}
    vision = random_weights(config_of(kind))
    tensors |= {name: value for name, value in vision.items() if not without or without not in name}
    tensors |= {name: np.zeros(3, np.float32) for name in more}
    write_safetensors(path / "model.safetensors", tensors, "float32")
    return Checkpoint.open(path)


@pytest.mark.parametrize("kind", KINDS)
def test_its_tensors_are_matched_where_asked_for_and_skipped_where_not(
    kind: str, tmp_path: Path
) -> None:
    opened = write(tmp_path, kind)
    weights, config = random_weights(config_of(kind)), config_of(kind)
    found = match(opened.tensors, config)
    assert weights.keys() <= found.keys()
    read = row_reader(found)
    for name, value in weights.items():
        if value.ndim == 1:
            np.testing.assert_array_equal(read(name, 0, len(value)), value)
    plain = Gemma4Config.from_dict(opened.config)
    assert plain.vision is None
    assert not weights.keys() & match(opened.tensors, plain).keys()


def test_open_bounds_are_read_as_the_largest_number_and_stay_it(tmp_path: Path) -> None:
    found = match(write(tmp_path, "clipped").tensors, config_of("clipped"))
    read = row_reader(found)
    prefix = "model.vision_tower.encoder.layers.1.self_attn.k_proj."
    largest = np.finfo(np.float32).max
    for reader in (read, finite_reader(read)):  # not 0, which would clip everything
        assert reader(f"{prefix}input_min", 0, 1).tolist() == [-largest]
        assert reader(f"{prefix}output_max", 0, 1).tolist() == [largest]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("clipped", "model.vision_tower.encoder.layers.2.mlp.up_proj.input_max"),
        ("standard", "model.vision_tower.std_scale"),
        ("unified", "model.vision_embedder.pos_norm.bias"),
        ("wide", "model.embed_vision.embedding_projection.weight"),
    ],
)
def test_a_missing_tensor_is_named_in_full(kind: str, name: str, tmp_path: Path) -> None:
    opened = write(tmp_path, kind, without=name)
    with pytest.raises(CheckpointError, match=f"tensor `{name}` is missing"):
        match(opened.tensors, config_of(kind))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("standard", "model.vision_tower.encoder.layers.0.mlp.up_proj.input_max"),
        ("unified", "model.vision_tower.std_scale"),
        ("clipped", "model.vision_embedder.pos_embedding"),
    ],
)
def test_a_tensor_of_another_kind_of_tower_is_refused(kind: str, name: str, tmp_path: Path) -> None:
    opened = write(tmp_path, kind, more=(name,))
    with pytest.raises(CheckpointError, match=f"tensor `{name}` .*belongs to no part"):
        match(opened.tensors, config_of(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_every_function_takes_the_parameters_of_both_parts(kind: str) -> None:
    config, recipe, target = config_of(kind), RECIPES["f16"], target_spec("webgpu")
    parameters = model_parameters(config, COMPONENTS)
    plan = storage_plan(parameters, recipe, target.max_binding_bytes)
    module = build_module(config, recipe, target, decoder_options(recipe, target, 16), plan)
    count = sum(len(stored.tensors) for stored in plan)
    for name in (abi.EMBED_IMAGE, abi.IMAGE_ADAPTER, abi.PREFILL, abi.DECODE, abi.EMBED):
        assert len(module[name].params[-1].ty.fields) == count


def test_blocks_of_a_few_pixels_leave_no_room_for_the_mark_of_a_container() -> None:
    config, recipe, target = config_of("clipped"), RECIPES["f16"], target_spec("webgpu")
    assert config.vision is not None
    config = replace(config, vision=replace(config.vision, patch_size=1))
    plan = storage_plan(model_parameters(config, COMPONENTS), recipe, target.max_binding_bytes)
    module = build_module(config, recipe, target, decoder_options(recipe, target, 16), plan)
    assert module[abi.IMAGE_ADAPTER].params[0].ty.shape[1] == 14 * 3, "no row below the blocks"
