"""Norms and combines that make a few rows for int8 matmuls, and round them themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx

from gemma4_compile.operators.activation_quantization import pack
from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.base import Operator, symbolic_rows, te_prim_func
from gemma4_compile.operators.examples import Sizes, example_lse
from gemma4_compile.operators.few_rows import FewRows
from gemma4_compile.operators.norms import inverse_rms, residual_sum
from gemma4_compile.operators.types import Expr
from gemma4_compile.types import Array


class PackedRows(FewRows):
    """Operators of a few rows whose results are packed, which may be a unit off."""

    @property
    def packs(self) -> bool:
        return True


@dataclass(frozen=True)
class QuantizedFewRowNorm(PackedRows, Operator):
    """`ResidualNorm` of at most `most_rows` rows, its last result packed.

    Arguments: y, r (rows, width) f32; w_branch (width,) f32; scalar (1,) f32 if `scaled`; w_next
    (width,) f32 if `normed`. Results: r' (rows, width) f32; words, scales of its norm or, without
    `normed`, of itself; words in tiles with `tiled`.
    """

    kind: ClassVar[str] = "quantized_few_row_norm"
    width: int
    eps: float
    scaled: bool
    interleaved: bool
    most_rows: int = 1
    normed: bool = True
    tiled: bool = False

    def definition(self) -> tirx.PrimFunc:
        rows, width = symbolic_rows(None), self.width
        y = te.placeholder((rows, width), "float32", name="y")
        residual = te.placeholder((rows, width), "float32", name="residual")
        w_branch = te.placeholder((width,), "float32", name="w_branch")
        scalar = te.placeholder((1,), "float32", name="scalar") if self.scaled else None
        w_next = te.placeholder((width,), "float32", name="w_next")
        out = residual_sum(y, residual, lambda j: w_branch[j], scalar, self.eps)
        args = [y, residual, w_branch, *([] if scalar is None else [scalar])]
        if not self.normed:
            return te_prim_func([*args, out, *pack(out, self.interleaved, self.tiled)])
        inverse = inverse_rms(out, rows, width, self.eps, "out")

        def normed(i: Expr, j: Expr) -> Expr:
            return out[i, j] * inverse[i] * w_next[j]

        hidden = te.compute((rows, width), normed, name="hidden")
        return te_prim_func([*args, w_next, out, *pack(hidden, self.interleaved, self.tiled)])


@dataclass(frozen=True)
class QuantizedFewRowCombine(PackedRows, Operator):
    """`CombineFewRows`, its result packed.

    Arguments: o_partial (rows, splits, heads, head_dim) in_dtype; split_lse (rows, splits, heads,
    2) f32. Results: words (in tiles with `tiled`) and scales of rows of heads * head_dim channels.
    """

    kind: ClassVar[str] = "quantized_few_row_combine"
    heads: int
    head_dim: int
    splits: int
    in_dtype: str
    interleaved: bool
    most_rows: int = 1
    tiled: bool = False

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name != "split_lse":
            return None
        return np.stack([example_lse(shape[1:], LOWEST, rng) for _ in range(shape[0])])

    def definition(self) -> tirx.PrimFunc:
        rows, splits, heads, dim = symbolic_rows(None), self.splits, self.heads, self.head_dim
        o_partial = te.placeholder((rows, splits, heads, dim), self.in_dtype, name="o_partial")
        split_lse = te.placeholder((rows, splits, heads, 2), "float32", name="split_lse")
        m, s, v = (te.reduce_axis((0, splits), name=name) for name in "msv")
        highest = te.compute(
            (rows, heads), lambda i, h: te.max(split_lse[i, m, h, 0], axis=m), name="highest"
        )
        weights = te.compute(
            (rows, splits, heads),
            lambda i, n, h: tirx.exp(split_lse[i, n, h, 0] - highest[i, h]) * split_lse[i, n, h, 1],
            name="weights",
        )
        total = te.compute(
            (rows, heads), lambda i, h: te.sum(weights[i, s, h], axis=s), name="total"
        )
        merged = te.compute(
            (rows, heads, dim),
            lambda i, h, d: te.sum(
                weights[i, v, h] * o_partial[i, v, h, d].astype("float32"), axis=v
            ),
            name="merged",
        )
        x = te.compute(
            (rows, heads * dim),
            lambda i, j: merged[i, j // dim, j % dim] / total[i, j // dim],
            name="x",
        )
        return te_prim_func([o_partial, split_lse, *pack(x, self.interleaved, self.tiled)])
