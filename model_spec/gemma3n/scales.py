"""The model's constant scales, rounded to the checkpoint's dtype as transformers does.

Those of the embeddings are Gemma 4's; the two of the per-layer inputs are buffers here, which
transformers holds in the dtype that it loads in.
"""

from __future__ import annotations

import math

from gemma4_compile.model_spec.config.text import TextConfig
from gemma4_compile.model_spec.text.scales import round_to_dtype


def per_layer_projection_scale(config: TextConfig) -> float:
    """Factor of the per-layer embedding's context half."""
    return round_to_dtype(config.hidden_size**-0.5, config.dtype)


def per_layer_input_scale(config: TextConfig) -> float:
    """Factor of the sum of both halves."""
    return round_to_dtype(1.0 / math.sqrt(2.0), config.dtype)
