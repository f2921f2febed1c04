"""The sum of products that an attention's scores are, as definitions have it."""

from __future__ import annotations

from collections.abc import Callable

from tvm.tirx.script import builder as T

from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import LocalVar
from gemma4_compile.operators.types import Expr

Channels = Callable[[Expr], Expr]
"""A vector: its value at a channel, float32."""
Dot = Callable[[int, Channels, Channels], Expr]
"""Writes the loops that add up so many products of two vectors, and returns the sum."""


def plain_dot(count: int, left: Channels, right: Channels) -> Expr:
    """One after the other."""
    total = LocalVar("float32", f32(0.0))
    with T.serial(0, count) as d:
        total.add(left(d) * right(d))
    return total.value
