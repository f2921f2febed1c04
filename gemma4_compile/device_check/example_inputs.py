"""Random arguments for any operator, and how far a kernel's results may be off.

For tests of kernels here, and for the self-test that a user runs on a device of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from operator import add, floordiv, mul
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import tirx
from tvm.tirx.buffer import is_buffer_var

from gemma4_compile.device_check.definitions import run
from gemma4_compile.operators.activation_quantization import LEVELS
from gemma4_compile.operators.attention import LOWEST
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.int8_linear import PACKED
from gemma4_compile.operators.sampling import SampleTopP

Array = npt.NDArray[Any]

_ARITHMETIC = {tirx.Add: add, tirx.Mul: mul, tirx.FloorDiv: floordiv}  # of tensor dimensions


@dataclass(frozen=True)
class Sizes:
    """What an operator leaves open.

    Attributes
    ----------
    rows : positions of a prefill chunk
    before : positions before them
    capacity : rows of a full layer's keys and values
    chunk : longest prefill chunk
    """

    rows: int
    before: int
    capacity: int
    chunk: int

    def of(self, dimension: Any) -> int:
        """A tensor's dimension with the symbolic sizes in it replaced."""
        if isinstance(dimension, tirx.Var):
            symbols = {"n": self.rows, "m": 1, "capacity": self.capacity, "chunk": self.chunk}
            return symbols[dimension.name]
        for kind, combine in _ARITHMETIC.items():
            if isinstance(dimension, kind):
                return int(combine(self.of(dimension.a), self.of(dimension.b)))
        return int(dimension)


def random_arguments(
    operator: Operator, rng: np.random.Generator, sizes: Sizes
) -> tuple[Array | int, ...]:
    """Inputs, in-place arguments and outputs of an operator's definition, in its order."""
    args: list[Array | int] = []
    for param in operator.prim_func().params:
        if not is_buffer_var(param):
            args.append(3)  # the layer whose per-layer inputs are read
            continue
        shape = tuple(sizes.of(dimension) for dimension in param.shape)
        args.append(_values(operator, param.name, shape, str(param.dtype), rng, sizes))
    if isinstance(operator, SampleTopP):
        run(operator.survey, *args[:5])
    return tuple(args)


def _values(
    operator: Operator,
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    rng: np.random.Generator,
    sizes: Sizes,
) -> Array:
    special = _special(operator, name, shape, rng, sizes)
    if special is not None:
        return special.astype(dtype)
    if dtype == "uint32":
        words = rng.integers(0, 2**32, shape, dtype=np.uint32)
        if name.startswith("q_weight") and vars(operator)["bits"] == 8:
            words = np.minimum(words.view(np.uint8), 254).view(np.uint32)  # 255 is never stored
        return words
    if name.startswith("q_scale"):
        return rng.uniform(0.001, 0.01, shape).astype(dtype)
    if name.startswith("weight"):
        return rng.normal(0, 0.05, shape).astype(dtype)
    return rng.normal(0, 1, shape).astype(dtype)


def _of_experts(
    fields: Mapping[str, Any], name: str, shape: tuple[int, ...], positions: int
) -> Array:
    """Chosen experts, or rows grouped by expert; equal for `order` and `tiles` of one operator."""
    experts, top_k = fields["experts"], fields["top_k"]
    rng = np.random.default_rng(experts)
    if name == "ids":
        return np.stack([rng.permutation(experts)[:top_k] for _ in range(shape[0])])
    if name == "order":
        return rng.permutation(shape[0])
    gate_up = fields.get("epilogue", "gelu_pairs") == "gelu_pairs"
    pairs, tile = positions * top_k if gate_up else positions, fields["tile"]
    runs = np.bincount(rng.integers(0, experts, pairs), minlength=experts)
    tiles, begin = np.zeros(shape, np.int32), 0
    used = 0
    for expert, count in enumerate(runs):
        end = begin + int(count)
        for first in range(begin, end, tile):
            tiles[used] = expert, first, min(first + tile, end)
            used += 1
        begin = end
    return tiles


def _special(
    operator: Operator,
    name: str,
    shape: tuple[int, ...],
    rng: np.random.Generator,
    sizes: Sizes,
) -> Array | None:
    fields: Mapping[str, Any] = vars(operator)
    vocab = fields.get("vocab", 1)
    rows = fields.get("rows") or sizes.rows
    if name == "positions":
        return np.array([sizes.before, rows, sizes.before + rows, 0])
    if name == "rotary":
        angles = rng.uniform(-3, 3, shape[:-1])
        return np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    if name in ("ids", "order", "tiles") and "top_k" in fields:
        return _of_experts(fields, name, shape, sizes.rows)
    if name == "ids":
        table = fields["row_begin"] + sum(fields["part_rows"])
        return rng.integers(0, table + 64, shape)  # some lie outside of these parts
    if name == "probs":
        weights = np.exp(rng.normal(0, 3, shape))
        return weights / weights.sum()
    if name == "logits":
        return rng.normal(0, 6, shape)
    if name in ("seq", "seq_ids", "pos2seq"):
        return np.zeros(shape)
    if name == "token":
        return rng.permutation(vocab)[: int(np.prod(shape))].reshape(shape)
    if name == "count":
        return rng.integers(1, 5, shape)
    if name == "penalties":
        return np.array([[0.5, 0.25, 1.25]])
    if name in ("mask", "bitmask"):
        return rng.integers(-(2**31), 2**31, shape)
    if name in ("temperature", "uniform", "top_p"):
        return np.array([{"temperature": 0.8, "uniform": 0.37, "top_p": 0.95}[name]])
    if name == "partials":  # (maximum, sum of weights)
        return np.stack([rng.uniform(30, 31, shape[:-1]), rng.uniform(1, 2, shape[:-1])], axis=-1)
    if name == "stats":  # the same of (split, head); float32 has no exp of most
        highest = rng.uniform(-1, 1, shape[:2]) + np.resize([200.0, -200.0, 0.0], shape[1])
        stats = np.stack([highest, rng.uniform(1, 2, shape[:2])], axis=-1)
        if shape[0] > 1:
            stats[-1] = LOWEST, 0.0  # an empty split
        return stats
    return None


# Two orders of a float32 sum of up to 16384 terms differ like a random walk, relative to the sum's
# size; three times that, for the exponentials and square roots behind it.
_SUM_F32 = 3 * sqrt(16384) * 2.0**-24
# A score of q.k over 512 channels of deviation 1 reaches 100, and its rounding becomes the relative
# error of its exponential.
_ATTENTION_F32 = 3 * 100 * sqrt(512) * 2.0**-24 / 8
_HALF_ULP_F16 = 2.0**-11
# A vector that a kernel makes for itself and rounds moves by a unit where two ways of summing fall
# on different sides: float16 by that, int8 by a 127th of a group's largest (2.2 deviations) times a
# weight (2 deviations), where the largest result is about 3.5 sqrt(cols). Twice.
_OWN_VECTOR_F16 = 2.0**-11
_BESIDE_VECTOR = ("out", "routed")  # the new residual and the router's, made in float32
MOVED = 2 * (2.2 * 2 / 127) / 3.5
_NO_TOKEN = -1e29  # logits below are those of suppressed tokens


MOVED_BYTES = 1e-3  # share of packed channels that two ways of summing put one unit apart


def moved_share(operator: Operator) -> float:
    """The share of an operator's packed result that may be one unit off.

    A kernel that rounds its own vector moves every sum by up to MOVED / sqrt(cols) of the largest,
    and then rounds what it made of the sums. A packed channel counts LEVELS units up to its group's
    largest, and where it stands between two edges is as good as random: it moves as often as its
    change is large in units. Left out, as it nearly cancels: the largest of a group is
    below that of all, its scale moves along, and a product has two factors; but weights have 0.87
    deviations on average, not 2, and half of the gates are closed. One byte of x moves about a
    quarter of this share, as a test measures.
    """
    cols = getattr(operator, "cols", None)
    if cols is None or getattr(operator, "in_dtype", PACKED) == PACKED:
        return MOVED_BYTES
    return MOVED_BYTES + LEVELS * MOVED / sqrt(cols)


def is_packed(operator: Operator, values: Array) -> bool:
    """Whether a result is words of int8 values, which `moved_share` is for."""
    return operator.kind.startswith(("int8", "quantize")) and values.dtype == np.uint32


def error_bounds(operator: Operator, expected: Array, name: str) -> tuple[float, float]:
    """How far two right kernels may differ: by the first and, of each value, the second share.

    `name` is that of the argument which holds the result.
    """
    if not np.issubdtype(expected.dtype, np.floating):
        return 0.0, 0.0
    fields: Mapping[str, Any] = vars(operator)
    values = expected.astype(np.float64)
    relative = _ATTENTION_F32 if "attention" in operator.kind else _SUM_F32
    if name not in _BESIDE_VECTOR:
        own_vector = operator.kind in ("normed_linear", "routed_linear", "combined_linear")
        if own_vector and fields["in_dtype"] == "float16":
            relative += _OWN_VECTOR_F16
        if operator.kind.startswith("int8") and fields.get("in_dtype", PACKED) != PACKED:
            relative += MOVED / sqrt(fields.get("cols", 1))
    last_bit = 2 * _HALF_ULP_F16 if expected.dtype == np.float16 else 0.0
    shown = np.abs(values)[values > _NO_TOKEN]
    return relative * float(shown.max(initial=0.0)), last_bit


def allowed_error(operator: Operator, expected: Array, name: str) -> Array:
    """The largest error of each element of a result, by `error_bounds`."""
    absolute, share = error_bounds(operator, expected, name)
    allowed: Array = absolute + share * np.abs(expected.astype(np.float64))
    return allowed
