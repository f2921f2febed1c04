"""Example inputs of operators, and how far two right kernels may differ.

For tests of kernels, and for the self-test on a user's device. What an operator needs besides
random numbers, and what its kernels round, it says itself: `Operator.example_input` and
`Operator.tolerance`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from operator import add, floordiv, mul

import numpy as np
from tvm import tirx

from gemma4_compile.operators.rows import Rows
from gemma4_compile.operators.types import Index
from gemma4_compile.types import Array

_ARITHMETIC = {tirx.Add: add, tirx.Mul: mul, tirx.FloorDiv: floordiv}  # of tensor dimensions

_TABLE = "table_rows_"
"""What the name of a number of rows begins with that is another one where a window is given."""

# Two orders of a float32 sum of up to 16384 terms differ like a random walk, relative to the sum's
# size; three times that, for the exponentials and square roots after it.
SUM_F32 = 3 * sqrt(16384) * 2.0**-24
# A score of q.k over 512 channels of deviation 1 reaches 100, and its rounding becomes the relative
# error of its exponential.
ATTENTION_F32 = 3 * 100 * sqrt(512) * 2.0**-24 / 8
HALF_ULP_F16 = 2.0**-11
# Operands that a kernel rounds to float16 move a sum by a random walk of up to half a unit a term,
# relative to the sum's size; a product of two such sums by twice that.
OPERANDS_F16 = 2 * HALF_ULP_F16
# Scores of float16 queries: those of 72 channels of deviations 0.5 and 1 are off by 1e-3, which
# becomes the relative error of a weight; weights are rounded themselves. Three times that.
ATTENTION_F16 = 3 * (0.5 * sqrt(72) * HALF_ULP_F16 / 2 + HALF_ULP_F16 / 2)
# A vector that a kernel makes for itself and rounds moves by a unit where two ways of summing fall
# on different sides: float16 by half a unit, int8 by a 127th of a group's largest (2.2 deviations)
# times a weight (2 deviations), where the largest result is about 3.5 sqrt(cols). Twice.
OWN_VECTOR_F16 = HALF_ULP_F16
OWN_VECTOR_INT8 = 2 * (2.2 * 2 / 127) / 3.5
MOVED_BYTES = 1e-3  # share of packed channels that two ways of summing put one unit apart
TEXTS = 3  # of a call of an encoder
SOUND_HOP = 160  # samples of a row of the frames of a sound, at least


def table_rows(whole: int) -> Index:
    """A number of rows: `whole`, or that of a window which is given in place of the table."""
    return tirx.Var(f"{_TABLE}{whole}", "int64")


def rows_of_table(dimension: Index) -> int | None:
    """The `whole` of `table_rows`; None for any other dimension."""
    if not isinstance(dimension, tirx.Var) or not dimension.name.startswith(_TABLE):
        return None
    # passes number the variables of a name that is taken
    return int(dimension.name.removeprefix(_TABLE).split("_")[0])


@dataclass(frozen=True)
class Sizes:
    """Sizes that operators leave open.

    Attributes
    ----------
    rows : positions of a prefill chunk
    before : positions before them
    capacity : rows of a full layer's keys and values; there is a slot for each of `rows`
    chunk : longest prefill chunk
    """

    rows: int
    before: int
    capacity: int
    chunk: int

    def of(self, dimension: Index) -> int:
        """A tensor's dimension with the symbolic sizes in it replaced."""
        if isinstance(dimension, tirx.Var):
            symbols = {"n": self.rows, "m": 1, "capacity": self.capacity, "chunk": self.chunk}
            symbols["slots"] = self.rows
            symbols["samples"] = self.rows * SOUND_HOP - 1  # the last frame is not full
            symbols["texts"] = min(self.rows, TEXTS)
            symbols["length"] = self.rows  # of padded texts
            symbols["count"] = max(1, symbols["texts"] - 1)  # of those that are read
            whole = rows_of_table(dimension)
            return symbols[dimension.name] if whole is None else whole
        for kind, combine in _ARITHMETIC.items():
            if isinstance(dimension, kind):
                return int(combine(self.of(dimension.a), self.of(dimension.b)))
        return int(dimension)


def random_values(name: str, shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    """Values of an argument that needs nothing else: weights by their names, normal numbers.

    Words of 4-bit weights have all 16 codes, and scales both signs, as stored groups may.
    """
    if dtype == "uint32":
        return rng.integers(0, 2**32, shape, dtype=np.uint32)
    if name.startswith("q_scale"):
        return (rng.uniform(0.001, 0.01, shape) * rng.choice([-1, 1], shape)).astype(dtype)
    if name.startswith("weight"):
        return rng.normal(0, 0.05, shape).astype(dtype)
    return rng.normal(0, 1, shape).astype(dtype)


def stored_bytes(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Words of 8-bit weights; 255 is never stored."""
    words = rng.integers(0, 2**32, shape, dtype=np.uint32)
    return np.minimum(words.view(np.uint8), 254).view(np.uint32)


def kv_positions(rows: Rows, sizes: Sizes) -> Array:
    """The positions that the KV state gives to a call."""
    count = rows.count(sizes.rows)
    return np.array([sizes.before, count, sizes.before + count, 0])


def kept_positions(rows: Rows, sizes: Sizes) -> Array:
    """The positions of a call whose first third of the rows are copies."""
    count = rows.count(sizes.rows)
    kept = count - count // 3
    return np.array([sizes.before, kept, sizes.before + kept, 0])


def call_positions(rows: Rows, part: int, sizes: Sizes, has_copies: bool = False) -> Array:
    """Positions of a call: in a part of the cache they are as far into it as else into the whole.

    `has_copies` : as of `kept_positions`
    """
    positions = kept_positions(rows, sizes) if has_copies else kv_positions(rows, sizes)
    positions[[0, 2]] += part * sizes.capacity
    return positions


def joint_positions(rows: Rows, shape: tuple[int, ...], sizes: Sizes) -> Array:
    """Position and slot of each row of several sequences; zeros after the last."""
    count, places = rows.count(sizes.rows), np.zeros(shape, np.int64)
    places[:count, 0] = np.linspace(sizes.before, 0, count)
    places[:count, 1] = np.arange(count)[::-1]
    return places


def shared_positions(rows: Rows, shape: tuple[int, ...], sizes: Sizes) -> Array:
    """As `joint_positions`, of sequences of which each but the last has two rows."""
    places = joint_positions(rows, shape, sizes)
    for second in range(1, rows.count(sizes.rows), 2):
        places[second] = places[second - 1] + [1, 0]
    return places


def rotary_table(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Cosines and sines."""
    angles = rng.uniform(-3, 3, shape[:-1])
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def example_lse(shape: tuple[int, ...], lowest: float, rng: np.random.Generator) -> Array:
    """Maxima and sums of splits, whose exponentials float32 does not hold; the last is empty."""
    highest = rng.uniform(-1, 1, shape[:2]) + np.resize([200.0, -200.0, 0.0], shape[1])
    split_lse = np.stack([highest, rng.uniform(1, 2, shape[:2])], axis=-1)
    if shape[0] > 1:
        split_lse[-1] = lowest, 0.0
    return split_lse


def example_carried(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Maxima and sums (..., heads, 2) of keys before others: near their scores, above, below."""
    highest = rng.uniform(-1, 1, shape[:-1]) + np.resize([0.0, 200.0, -200.0], shape[-2])
    return np.stack([highest, rng.uniform(1, 2, shape[:-1])], axis=-1)


def chosen_experts(experts: int, top_k: int, rows: int) -> Array:
    """Ids of the experts of each row."""
    rng = np.random.default_rng(experts)
    return np.stack([rng.permutation(experts)[:top_k] for _ in range(rows)])


def expert_order(experts: int, shape: tuple[int, ...]) -> Array:
    """Pairs in some order."""
    return np.random.default_rng(experts).permutation(shape[0])


def expert_tiles(experts: int, pairs: int, tile: int, shape: tuple[int, ...]) -> Array:
    """Tiles of as many runs as there are experts."""
    rng = np.random.default_rng(experts)
    runs = np.bincount(rng.integers(0, experts, pairs), minlength=experts)
    tiles, begin, used = np.zeros(shape, np.int32), 0, 0
    for expert, count in enumerate(runs):
        end = begin + int(count)
        for first in range(begin, end, tile):
            tiles[used] = expert, first, min(first + tile, end)
            used += 1
        begin = end
    return tiles


def own_vector_error(in_dtype: str, cols: int, int8: bool) -> float:
    """Return what a kernel that makes and rounds its own vector adds to the error of its sums."""
    if int8:
        return OWN_VECTOR_INT8 / sqrt(cols)
    return OWN_VECTOR_F16 if in_dtype == "float16" else 0.0
