"""The gate of an MLP of which only the largest values stay, by the quantile of a Gaussian."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

from tvm import te, tirx

from gemma4_compile.operators.base import Operator, te_prim_func
from gemma4_compile.operators.math import f32, gelu_tanh
from gemma4_compile.operators.rows import Rows
from gemma4_compile.operators.types import Expr


def deviations(share: float) -> float:
    """How many standard deviations above the mean a normal value is larger than `share` of all."""
    return NormalDist().inv_cdf(share)


@dataclass(frozen=True)
class SparseGate(Operator):
    """``gelu(max(gate - cut, 0)) * up`` with ``cut = mean(gate) + deviations * std(gate)``.

    x (rows, 2 * width) f32, gate and up by turns -> (rows, width) f32. Mean and deviation are those
    of all gates of a row.

    References
    ----------
    transformers 5.24.0, models/gemma3n/modeling_gemma3n.py, `Gemma3nTextMLP._gaussian_topk`.
    """

    kind: ClassVar[str] = "sparse_gate"
    rows: Rows
    width: int
    deviations: float

    def definition(self) -> tirx.PrimFunc:
        rows, width = self.rows.extent(), self.width
        x = te.placeholder((rows, 2 * width), "float32", name="x")
        k = te.reduce_axis((0, width), name="k")
        total = te.compute((rows,), lambda i: te.sum(x[i, 2 * k], axis=k), name="total")
        mean = te.compute((rows,), lambda i: total[i] / f32(width), name="mean")
        m = te.reduce_axis((0, width), name="m")

        def square(i: Expr) -> Expr:
            difference = x[i, 2 * m] - mean[i]
            return te.sum(difference * difference, axis=m)

        squares = te.compute((rows,), square, name="squares")
        cut = te.compute(
            (rows,),
            lambda i: mean[i] + tirx.sqrt(squares[i] / f32(width)) * f32(self.deviations),
            name="cut",
        )
        y = te.compute(
            (rows, width),
            lambda i, j: gelu_tanh(tirx.max(x[i, 2 * j] - cut[i], f32(0.0))) * x[i, 2 * j + 1],
            name="y",
        )
        return te_prim_func([x, y])
