"""Weights that were cast to floats of 8 bits as they are, without scales and without a config.

transformers widens them again as it loads them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gemma4_compile.checkpoint.kinds import quantised_by
from gemma4_compile.checkpoint.quantised.modules import Weights
from gemma4_compile.checkpoint.quantised.packed import E4M3, bytes_as
from gemma4_compile.checkpoint.safetensors_file import TensorInfo

METHOD = "a cast"
# The upper byte of a float16.
_E5M2 = tuple((np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(float).tolist())
_NUMBERS = {"F8_E4M3": E4M3, "F8_E5M2": _E5M2}


def read_weights(tensors: Mapping[str, TensorInfo]) -> Weights | None:
    """The weights of a checkpoint that were cast; None if none was, or some have scales."""
    cast = {name: one for name, one in tensors.items() if one.dtype in _NUMBERS}
    if not cast or any(quantised_by(name) is not None for name in tensors):
        return None
    found = {name: bytes_as(one, _NUMBERS[one.dtype]) for name, one in cast.items()}
    return Weights({**tensors, **found}, "8-bit floats")
