"""Definitions on the CPU, with the tolerances of what is compared with them."""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from gemma4_compile.device_check.definitions import run
from gemma4_compile.targets import cpu

__all__ = ["CPU", "F32_ABSOLUTE", "F32_RELATIVE", "ROUNDED", "combined_heads", "run", "values"]

Array = npt.NDArray[Any]

CPU = cpu.DEFAULT

# One operator on inputs of order 1: sums of at most 256 float32 terms, whose roundings add up like
# a random walk (sqrt(256) * 2**-24 = 1e-6 of the largest partial sum), and a few roundings after.
F32_RELATIVE = 4e-6
F32_ABSOLUTE = 4e-6
# A result stored in float16 is rounded once more: half a unit in the last of 11 bits.


class Tolerance(TypedDict):
    """What `np.testing.assert_allclose` takes."""

    rtol: float
    atol: float


ROUNDED: dict[str, Tolerance] = {
    "float32": {"rtol": F32_RELATIVE, "atol": F32_ABSOLUTE},
    "float16": {"rtol": F32_RELATIVE + 2.0**-11, "atol": F32_ABSOLUTE},
}


def values(seed: int, *shape: int, deviation: float = 1.0) -> npt.NDArray[np.float32]:
    """Normally distributed float32 values."""
    return np.random.default_rng(seed).normal(0.0, deviation, shape).astype(np.float32)


def combined_heads(o_partial: Array, split_lse: Array) -> Array:
    """The splits of an attention put together: (heads, head_dim) float64."""
    highest, sums = (part[..., 0] for part in np.split(split_lse.astype(np.float64), 2, axis=-1))
    weights = np.exp(highest - highest.max(axis=0)) * sums
    merged: Array = np.einsum(
        "sh,shd->hd", weights / weights.sum(axis=0), o_partial.astype(np.float64)
    )
    return merged
