"""Example arguments of an operator as its kernel takes them, and how far results may differ."""

from __future__ import annotations

import numpy as np

from gemma4_compile.device_check.definitions import run
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.examples import HALF_ULP_F16, Sizes
from gemma4_compile.types import Array

_NO_TOKEN = -1e29  # logits below are those of suppressed tokens
_MASSES = np.int64  # integers that stand for sums of floats (operators/draws.py)


def example_arguments(
    operator: Operator, rng: np.random.Generator, sizes: Sizes
) -> tuple[Array | int, ...]:
    """Inputs, in-place arguments and outputs of the definition, in its order."""
    args = operator.example_inputs(rng, sizes)
    if operator.maker is not None:
        run(operator.maker, *args[: len(operator.maker.prim_func().params)])
    return args


def is_packed(operator: Operator, values: Array) -> bool:
    """Return whether a result is words of int8 values, which `Operator.moved_share` is for."""
    return operator.packs and values.dtype == np.uint32


def error_bounds(operator: Operator, expected: Array, name: str) -> tuple[float, float]:
    """Tolerance between two right kernels: by the first and, of each value, the second share.

    `name` is that of the argument which holds the result.
    """
    share = operator.tolerance(name)
    is_exact = not np.issubdtype(expected.dtype, np.floating) and expected.dtype != _MASSES
    if share == 0 or is_exact:
        return 0.0, 0.0
    values = expected.astype(np.float64)
    last_bit = 2 * HALF_ULP_F16 if expected.dtype == np.float16 else 0.0
    shown = np.abs(values)[values > _NO_TOKEN]
    return share * float(shown.max(initial=0.0)), last_bit


def allowed_error(operator: Operator, expected: Array, name: str) -> Array:
    """The largest error of each element of a result, by `error_bounds`."""
    absolute, share = error_bounds(operator, expected, name)
    allowed: Array = absolute + share * np.abs(expected.astype(np.float64))
    return allowed
