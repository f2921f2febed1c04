"""An encoder's config.json."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality

TYPE, TEXT_TYPE = "embedding_gemma2", "embedding_gemma2_text"


def whole(**text: Any) -> dict[str, Any]:
    return {"model_type": TYPE, "text_config": {"model_type": TEXT_TYPE, **text}}


def test_without_keys_it_is_the_released_model() -> None:
    config = Gemma4Config.from_dict(whole())
    assert config.embedding is not None
    assert config.embedding.dim == 768
    assert config.embedding.media_tokens == (258_880, 258_884, 258_881)
    full = [i for i, kind in enumerate(config.layer_types) if kind is AttentionKind.FULL]
    assert full == [5, 11, 17, 23]
    assert {config.head_dim[i] for i in full} == {512}
    assert {config.num_key_value_heads[i] for i in full} == {1}
    assert (config.head_dim[0], config.num_key_value_heads[0]) == (256, 2)


def test_a_decoder_has_no_such_section() -> None:
    assert Gemma4Config.from_preset("gemma-4-E2B-it").embedding is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("embedding_dim", 0),
        ("embedding_dim", "768"),
        ("sliding_window", -1),
        ("hidden_size_per_layer_input", 0),
        ("num_key_value_heads", 3),
        ("head_dim", 7),
        ("attention_bias", True),
        ("hidden_activation", "silu"),
        ("sliding_window_pattern", 0),
    ],
)
def test_impossible_values_are_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        Gemma4Config.from_dict(whole(**{key: value}))


def test_media_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="pictures and sounds of EmbeddingGemma 2"):
        Gemma4Config.from_dict(whole(), modalities={Modality.TEXT, Modality.IMAGE})
    towers = {**whole(), "vision_config": {"model_type": "gemma4_vision"}}
    with pytest.raises(ConfigError, match="pictures and sounds of EmbeddingGemma 2"):
        Gemma4Config.from_dict(towers, modalities=None)
    assert Gemma4Config.from_dict(towers) == Gemma4Config.from_dict(whole())
    assert Gemma4Config.from_dict(whole(), modalities=None).embedding is not None


def test_a_key_that_nobody_knows_is_told() -> None:
    told: list[str] = []
    Gemma4Config.from_dict({**whole(pooling="cls"), "heads": 3}, told.extend)
    assert told == ["text_config.pooling", "heads"]
