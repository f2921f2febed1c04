"""A sequence at a far position without the forwards before it, for the time of a step there."""

from __future__ import annotations

import numpy as np

from gemma4_compile.runtime.device.device import copy, view
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.types import Array

BLOCK_BYTES = 1 << 22
TOKEN = 3  # at the position; any one will do


def fill_with_random_keys(engine: Engine) -> None:
    """Overwrite all keys and values of the engine's sequence with normal numbers, in blocks."""
    rng = np.random.default_rng(5)
    for tensor in engine.kv.tensors():
        rows, heads, dim = map(int, tensor.shape)
        dtype = np.dtype(str(tensor.dtype))
        row_bytes = heads * dim * dtype.itemsize
        count = min(rows, max(1, BLOCK_BYTES // row_bytes))
        values = rng.standard_normal((count, heads, dim), np.float32).astype(dtype)
        block = engine.device.place(values)
        for first in range(0, rows, count):
            shape = min(count, rows - first), heads, dim
            copy(view(block, shape), view(tensor, shape, first * row_bytes))
        engine.device.wait()


def place_at(engine: Engine, position: int) -> Array:
    """Let the engine's sequence hold `position` tokens, of which the last alone was forwarded.

    Returns that one's logits.
    Keys and values of the others are what the state holds there (`fill_with_random_keys`).
    """
    engine.clear()
    sequence, chunk = engine.sequence, min(engine.prefill_chunk, engine.context_length)
    while (left := position - 1 - sequence.length) > 0:
        sequence.begin(min(chunk, left))
        sequence.end()
    return engine.decode(TOKEN)
