"""The model's constant scales, rounded to the checkpoint's dtype as transformers does."""

from __future__ import annotations

import math

import numpy as np

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.text import TextConfig


def round_to_dtype(value: float, dtype: str) -> float:
    """Round a positive, normal `value` to the nearest number of `dtype`, ties to even.

    Raises
    ------
    ConfigError
        If `dtype` is not a checkpoint dtype.
    """
    if dtype == "float32":
        return float(np.float32(value))
    if dtype == "float16":
        return float(np.float16(value))
    if dtype == "bfloat16":
        mantissa, exponent = math.frexp(value)
        return math.ldexp(
            round(mantissa * 256), exponent - 8
        )  # 8 significant bits; round() ties to even
    raise ConfigError(
        f"unknown checkpoint dtype `{dtype}`", hint="expected bfloat16, float16 or float32"
    )


def embedding_scale(config: TextConfig) -> float:
    """Factor of the token embedding: sqrt(hidden_size), 39.25 for 1536 in bfloat16."""
    return round_to_dtype(math.sqrt(config.hidden_size), config.dtype)


def per_layer_embedding_scale(config: TextConfig) -> float:
    """Factor of the per-layer embedding's token half: sqrt(hidden_size_per_layer_input)."""
    return round_to_dtype(math.sqrt(config.hidden_size_per_layer_input), config.dtype)


def per_layer_projection_scale(config: TextConfig) -> float:
    """Factor of the per-layer embedding's context half (a Python float in transformers)."""
    return float(config.hidden_size) ** -0.5


PER_LAYER_INPUT_SCALE = 2.0**-0.5
