"""The text decoder as a component: its tensors' names in checkpoints, and those it leaves out."""

from __future__ import annotations

import pytest

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.component import TEXT, is_unused
from gemma4_compile.model_spec.text.parameters import parameter_table

E2B = Gemma4Config.from_preset("gemma-4-E2B-it")  # 35 layers, of which 15 own keys


@pytest.mark.parametrize("name", ["k_proj", "v_proj", "k_norm"])
def test_keys_and_values_of_layers_that_share_are_unused(name: str) -> None:
    used = [
        layer
        for layer in range(40)
        if not is_unused(f"layers.{layer}.self_attn.{name}.weight", E2B)
    ]
    assert used == [*range(15), *range(35, 40)], "a layer beyond the last is no known tensor"


@pytest.mark.parametrize(
    "name",
    [
        "layers.20.self_attn.q_proj.weight",
        "layers.20.self_attn.o_proj.weight",
        "layers.20.self_attn.k_proj.bias",
        "layers.20.self_attn.k_proj.weight.x",
        "x.layers.20.self_attn.k_proj.weight",
        "layers.x.self_attn.k_proj.weight",
        "embed_tokens.weight",
    ],
)
def test_everything_else_is_read(name: str) -> None:
    assert not is_unused(name, E2B)


def test_without_sharing_nothing_is_unused() -> None:
    config = Gemma4Config.from_preset("gemma-4-31B-it")
    assert not is_unused("layers.59.self_attn.k_proj.weight", config)


@pytest.mark.parametrize("preset", ["gemma-4-E2B-it", "gemma-4-31B-it"])
def test_no_tensor_of_the_table_is_unused(preset: str) -> None:
    config = Gemma4Config.from_preset(preset)
    assert TEXT.parameters(config) == parameter_table(config)
    sources = [source.name for part in TEXT.parameters(config) for source in part.sources]
    assert not [name for name in sources if TEXT.is_unused(name, config)]


@pytest.mark.parametrize("prefix", ["model.language_model.", "model.", ""])
def test_names_come_without_the_prefix_that_a_checkpoint_has(prefix: str) -> None:
    assert prefix in TEXT.prefixes
    assert TEXT.source_name(f"{prefix}norm.weight", prefix) == "norm.weight"


def test_the_hub_s_prefix_is_the_usual_one() -> None:
    assert TEXT.tensor_name("norm.weight") == "model.language_model.norm.weight"
