"""Functions for the tests of schedule rules: of operators, and one that no operator made."""

from __future__ import annotations

from tvm import te, tirx

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.norms import RmsNorm, TakeLastRow
from gemma4_compile.operators.rows import CHUNK, ONE

OPERATORS: list[Operator] = [
    RmsNorm(CHUNK, 64, 1e-6, "float16"),
    TakeLastRow(64, "float32"),
    Linear(ONE, WeightLayout(4, "float16", 32, 64, (64, 32)), "float16"),
    Linear(CHUNK, WeightLayout(8, "float32", 32, 64, (64,)), "float32", "gelu_gate", ple_width=256),
]


def elementwise() -> tirx.PrimFunc:
    """A function that carries no operator's description."""
    x = te.placeholder((128,), "float32", name="x")
    y = te.compute((128,), lambda i: x[i] + tirx.const(1.0, "float32"), name="y")
    return te.create_prim_func([x, y]).without_attr("global_symbol")
