"""Attention in `config.json`: what the decoder's and a drafter's config share."""

from __future__ import annotations

import pytest

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.attention import (
    AttentionKind,
    read_heads,
    read_layer_types,
    read_ropes,
)
from gemma4_compile.model_spec.config.fields import ConfigFields
from tests.unit.model_spec.configs import F, S, text_config

KINDS = (AttentionKind.SLIDING, AttentionKind.FULL)


def fields(**changes: object) -> ConfigFields:
    return ConfigFields({**text_config(), **changes}, "text_config")


def test_the_last_layer_is_full() -> None:
    found = read_layer_types(fields(layer_types=[S, S]), 2)
    assert found == (AttentionKind.SLIDING, AttentionKind.FULL)


def test_global_heads_count_only_where_values_are_keys() -> None:
    assert read_heads(fields(), KINDS, True) == ((2, 1), (32, 64))
    assert read_heads(fields(), KINDS, False) == ((2, 2), (32, 64))


def test_a_rope_of_another_kind_is_refused_by_its_key() -> None:
    changed = {**text_config()["rope_parameters"], F: {"rope_type": "yarn", "rope_theta": 1e6}}
    with pytest.raises(ConfigError, match=r"rope_parameters\.full_attention\.rope_type"):
        read_ropes(fields(rope_parameters=changed))
