"""`vision_config` as checked fields, read only where pictures are asked for."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.config.vision import (
    AnyVisionConfig,
    ImageTokens,
    UnifiedVisionConfig,
    VisionConfig,
)
from gemma4_compile.model_spec.modality import TEXT_ONLY, Modality
from tests.presets import GEMMA4
from tests.unit.model_spec.configs import hub_config, unified_config

IMAGE = frozenset({Modality.TEXT, Modality.IMAGE})
TOKENS = {"boi_token_id": 10, "image_token_id": 11, "eoi_token_id": 12, "video_token_id": 13}


def vision_of(values: dict[str, Any], section: dict[str, Any], **top: Any) -> AnyVisionConfig:
    whole = {**values, **TOKENS, "vision_config": section, **top}
    config = Gemma4Config.from_dict(whole, modalities=IMAGE).vision
    assert config is not None
    return config


def tower(**section: Any) -> AnyVisionConfig:
    return vision_of(hub_config(), {"model_type": "gemma4_vision", **section})


def test_a_tower_has_transformers_defaults() -> None:
    transformers = pytest.importorskip("transformers")
    theirs, ours = transformers.Gemma4VisionConfig(), tower()
    for field in {item.name for item in fields(VisionConfig)} - {"rope_theta", "tokens"}:
        assert getattr(ours, field) == getattr(theirs, field), field
    assert isinstance(ours, VisionConfig)
    assert ours.rope_theta == 100.0
    assert ours.tokens == ImageTokens(10, 11, 12, 13)
    assert (ours.block_size, ours.grid_size) == (48, 3413)


def test_the_projection_has_transformers_defaults() -> None:
    module = pytest.importorskip("transformers.models.gemma4_unified")
    theirs = module.Gemma4UnifiedVisionConfig()
    ours = vision_of(unified_config(), {"model_type": "gemma4_unified_vision"})
    assert isinstance(ours, UnifiedVisionConfig)
    assert ours.embed_dim == theirs.mm_embed_dim
    assert ours.grid_size == ours.position_embedding_size == theirs.mm_posemb_size
    assert (ours.block_size, ours.rms_norm_eps) == (theirs.model_patch_size, theirs.rms_norm_eps)


CHANGES: dict[str, dict[str, Any]] = {
    "hidden_size": {"hidden_size": 96},
    "intermediate_size": {"intermediate_size": 100},
    "num_hidden_layers": {"num_hidden_layers": 2},
    "num_attention_heads": {"num_attention_heads": 3, "num_key_value_heads": 3},
    "head_dim": {"head_dim": 72},
    "rms_norm_eps": {"rms_norm_eps": 1e-5},
    "rope_theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    "pooling_kernel_size": {"pooling_kernel_size": 2},
    "patch_size": {"patch_size": 8},
    "position_embedding_size": {"position_embedding_size": 64},
    "use_clipped_linears": {"use_clipped_linears": True},
    "standardize": {"standardize": True},
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_key_changes_its_field(name: str) -> None:
    assert {*CHANGES, "tokens"} == {item.name for item in fields(VisionConfig)}
    assert getattr(tower(**CHANGES[name]), name) != getattr(tower(), name)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"head_dim": 66}, "multiple of 4"),
        ({"num_key_value_heads": 1}, "vision_config.num_key_value_heads"),
        ({"hidden_activation": "relu"}, "vision_config.hidden_activation"),
        ({"hidden_size": 0}, "vision_config.hidden_size"),
        ({"patch_size": "16"}, "vision_config.patch_size"),
        ({"standardize": 1}, "vision_config.standardize"),
        # No picture has less than a block.
        ({"position_embedding_size": 2}, "vision_config.position_embedding_size"),
        ({"model_type": "siglip"}, "vision_config.model_type"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type"),
        ({"rope_parameters": {"rope_theta": float("nan")}}, "rope_theta"),
    ],
)
def test_what_is_impossible_is_refused_by_name(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tower(**section)
    values = {**hub_config(), "vision_config": section}
    assert Gemma4Config.from_dict(values).vision is None, "nobody asked"


def test_unknown_keys_are_told() -> None:
    told: list[list[str]] = []
    section = {"model_type": "gemma4_vision", "new_key": 1, "attention_dropout": 0.0}
    values = {**hub_config(), **TOKENS, "vision_config": section}
    Gemma4Config.from_dict(values, told.append, IMAGE)
    assert told == [["vision_config.new_key"]]


def test_ids_lie_in_the_vocabulary() -> None:
    section = {"model_type": "gemma4_vision"}
    with pytest.raises(ConfigError, match="`image_token_id`: 256 is outside") as told:
        vision_of(hub_config(), section, image_token_id=256)
    assert "leave `image` out of --modalities" in str(told.value.hint)
    with pytest.raises(ConfigError, match="boi_token_id` is missing"):
        vision_of(hub_config(), section, boi_token_id=None)


def test_one_id_for_two_tokens_is_refused() -> None:
    values = {**hub_config(), **TOKENS, "vision_config": {}, "audio_config": {}}
    sounds = {"boa_token_id": 14, "audio_token_id": 15, "eoa_token_id": 16}
    Gemma4Config.from_dict({**values, **sounds}, modalities=None)
    for name, token in (("video_token_id", 11), ("audio_token_id", 11), ("boa_token_id", 12)):
        changed = {**values, **sounds, name: token}
        with pytest.raises(ConfigError, match=f"has token {token} as .* of image input and as"):
            Gemma4Config.from_dict(changed, modalities=None)
        assert Gemma4Config.from_dict(changed).modalities == TEXT_ONLY, "nobody asked"


def test_a_checkpoint_without_a_tower_is_named() -> None:
    with pytest.raises(ConfigError, match="no image input") as raised:
        Gemma4Config.from_dict(hub_config(), modalities=IMAGE)
    assert "--modalities" in str(raised.value.hint)


@pytest.mark.parametrize("name", GEMMA4)
def test_every_released_size_sees(name: str) -> None:
    config = Gemma4Config.from_preset(name, None)
    assert config.vision is not None
    assert config.vision.block_size == 48
    assert Modality.IMAGE in config.modalities
    assert (config.audio is None) == (name in ("gemma-4-26B-A4B-it", "gemma-4-31B-it"))
    assert Gemma4Config.from_preset(name).modalities == TEXT_ONLY
