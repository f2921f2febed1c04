"""Gemma4Config: what both forms of config.json mean."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config, preset_names
from gemma4_compile.model_spec.config.keys import IGNORED_KEYS, IGNORED_TOP_KEYS
from gemma4_compile.model_spec.text.parameters import parameter_table
from tests.unit.model_spec.configs import (
    MOE,
    F,
    S,
    hub_config,
    saved_config,
    text_config,
    unified_config,
    without,
)


def test_hub_form_resolves_every_layer() -> None:
    config = Gemma4Config.from_dict(hub_config())
    assert config.layer_types[2] is AttentionKind.FULL
    assert config.head_dim == (32, 32, 64, 32, 32, 64)
    assert config.num_key_value_heads == (2, 2, 1, 2, 2, 1)
    assert config.sliding_rope.partial_rotary_factor == 1.0
    assert config.full_rope.rope_theta == 1e6
    assert config.eos_token_id == (1,)


def test_saved_form_equals_hub_form() -> None:
    assert Gemma4Config.from_dict(saved_config()) == Gemma4Config.from_dict(hub_config())


def test_global_kv_heads_count_only_with_k_eq_v() -> None:
    config = Gemma4Config.from_dict(hub_config(attention_k_eq_v=False))
    assert config.num_key_value_heads == (2,) * 6


def test_last_layer_is_full_attention() -> None:
    config = Gemma4Config.from_dict(hub_config(layer_types=[S, S, F, S, S, S]))
    assert config == Gemma4Config.from_dict(hub_config())


def test_top_level_dtype_and_eos_win() -> None:
    values = {**hub_config(), "dtype": "float32", "eos_token_id": [1, 106]}
    config = Gemma4Config.from_dict(values)
    assert (config.dtype, config.eos_token_id) == ("float32", (1, 106))


def test_old_dtype_key_is_read() -> None:
    values = {**without(text_config(), "dtype"), "torch_dtype": "float16"}
    assert Gemma4Config.from_dict(values).dtype == "float16"


@pytest.mark.parametrize("value", [0, None])
def test_no_per_layer_embedding(value: int | None) -> None:
    config = Gemma4Config.from_dict(hub_config(hidden_size_per_layer_input=value))
    assert config.hidden_size_per_layer_input == 0


def test_experts_are_read() -> None:
    config = Gemma4Config.from_dict(hub_config(**MOE))
    assert (config.num_experts, config.top_k_experts, config.moe_intermediate_size) == (8, 2, 48)


@pytest.mark.parametrize("enabled", [False, None])
def test_numbers_of_absent_experts_are_no_facts(enabled: bool | None) -> None:
    config = Gemma4Config.from_dict(hub_config(**{**MOE, "enable_moe_block": enabled}))
    assert (config.num_experts, config.top_k_experts, config.moe_intermediate_size) == (0, 0, 0)


def test_unified_model_has_the_same_decoder() -> None:
    dense = Gemma4Config.from_dict(
        hub_config(hidden_size_per_layer_input=0, use_bidirectional_attention="vision")
    )
    assert Gemma4Config.from_dict(unified_config()) == dense
    assert Gemma4Config.from_dict(unified_config()["text_config"]) == dense
    written_out = unified_config(enable_moe_block=False, num_experts=None, top_k_experts=None)
    assert Gemma4Config.from_dict(written_out) == dense


def test_text_type_must_be_that_of_the_model() -> None:
    for values in (hub_config(), unified_config()):
        other = unified_config() if values["model_type"] == "gemma4" else hub_config()
        with pytest.raises(ConfigError, match=r"text_config\.model_type"):
            Gemma4Config.from_dict({**values, "text_config": other["text_config"]})


def test_vocabulary_of_an_absent_table_is_not_a_fact() -> None:
    config = Gemma4Config.from_dict(hub_config(hidden_size_per_layer_input=0))
    assert config.vocab_size_per_layer_input == 0


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("gemma-4-E2B-it", 4_628_569_379),
        ("gemma-4-E4B-it", 7_463_013_418),
        ("gemma-4-12B-it", 11_907_350_320),
        ("gemma-4-26B-A4B-it", 25_233_141_790),
        ("gemma-4-31B-it", 30_697_345_340),
    ],
)
def test_presets_have_the_published_parameter_count(name: str, elements: int) -> None:
    table = parameter_table(Gemma4Config.from_preset(name))
    assert sum(math.prod(parameter.shape) for parameter in table) == elements
    assert name in preset_names()


def test_unknown_preset_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="no preset `gemma-9`") as caught:
        Gemma4Config.from_preset("gemma-9")
    assert "gemma-4-E2B-it" in str(caught.value.hint)


CHANGES: dict[str, dict[str, Any]] = {
    "vocab_size": {"vocab_size": 288, "vocab_size_per_layer_input": 288},
    "hidden_size": {"hidden_size": 96},
    "intermediate_size": {"intermediate_size": 96},
    "num_hidden_layers": {
        "num_hidden_layers": 7,
        "layer_types": [S, S, F, S, S, S, F],
        "num_kv_shared_layers": 4,
    },
    "layer_types": {"layer_types": [S, F, F, S, S, F]},
    "num_attention_heads": {"num_attention_heads": 8},
    "num_key_value_heads": {"num_key_value_heads": 4},
    "head_dim": {"head_dim": 16},
    "sliding_window": {"sliding_window": 16},
    "max_position_embeddings": {"max_position_embeddings": 1024},
    "rms_norm_eps": {"rms_norm_eps": 1e-5},
    "sliding_rope": {
        "rope_parameters": {
            S: {"rope_type": "default", "rope_theta": 2e4},
            F: text_config()["rope_parameters"][F],
        }
    },
    "full_rope": {
        "rope_parameters": {
            S: text_config()["rope_parameters"][S],
            F: {"rope_type": "default", "rope_theta": 1e6},
        }
    },
    "hidden_size_per_layer_input": {"hidden_size_per_layer_input": 64},
    "vocab_size_per_layer_input": {"vocab_size": 512, "vocab_size_per_layer_input": 512},
    "num_kv_shared_layers": {"num_kv_shared_layers": 2},
    "use_double_wide_mlp": {"use_double_wide_mlp": False},
    "num_experts": MOE,
    "top_k_experts": MOE,
    "moe_intermediate_size": MOE,
    "attention_k_eq_v": {"attention_k_eq_v": False},
    "final_logit_softcapping": {"final_logit_softcapping": None},
    "bos_token_id": {"bos_token_id": 3},
    "pad_token_id": {"pad_token_id": 3},
    "eos_token_id": {"eos_token_id": [1, 7]},
    "bidirectional_images": {"use_bidirectional_attention": "vision"},
}
OF_THE_TOP_LEVEL: dict[str, dict[str, Any]] = {
    "ties_head": {"tie_word_embeddings": False},
    "dtype": {"dtype": "float32"},
    "rounds_activations": {
        "quantization_config": {"quant_method": "gemma"},
        "tie_word_embeddings": False,
    },
}
# tests/unit/model_spec/*/test_config.py
SECTIONS = {"vision", "audio", "drafter", "embedding", "gemma3n"}


def test_every_field_has_a_change() -> None:
    assert {*CHANGES, *OF_THE_TOP_LEVEL, *SECTIONS} == {
        field.name for field in fields(Gemma4Config)
    }


@pytest.mark.parametrize("name", [*CHANGES, *OF_THE_TOP_LEVEL])
def test_each_key_changes_its_field(name: str) -> None:
    base = Gemma4Config.from_dict(hub_config())
    changed = {**hub_config(**CHANGES.get(name, {})), **OF_THE_TOP_LEVEL.get(name, {})}
    assert getattr(Gemma4Config.from_dict(changed), name) != getattr(base, name)


def test_ignored_keys_have_reasons_and_change_nothing() -> None:
    base = Gemma4Config.from_dict(hub_config())
    values = {**hub_config(), **dict.fromkeys(IGNORED_TOP_KEYS, "anything")}
    values["text_config"] = {**text_config(), **dict.fromkeys(IGNORED_KEYS, 3)}
    assert Gemma4Config.from_dict(values) == base
    assert all(IGNORED_TOP_KEYS.values())


@pytest.mark.parity
@pytest.mark.parametrize("whole", [False, True], ids=["CausalLM", "ConditionalGeneration"])
def test_config_saved_by_transformers(whole: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    saved = transformers.Gemma4TextConfig(**without(text_config(), "model_type", "dtype"))
    if whole:
        both = transformers.Gemma4Config(
            text_config=saved.to_dict(), vision_config=None, audio_config=None
        )
        model = transformers.Gemma4ForConditionalGeneration(both)
    else:
        model = transformers.Gemma4ForCausalLM(saved)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert Gemma4Config.from_dict(written) == Gemma4Config.from_dict(hub_config())


@pytest.mark.parity
@pytest.mark.parametrize("whole", [False, True], ids=["CausalLM", "ConditionalGeneration"])
@pytest.mark.parametrize("kind", ["experts", "unified"])
def test_config_of_other_kinds_saved_by_transformers(
    kind: str, whole: bool, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    values = hub_config(**MOE, num_kv_shared_layers=0) if kind == "experts" else unified_config()
    name = "Gemma4" if kind == "experts" else "Gemma4Unified"
    text = without(values["text_config"], "model_type", "dtype")
    saved = getattr(transformers, f"{name}TextConfig")(**text, dtype="bfloat16")
    if whole:
        saved = getattr(transformers, f"{name}Config")(
            text_config=saved.to_dict(), vision_config=None, audio_config=None, dtype="bfloat16"
        )
    saved.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert Gemma4Config.from_dict(written) == Gemma4Config.from_dict(values)


def test_a_text_models_config_has_no_section_of_text() -> None:
    """What stands there was meant: without it every key would have its default."""
    values = hub_config()
    with pytest.raises(ConfigError, match="`gemma4_text` has no sections") as caught:
        Gemma4Config.from_dict({**values, "model_type": "gemma4_text"})
    assert "`gemma4`" in str(caught.value.hint)
    flat = {**values["text_config"], "model_type": "gemma4_text", "text_config": None}
    assert Gemma4Config.from_dict(flat) == Gemma4Config.from_dict(hub_config())
