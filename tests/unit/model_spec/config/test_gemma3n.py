"""Gemma 3n's section of `config.json`: what is read, what is a default, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.model_spec.config.gemma3n import Gemma3nConfig
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import ALL_MODALITIES, TEXT_ONLY, Modality

F, S = AttentionKind.FULL, AttentionKind.SLIDING


def refuse(names: list[str]) -> None:
    pytest.fail(f"unknown: {names}")


def read(modalities: frozenset[Modality] | None = TEXT_ONLY, **fields: Any) -> Gemma4Config:
    text = {"num_hidden_layers": 12, "num_kv_shared_layers": 2, **fields}
    values = {"model_type": "gemma3n", "text_config": text}
    return Gemma4Config.from_dict(values, refuse, modalities)


def section(**fields: Any) -> Gemma3nConfig:
    found = read(**fields).gemma3n
    assert found is not None
    return found


def test_what_is_not_given_is_transformers_default() -> None:
    config, own = read(), section()
    assert config.layer_types == (S, S, S, S, F, S, S, S, S, F, S, S), "the last one slides"
    assert own.sparsities == (0.95,) * 10 + (0.0,) * 2
    assert own.intermediate_sizes == (16_384,) * 12
    assert (own.streams, own.active, own.scales_corrected, own.laurel_rank) == (4, 0, True, 64)
    assert section(num_hidden_layers=10, layer_types=["full_attention"] * 10).sparsities[0] == 0
    assert (config.full_rope.rope_theta, config.sliding_rope.rope_theta) == (1e6, 1e4)


def test_thetas_of_files_before_and_since_rope_parameters() -> None:
    before = read(rope_theta=5e5, rope_local_base_freq=2e4, rope_scaling=None)
    since = read(
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        }
    )
    assert before == since
    assert (since.full_rope.rope_theta, since.sliding_rope.rope_theta) == (5e5, 2e4)
    assert since.full_rope.partial_rotary_factor == 1.0


def test_layers_have_widths_of_their_own() -> None:
    widths = [64, *[32] * 11]
    assert section(intermediate_size=widths).intermediate_sizes == tuple(widths)
    assert read(intermediate_size=widths).intermediate_size == 64


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("intermediate_size", [64] * 11),
        ("intermediate_size", [64] * 11 + [0]),
        ("intermediate_size", [64] * 11 + [True]),
        ("activation_sparsity_pattern", [0.5] * 11),
        ("activation_sparsity_pattern", [0.5] * 11 + [1.0]),
        ("activation_sparsity_pattern", [0.5] * 11 + ["0.5"]),
        ("altup_num_inputs", 1),
        ("altup_num_inputs", 7),
        ("altup_active_idx", 4),
        ("laurel_rank", 0),
        ("hidden_size_per_layer_input", 0),
        ("num_kv_shared_layers", 12),
        ("num_kv_shared_layers", 9),
        ("attention_bias", True),
        ("use_bidirectional_attention", "vision"),
        ("hidden_activation", "silu"),
        ("rope_scaling", {"type": "linear"}),
    ],
)
def test_an_impossible_value_is_refused_by_its_key(key: str, value: object) -> None:
    given: dict[str, Any] = {key: value}
    with pytest.raises(ConfigError, match=key):
        read(**given)


@pytest.mark.parametrize("modality", sorted(ALL_MODALITIES - TEXT_ONLY))
def test_its_towers_are_refused_by_name(modality: Modality) -> None:
    with pytest.raises(ConfigError, match=f"`{modality.value}` of Gemma 3n"):
        read(frozenset({Modality.TEXT, modality}))
    assert read(None).modalities == TEXT_ONLY, "all that there is, is its text"
