"""Scalar formulas that definitions and kernels share, on TIR expressions."""

from __future__ import annotations

import math

import numpy as np
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


def exact_f32(value: float) -> Expr:
    """A float32 constant to its last bit: TVM writes 7 digits of a plain one into WGSL."""
    bits = int(np.float32(value).view(np.uint32))
    return tirx.reinterpret("float32", tirx.const(bits, "uint32"))


def cos_sin(value: Expr) -> tuple[Expr, Expr]:
    """Cosine and sine of a float32 within 3,000 turns, to two units in the last place of 1.

    A GPU's own are not bounded for angles beyond pi. The angle is reduced by pi / 2 in three parts,
    each exact in float32 times the number of quarters; polynomials of Cephes' sinf and cosf.
    """
    quarters = tirx.floor(value * exact_f32(2.0 / math.pi) + f32(0.5))
    rest = value - quarters * exact_f32(1.5703125)
    rest = rest - quarters * exact_f32(4.837512969970703125e-4)
    rest = rest - quarters * exact_f32(7.54978995489188216e-8)
    square = rest * rest
    sin = exact_f32(-1.9515295891e-4) * square + exact_f32(8.3321608736e-3)
    sin = (sin * square - exact_f32(1.6666654611e-1)) * square * rest + rest
    cos = exact_f32(2.443315711809948e-5) * square - exact_f32(1.388731625493765e-3)
    cos = (cos * square + exact_f32(4.166664568298827e-2)) * square * square
    cos = cos - f32(0.5) * square + f32(1.0)
    quarter = tirx.bitwise_and(quarters.astype("int32"), tirx.const(3, "int32"))
    is_odd = tirx.bitwise_and(quarter, tirx.const(1, "int32")) == 1
    first, second = tirx.Select(is_odd, sin, cos), tirx.Select(is_odd, cos, sin)
    minus_cos = tirx.any(quarter == 1, quarter == 2)
    return (
        tirx.Select(minus_cos, f32(0.0) - first, first),
        tirx.Select(quarter >= 2, f32(0.0) - second, second),
    )


def softcap(value: Expr, cap: float) -> Expr:
    """``cap * tanh(value / cap)``."""
    return f32(cap) * tanh(value / f32(cap))
