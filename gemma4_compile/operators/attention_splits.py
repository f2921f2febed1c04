"""Flash decoding: the attention of one position in splits of its keys, and their combination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.examples import Sizes, example_lse
from gemma4_compile.operators.heads import Splits
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.rows import ONE, One, Rows
from gemma4_compile.operators.spreads import LSE, Spread
from gemma4_compile.operators.tir import FunctionBuilder, LocalVar, bind, function, store
from gemma4_compile.operators.types import Buffer, Index
from gemma4_compile.types import Array

LOWEST = -3.0e38  # below every score; -inf would turn inf - inf into NaN


def declare_splits(build: FunctionBuilder, operator: Splits, dtype: str) -> tuple[Buffer, Buffer]:
    """The splits of one position, as flash decoding has them.

    `o_partial` (splits, heads, head_dim) dtype: the attention over a split's own keys. `split_lse`
    (splits, heads, 2) float32: the log of its sum of exponentials as two numbers, the highest score
    and the sum relative to it.
    """
    splits, heads, dim = operator.splits, operator.heads, operator.head_dim
    o_partial = build.arg("o_partial", (splits, heads, dim), dtype)
    return o_partial, build.arg("split_lse", (splits, heads, 2), "float32")


def splits_placeholders(operator: Splits, dtype: str) -> tuple[te.Tensor, te.Tensor]:
    """`declare_splits` in TE."""
    splits, heads, dim = operator.splits, operator.heads, operator.head_dim
    o_partial = te.placeholder((splits, heads, dim), dtype, name="o_partial")
    return o_partial, te.placeholder((splits, heads, 2), "float32", name="split_lse")


def declare_row_splits(
    build: FunctionBuilder, operator: Splits, rows: Index, dtype: str
) -> tuple[Buffer, Buffer]:
    """`declare_splits` for rows: o_partial (rows, splits, heads, head_dim), split_lse (..., 2)."""
    splits, heads, dim = operator.splits, operator.heads, operator.head_dim
    o_partial = build.arg("o_partial", (rows, splits, heads, dim), dtype)
    return o_partial, build.arg("split_lse", (rows, splits, heads, 2), "float32")


def example_splits(
    rows: Rows, name: str, shape: tuple[int, ...], rng: np.random.Generator
) -> Array | None:
    """Sums of the splits of one position, or of each row."""
    if name != "split_lse":
        return None
    if isinstance(rows, One):
        return example_lse(shape, LOWEST, rng)
    return np.stack([example_lse(shape[1:], LOWEST, rng) for _ in range(shape[0])])


@dataclass(frozen=True)
class CombineSplits(Operator):
    """Put the splits of one position together: the second half of a decode step.

    Arguments: o_partial (splits, heads, head_dim) out_dtype; split_lse (splits, heads, 2) f32.
    Result: (1, heads * head_dim) out_dtype. Of a few rows all three have these before their other
    axes.
    """

    kind: ClassVar[str] = "combine_splits"
    heads: int
    head_dim: int
    splits: int
    out_dtype: str
    rows: Rows = ONE

    @property
    def name(self) -> str:
        return self.kind if isinstance(self.rows, One) else "combine_few_rows"

    @property
    def variant(self) -> str:
        return self.name

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        return example_splits(self.rows, name, shape, rng)

    def known_spreads(self, name: str, dtype: str) -> tuple[Spread, ...]:
        return LSE if name == "split_lse" else super().known_spreads(name, dtype)

    def definition(self) -> tirx.PrimFunc:
        if not isinstance(self.rows, One):
            return self._of_rows()
        dim = self.head_dim
        with function(scheduled=False) as build:
            o_partial, split_lse = declare_splits(build, self, self.out_dtype)
            out = build.arg("out", (1, self.heads * dim), self.out_dtype)
            with T.serial(0, self.heads) as h, T.serial(0, dim) as d:
                highest = LocalVar("float32", f32(LOWEST))
                with T.serial(0, self.splits) as s:
                    highest.set(tirx.max(highest.value, split_lse[s, h, 0]))
                total, weights = LocalVar("float32", f32(0.0)), LocalVar("float32", f32(0.0))
                with T.serial(0, self.splits) as s:
                    weight = bind(tirx.exp(split_lse[s, h, 0] - highest.value) * split_lse[s, h, 1])
                    total.add(weight * as_f32(o_partial[s, h, d]))
                    weights.add(weight)
                store(out, (total.value / weights.value).astype(self.out_dtype), 0, h * dim + d)
        return build.result

    def _of_rows(self) -> tirx.PrimFunc:
        rows, dim = self.rows.extent(), self.head_dim
        with function(scheduled=False) as build:
            o_partial, split_lse = declare_row_splits(build, self, rows, self.out_dtype)
            out = build.arg("out", (rows, self.heads * dim), self.out_dtype)
            with T.serial(0, rows) as i, T.serial(0, self.heads) as h, T.serial(0, dim) as d:
                highest = LocalVar("float32", f32(LOWEST))
                with T.serial(0, self.splits) as s:
                    highest.set(tirx.max(highest.value, split_lse[i, s, h, 0]))
                total, weights = LocalVar("float32", f32(0.0)), LocalVar("float32", f32(0.0))
                with T.serial(0, self.splits) as s:
                    share = tirx.exp(split_lse[i, s, h, 0] - highest.value)
                    weight = bind(share * split_lse[i, s, h, 1])
                    total.add(weight * as_f32(o_partial[i, s, h, d]))
                    weights.add(weight)
                store(out, (total.value / weights.value).astype(self.out_dtype), i, h * dim + d)
        return build.result


def combined_splits(o_partial: te.Tensor, split_lse: te.Tensor) -> te.Tensor:
    """`CombineSplits` in TE: (splits, heads, head_dim), (splits, heads, 2) -> (1, width) f32."""
    splits, heads, dim = (int(size) for size in o_partial.shape)
    m, s, v = (te.reduce_axis((0, splits), name=name) for name in "msv")
    highest = te.compute((heads,), lambda h: te.max(split_lse[m, h, 0], axis=m), name="highest")
    weights = te.compute(
        (splits, heads),
        lambda i, h: tirx.exp(split_lse[i, h, 0] - highest[h]) * split_lse[i, h, 1],
        name="weights",
    )
    total = te.compute((heads,), lambda h: te.sum(weights[s, h], axis=s), name="total")
    merged = te.compute(
        (heads, dim),
        lambda h, d: te.sum(weights[v, h] * o_partial[v, h, d].astype("float32"), axis=v),
        name="merged",
    )
    return te.compute(
        (1, heads * dim), lambda i, j: merged[j // dim, j % dim] / total[j // dim], name="x"
    )
