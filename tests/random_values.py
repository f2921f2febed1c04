"""Random values for the tensors of a Gemma 4 checkpoint, the same on every machine.

Nothing here is learned. The values follow the sizes that real checkpoints have, so that logits are
not flat and every part of the model changes them: matrices keep the size of their input, norm
weights scatter around 1, the query and key norms are small because attention scores are not divided
by anything.
"""

from __future__ import annotations

import zlib
from math import prod

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]


def bell_curve(name: str, seed: int, size: int) -> npt.NDArray[np.float64]:
    """`size` values of mean 0 and variance 1: sums of four 16-bit fields of PCG64's raw words.

    Unlike NumPy's distributions, its raw words are promised to stay the same, and sums of integers
    are exact, so a test's model is the same on every machine.
    """
    words = np.random.PCG64([seed, zlib.crc32(name.encode())]).random_raw(size)
    total = sum(
        ((words >> np.uint64(16 * i)) & np.uint64(0xFFFF)).astype(np.float64) for i in range(4)
    )
    return np.asarray((total - 2 * 0xFFFF) / (0x10000 / np.sqrt(3.0)))


def random_tensor(name: str, shape: tuple[int, ...], seed: int) -> Float32Array:
    """The values of one tensor, which depend on `name`, `shape` and `seed` alone."""
    values = bell_curve(name, seed, prod(shape)).reshape(shape)
    if name.endswith("layer_scalar"):
        values = 0.5 + 0.25 * np.abs(values)
    elif "q_norm" in name or "k_norm" in name:
        values = 0.5 + 0.1 * values
    elif "norm" in name or name.endswith(("router.scale", "per_expert_scale", "output_scale")):
        values = 1.0 + 0.2 * values
    elif name.endswith("modality_router.weight"):  # its input is divided by the width
        values = values * np.sqrt(shape[-1])
    elif name.endswith("_coefs.weight"):  # streams that take each other away would be mere noise
        values = 0.1 * values
    elif "embed_tokens" in name or "lm_head" in name:
        values = 0.5 * values
    else:
        values = values / np.sqrt(shape[-1])
    return values.astype(np.float32)
