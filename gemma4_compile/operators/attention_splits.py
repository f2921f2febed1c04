"""Flash decoding: the attention of one position in splits of its keys, and their combination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import pack
from gemma4_compile.operators.activations import (
    FLOAT32,
    INTERLEAVED,
    Output,
    PackedOutput,
    SteppedOutput,
)
from gemma4_compile.operators.base import Operator, TensorSpec, te_prim_func
from gemma4_compile.operators.examples import Sizes, example_lse
from gemma4_compile.operators.heads import Splits
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.rows import ONE, One, Rows
from gemma4_compile.operators.spreads import LSE, Spread
from gemma4_compile.operators.static_rounding import EXAMPLE_STEP, READER_STEPS, step_words
from gemma4_compile.operators.tir import FunctionBuilder, LocalVar, bind, function, store
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.types import Array

LOWEST = -3.0e38  # below every score; -inf would turn inf - inf into NaN


def splits_specs(operator: Splits, dtype: str, lead: tuple[Index, ...] = ()) -> list[TensorSpec]:
    """Shapes and dtypes of the splits of one position, as flash decoding has them.

    `o_partial` (splits, heads, head_dim) dtype: the attention over a split's own keys. `split_lse`
    (splits, heads, 2) float32: the log of its sum of exponentials as two numbers, the highest score
    and the sum relative to it. `lead`: axes in front of them, as a few rows have (`Rows.lead`).
    """
    splits, heads, dim = operator.splits, operator.heads, operator.head_dim
    return [((*lead, splits, heads, dim), dtype), ((*lead, splits, heads, 2), "float32")]


def declare_splits(
    build: FunctionBuilder, operator: Splits, dtype: str, lead: tuple[Index, ...] = ()
) -> tuple[Buffer, Buffer]:
    """The arguments of `splits_specs`."""
    o_partial, split_lse = splits_specs(operator, dtype, lead)
    return build.arg("o_partial", *o_partial), build.arg("split_lse", *split_lse)


def splits_placeholders(
    operator: Splits, dtype: str, lead: tuple[Index, ...] = ()
) -> tuple[te.Tensor, te.Tensor]:
    """`declare_splits` in TE."""
    o_partial, split_lse = splits_specs(operator, dtype, lead)
    return (
        te.placeholder(*o_partial, name="o_partial"),
        te.placeholder(*split_lse, name="split_lse"),
    )


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

    Arguments: o_partial (splits, heads, head_dim) out_dtype; split_lse (splits, heads, 2) f32. Of a
    few rows both have those in front of their other axes. Result: (rows, heads * head_dim)
    out_dtype, or words and scales of it; or, with the steps of the matmul that reads it as a last
    argument, words by the first of them, which is no 0. One split is the result as it is, to the
    last bit.
    """

    kind: ClassVar[str] = "combine_splits"
    heads: int
    head_dim: int
    splits: int
    out_dtype: str
    rows: Rows = ONE
    output: Output = FLOAT32

    @property
    def name(self) -> str:
        if isinstance(self.output, SteppedOutput):
            return "stepped_combine"
        if self.packs:
            return f"quantized_{self.rows.prefix}combine"
        return self.kind if isinstance(self.rows, One) else "combine_few_rows"

    @property
    def variant(self) -> str:
        return self.name

    @property
    def packs(self) -> bool:
        return isinstance(self.output, PackedOutput | SteppedOutput)

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name == READER_STEPS:
            return np.full(shape, EXAMPLE_STEP)
        return example_splits(self.rows, name, shape, rng)

    def known_spreads(self, name: str, dtype: str) -> tuple[Spread, ...]:
        if name == READER_STEPS:
            return (Spread(0, 1, EXAMPLE_STEP),)
        is_usual = self.packs and not isinstance(self.rows, One)
        is_lse = name == "split_lse" and not is_usual
        return LSE if is_lse else super().known_spreads(name, dtype)

    def definition(self) -> tirx.PrimFunc:
        rows, dim = self.rows.extent(), self.head_dim
        lead = self.rows.lead(rows)
        match self.output:
            case PackedOutput(interleaved=interleaved, tiled=tiled):
                splits = splits_placeholders(self, self.out_dtype, lead)
                x = combined_splits(*splits, self.rows)
                return te_prim_func([*splits, *pack(x, interleaved, tiled)])
            case SteppedOutput(reader_steps=count, result=order):
                splits = splits_placeholders(self, self.out_dtype, lead)
                steps = te.placeholder((count,), "float32", name=READER_STEPS)
                x = combined_splits(*splits, self.rows)
                return te_prim_func([*splits, steps, step_words(x, steps[0], order == INTERLEAVED)])
        with function(scheduled=False) as build:
            o_partial, split_lse = declare_splits(build, self, self.out_dtype, lead)
            out = build.arg("out", (rows, self.heads * dim), self.out_dtype)
            with T.serial(0, rows) as i, T.serial(0, self.heads) as h, T.serial(0, dim) as d:
                value = self._combined(o_partial, split_lse, self.rows.lead(i), h, d)
                store(out, value.astype(self.out_dtype), i, h * dim + d)
        return build.result

    def _combined(
        self, o_partial: Buffer, split_lse: Buffer, row: tuple[Index, ...], h: Expr, d: Expr
    ) -> Expr:
        if self.splits == 1:
            return o_partial[(*row, 0, h, d)]
        highest = LocalVar("float32", f32(LOWEST))
        with T.serial(0, self.splits) as s:
            highest.set(tirx.max(highest.value, split_lse[(*row, s, h, 0)]))
        total, weights = LocalVar("float32", f32(0.0)), LocalVar("float32", f32(0.0))
        with T.serial(0, self.splits) as s:
            share = tirx.exp(split_lse[(*row, s, h, 0)] - highest.value)
            weight = bind(share * split_lse[(*row, s, h, 1)])
            total.add(weight * as_f32(o_partial[(*row, s, h, d)]))
            weights.add(weight)
        return total.value / weights.value


def combined_splits(o_partial: te.Tensor, split_lse: te.Tensor, rows: Rows = ONE) -> te.Tensor:
    """`CombineSplits` in TE: (..., splits, heads, head_dim), (..., 2) -> (rows, width) f32."""
    splits, heads, dim = (int(size) for size in o_partial.shape[-3:])
    n: Index = 1 if isinstance(rows, One) else o_partial.shape[0]
    if splits == 1:
        return te.compute(
            (n, heads * dim),
            lambda i, j: o_partial[(*rows.lead(i), 0, j // dim, j % dim)].astype("float32"),
            name="x",
        )
    m, s, v = (te.reduce_axis((0, splits), name=name) for name in "msv")

    def lse(i: Expr, split: Expr, h: Expr, part: int) -> Expr:
        return split_lse[(*rows.lead(i), split, h, part)]

    def partial(i: Expr, split: Expr, h: Expr, d: Expr) -> Expr:
        return o_partial[(*rows.lead(i), split, h, d)].astype("float32")

    highest = te.compute((n, heads), lambda i, h: te.max(lse(i, m, h, 0), axis=m), name="highest")
    weights = te.compute(
        (n, splits, heads),
        lambda i, k, h: tirx.exp(lse(i, k, h, 0) - highest[i, h]) * lse(i, k, h, 1),
        name="weights",
    )
    total = te.compute((n, heads), lambda i, h: te.sum(weights[i, s, h], axis=s), name="total")
    merged = te.compute(
        (n, heads, dim),
        lambda i, h, d: te.sum(weights[i, v, h] * partial(i, v, h, d), axis=v),
        name="merged",
    )
    return te.compute(
        (n, heads * dim),
        lambda i, j: merged[i, j // dim, j % dim] / total[i, j // dim],
        name="x",
    )
