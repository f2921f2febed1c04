"""Gemma 3n's decoder as a component: its parameters, plans, and the tensors that it leaves out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.checkpoint.match import Checkpoint, match
from gemma4_compile.errors import CheckpointError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.gemma3n.component import GEMMA3N
from gemma4_compile.model_spec.gemma3n.layer_plan import layer_plans
from gemma4_compile.model_spec.text.component import TEXT
from gemma4_compile.tiny.safetensors_file import write_safetensors
from tests import gemma3n, models

E4B = gemma3n.KINDS["3n e4b"]
CONFIG = Gemma4Config.from_dict(models.config_file(E4B, "hub", "float32"))


@pytest.mark.parametrize("kind", gemma3n.KINDS)
def test_every_tensor_is_of_one_parameter(kind: str) -> None:
    text = gemma3n.KINDS[kind]
    config = Gemma4Config.from_dict(models.config_file(text, "hub", "float32"))
    sources = [source for part in GEMMA3N.parameters(config) for source in part.sources]
    assert {source.name: source.shape for source in sources} == gemma3n.tensor_shapes(text)
    assert len({source.name for source in sources}) == len(sources)
    assert TEXT.parameters(config) == ()


def test_a_config_of_gemma_4_has_none() -> None:
    assert GEMMA3N.parameters(replace(CONFIG, gemma3n=None)) == ()


def test_layers_have_widths_of_their_own_and_keys_of_the_last_owner_of_their_kind() -> None:
    plans = layer_plans(CONFIG)
    assert [plan.intermediate_size for plan in plans] == E4B["intermediate_size"]
    assert [plan.kv_slot for plan in plans] == [0, 1, 2, 3, 3, 2, 3, 2]


def test_streams_are_counted_among_the_activations() -> None:
    memory = GEMMA3N.activations(CONFIG, "float16")
    assert 4 * 4 * CONFIG.hidden_size in memory.tensors
    assert all(set(together) <= {*memory.tensors, 0} for together in memory.together)


TOWERS = (
    *("model.vision_tower.timm_model.conv_stem.conv.weight", "model.embed_vision.embedding.weight"),
    *("model.audio_tower.conformer.0.norm.weight", "model.embed_audio.embedding.weight"),
)


def written(folder: Path, *others: str) -> Checkpoint:
    made = models.write_checkpoint(folder, E4B)
    tensors = {models.tensor_name(name): values for name, values in made.weights.items()}
    rows = np.zeros((4, 4), np.float32)
    write_safetensors(
        folder / "model.safetensors", {**tensors, **dict.fromkeys(others, rows)}, "float32"
    )
    return Checkpoint.open(folder)


def test_a_whole_checkpoint_s_towers_and_keys_of_layers_that_share_are_left_alone(
    tmp_path: Path,
) -> None:
    shared = "model.language_model.layers.7.self_attn.k_proj.weight"
    opened = written(tmp_path / "whole", *TOWERS, shared)
    assert match(opened.tensors, CONFIG).keys() == gemma3n.tensor_shapes(E4B).keys()


def test_a_tensor_that_no_part_has_is_refused(tmp_path: Path) -> None:
    opened = written(tmp_path / "more", "model.language_model.layers.0.layer_scalar")
    with pytest.raises(CheckpointError, match=r"layers\.0\.layer_scalar"):
        match(opened.tensors, CONFIG)
