"""`audio_config` as checked fields, read only where sounds are asked for."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.audio import (
    AnyAudioConfig,
    AudioConfig,
    AudioTokens,
    UnifiedAudioConfig,
)
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality
from tests.unit.model_spec.configs import hub_config, unified_config

AUDIO = frozenset({Modality.TEXT, Modality.AUDIO})
TOKENS = {"boa_token_id": 20, "audio_token_id": 21, "eoa_token_index": 22}


def audio_of(values: dict[str, Any], section: dict[str, Any], **top: Any) -> AnyAudioConfig:
    whole = {**values, **TOKENS, "audio_config": section, **top}
    config = Gemma4Config.from_dict(whole, modalities=AUDIO).audio
    assert config is not None
    return config


def tower(**section: Any) -> AudioConfig:
    config = audio_of(hub_config(), {"model_type": "gemma4_audio", **section})
    assert isinstance(config, AudioConfig)
    return config


def test_a_tower_has_transformers_defaults() -> None:
    transformers = pytest.importorskip("transformers")
    theirs, ours = transformers.Gemma4AudioConfig(), tower()
    others = {
        "conv_channels": tuple(theirs.subsampling_conv_channels),
        "attention_context": theirs.attention_context_left - 1,
        "position_offset": 0,
        "output_dim": theirs.output_proj_dims,
        "tokens": AudioTokens(20, 21, 22),
    }
    for field in fields(AudioConfig):
        expected = others.get(field.name, getattr(theirs, field.name, None))
        assert getattr(ours, field.name) == expected, field.name
    assert ours.head_dim == 128


def test_the_projection_takes_raw_frames() -> None:
    ours = audio_of(unified_config(), {"model_type": "gemma4_unified_audio"})
    assert ours == UnifiedAudioConfig(640, 1e-6, AudioTokens(20, 21, 22))


CHANGES: dict[str, dict[str, Any]] = {
    "hidden_size": {"hidden_size": 96},
    "num_hidden_layers": {"num_hidden_layers": 2},
    "num_attention_heads": {"num_attention_heads": 4},
    "conv_channels": {"subsampling_conv_channels": [8, 4]},
    "conv_kernel_size": {"conv_kernel_size": 3},
    "residual_weight": {"residual_weight": 0.25},
    "attention_context": {"attention_context_left": 9},
    "position_offset": {"attention_chunk_size": 14},
    "attention_logit_cap": {"attention_logit_cap": 30.0},
    "use_clipped_linears": {"use_clipped_linears": False},
    "rms_norm_eps": {"rms_norm_eps": 1e-5},
    "gradient_clipping": {"gradient_clipping": 1e4},
    "output_dim": {"output_proj_dims": 64},
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_key_changes_its_field(name: str) -> None:
    assert {*CHANGES, "tokens"} == {item.name for item in fields(AudioConfig)}
    assert getattr(tower(**CHANGES[name]), name) != getattr(tower(), name)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"num_attention_heads": 3}, "do not share"),
        ({"subsampling_conv_channels": [128]}, "subsampling_conv_channels"),
        ({"subsampling_conv_channels": [128, True]}, "two integers"),
        ({"attention_context_right": 1}, "attention_context_right"),
        ({"attention_context_left": 1}, "attention_context_left"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"gradient_clipping": 0.0}, "gradient_clipping"),
        ({"model_type": "whisper"}, "audio_config.model_type"),
    ],
)
def test_what_is_impossible_is_refused_by_name(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tower(**section)


def test_the_last_id_has_two_spellings() -> None:
    section = {"model_type": "gemma4_audio"}
    found = audio_of(hub_config(), section, eoa_token_id=30)
    assert found.tokens.end == 30
    with pytest.raises(ConfigError, match="audio_token_id"):
        audio_of(hub_config(), section, audio_token_id=None)


def test_a_checkpoint_without_a_tower_is_named() -> None:
    values = {**hub_config(), "audio_config": None}
    with pytest.raises(ConfigError, match="no sound input"):
        Gemma4Config.from_dict(values, modalities=AUDIO)
