"""Constant scales and their rounding."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.scales import (
    embedding_scale,
    per_layer_embedding_scale,
    per_layer_projection_scale,
    round_to_dtype,
)


# What torch gives for torch.tensor(hidden_size ** 0.5, dtype=...).
@pytest.mark.parametrize(
    ("hidden_size", "bfloat16", "float16"),
    [(1536, 39.25, 39.1875), (2560, 50.5, 50.59375), (5376, 73.5, 73.3125)],
)
def test_embedding_scale_is_rounded_to_the_checkpoints_dtype(
    hidden_size: int, bfloat16: float, float16: float
) -> None:
    config = replace(Gemma4Config.from_preset("gemma-4-E2B-it"), hidden_size=hidden_size)

    assert embedding_scale(replace(config, dtype="bfloat16")) == bfloat16
    assert embedding_scale(replace(config, dtype="float16")) == float16
    assert embedding_scale(replace(config, dtype="float32")) == np.float32(sqrt(hidden_size))


def test_scales_of_the_per_layer_embedding() -> None:
    config = Gemma4Config.from_preset("gemma-4-E2B-it")

    assert per_layer_embedding_scale(config) == 16.0
    assert per_layer_projection_scale(config) == 1536**-0.5


def test_bfloat16_rounds_as_dropping_the_lower_half_of_float32_does() -> None:
    values = np.random.default_rng(7).uniform(1e-3, 1e3, 1000).astype(np.float32)
    # bfloat16 values and the ties halfway between two of them.
    ties = (values.view(np.uint32) & 0xFFFF0000 | 0x8000).view(np.float32)
    values = np.concatenate([values, ties])
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32)

    for value, expected in zip(values, rounded.view(np.float32), strict=True):
        assert round_to_dtype(float(value), "bfloat16") == expected


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match="float8"):
        round_to_dtype(1.0, "float8")
