"""Scalar formulas that definitions and kernels share, on TIR expressions."""

from __future__ import annotations

import math

from tvm import tirx

from gemma4_compile.operators.types import Expr

_TANH_LIMIT = 15.0  # tanh is 1 in float32 from 9.1 on; some GPUs return NaN for large arguments


def f32(value: float) -> Expr:
    """A float32 constant."""
    return tirx.const(value, "float32")


def as_f32(value: Expr) -> Expr:
    """`value` as float32."""
    return value.astype("float32")


def tanh(value: Expr) -> Expr:
    """Hyperbolic tangent that saturates for any argument."""
    return tirx.tanh(tirx.max(tirx.min(value, f32(_TANH_LIMIT)), f32(-_TANH_LIMIT)))


def gelu_tanh(value: Expr) -> Expr:
    """`gelu_pytorch_tanh`: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    cube = value * value * value
    inner = f32(math.sqrt(2.0 / math.pi)) * (value + f32(0.044715) * cube)
    return f32(0.5) * value * (f32(1.0) + tanh(inner))


def softcap(value: Expr, cap: float) -> Expr:
    """``cap * tanh(value / cap)``."""
    return f32(cap) * tanh(value / f32(cap))
