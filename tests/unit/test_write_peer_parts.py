"""GGUF files of vision towers and of drafters with made-up values, for the peer's benchmarks."""

from __future__ import annotations

from math import prod

import pytest

from benchmarks.drafter_config import SIZES, drafter_values
from benchmarks.peer import write_drafter, write_mmproj
from gemma4_compile.model_spec.config.drafter import read_drafter
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.layer_plan import drafter_plans
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.model_spec.vision.parameters import parameter_table

TOWERS = ("gemma-4-E2B-it", "gemma-4-E4B-it", "gemma-4-26B-A4B-it", "gemma-4-31B-it")


@pytest.mark.parametrize("preset", TOWERS)
def test_a_tower_has_every_parameter(preset: str) -> None:
    config = Gemma4Config.from_preset(preset, (Modality.TEXT, Modality.IMAGE))
    table = write_mmproj.tensors(config)
    assert len({tensor.name for tensor in table}) == len(table)
    expected = sum(prod(entry.shape) for entry in parameter_table(config))
    assert sum(prod(tensor.shape) for tensor in table) == expected
    entries = write_mmproj.metadata(config, preset)
    assert entries["clip.vision.block_count"] == write_mmproj.tower_of(config).num_hidden_layers


def test_a_size_without_a_tower_is_refused() -> None:
    config = Gemma4Config.from_preset("gemma-4-12B-it", (Modality.TEXT, Modality.IMAGE))
    with pytest.raises(ValueError, match="no vision tower"):
        write_mmproj.tensors(config)


@pytest.mark.parametrize("preset", SIZES)
def test_a_drafter_has_every_parameter_but_its_clusters(preset: str) -> None:
    target = Gemma4Config.from_preset(preset)
    drafter = read_drafter(drafter_values(preset))
    plans = drafter_plans(drafter, target)
    table = write_drafter.tensors(drafter, target)
    assert len({tensor.name for tensor in table}) == len(table)
    hidden, backbone = drafter.hidden_size, drafter.backbone_hidden_size
    expected = drafter.vocab_size * hidden + hidden + 3 * hidden * backbone
    for plan in plans:
        rows = plan.num_attention_heads * plan.head_dim
        expected += 4 * hidden + plan.head_dim + 1  # norms and the scalar
        expected += 2 * rows * hidden + 3 * hidden * plan.intermediate_size
    made = sum(prod(tensor.shape) for tensor in table if tensor.name != "rope_freqs.weight")
    assert made == expected
    entries = write_drafter.metadata(drafter, target, preset)
    assert entries["gemma4-assistant.embedding_length_out"] == target.hidden_size
    pattern = entries["gemma4-assistant.attention.sliding_window_pattern"]
    assert pattern == [True, True, True, False]
