"""Flash decoding of a few rows: their keys in splits that all rows share, and the combination."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention import DecodeAttention, SplitAttention
from gemma4_compile.operators.attention_splits import LOWEST, CombineSplits
from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.examples import Sizes, example_lse
from gemma4_compile.operators.few_rows import FewRows
from gemma4_compile.operators.heads import Splits, norm_and_rotate
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.tir import FunctionBuilder, LocalVar, bind, function, i32, store
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.types import Array


def declare_row_splits(
    build: FunctionBuilder, operator: Splits, rows: Index, dtype: str
) -> tuple[Buffer, Buffer]:
    """`declare_splits` for rows: o_partial (rows, splits, heads, head_dim), split_lse (..., 2)."""
    splits, heads, dim = operator.splits, operator.heads, operator.head_dim
    o_partial = build.arg("o_partial", (rows, splits, heads, dim), dtype)
    return o_partial, build.arg("split_lse", (rows, splits, heads, 2), "float32")


@dataclass(frozen=True)
class FewRowAttention(FewRows, SplitAttention):
    """Causal (and sliding) attention of at most `most_rows` rows, in splits of their keys.

    The rows' own keys are in the KV state. The keys that any row sees are divided among the splits,
    which all rows share; of a split a row sees those that are in its window and not after it.

    Arguments: q (rows, heads * head_dim) f32; key, value caches; positions (4,) int32. Results:
    o_partial (rows, splits, heads, head_dim) cache_dtype and split_lse (rows, splits, heads, 2) f32
    as of `SplitAttention`. A split of which a row sees nothing has outputs 0, maximum `LOWEST` and
    sum 0.
    """

    kind: ClassVar[str] = "few_row_attention"
    most_rows: int = 1

    def definition(self) -> tirx.PrimFunc:
        rows, dim = self.rows.extent(), self.head_dim
        with function(scheduled=False) as build:
            q = build.arg("q", (rows, self.heads * dim), "float32")
            shape = self.cache.shape()
            key = build.arg("key", shape, self.cache_dtype)
            value = build.arg("value", shape, self.cache_dtype)
            positions = build.arg("positions", (4,), "int32")
            prepared = self._declare_preparation(build, q, positions, rows)
            o_partial, split_lse = declare_row_splits(build, self, rows, self.cache_dtype)
            with T.serial(0, rows) as i:
                own, own_row = prepared(i)
                with T.serial(0, self.splits) as s, T.serial(0, self.heads) as h:
                    begin, end = self.row_range(positions, i32(rows), i32(i), s)
                    total, highest, weights = self._online(own, key, value, own_row, h, begin, end)
                    self._store_split(o_partial, split_lse, (i, s, h), total, highest, weights)
        return build.result

    def _declare_preparation(
        self, build: FunctionBuilder, q: Buffer, positions: Buffer, rows: Index
    ) -> Callable[[Expr], tuple[Buffer, Index]]:
        """Declare more arguments; from a row to the buffer and the row with its queries."""
        return lambda i: (q, i)

    def row_range(self, positions: Buffer, rows: Expr, row: Expr, split: Expr) -> tuple[Expr, Expr]:
        """Keys [begin, end) of a split that a row sees."""
        last, first = bind(positions[2] - 1), bind(positions[2] - rows)
        begin, end = (bind(bound) for bound in self.split_range(last, split, first))
        own = bind(first + row)
        seen = bind(tirx.max(begin, self.first_key(own)))
        return seen, bind(tirx.max(tirx.min(end, own + 1), seen))


@dataclass(frozen=True)
class NormedFewRowAttention(FewRowAttention, DecodeAttention):
    """`QkNormRopeCache` of a layer without keys of its own and `FewRowAttention`, in one launch.

    Arguments: as `FewRowAttention`, q as the projection makes it; q_norm (head_dim,) f32; rotary
    (chunk, rotary_total, 2) f32. Results: as of `FewRowAttention`.
    """

    kind: ClassVar[str] = "normed_few_row_attention"

    def step(self, positions: Buffer, rows: Index, row: Expr) -> Expr:
        """The row of the rotary table for a row of the call."""
        return positions[1] - i32(rows) + row

    def declare_norm(self, build: FunctionBuilder) -> tuple[Buffer, Buffer]:
        """The arguments after those of `FewRowAttention`."""
        q_norm = build.arg("q_norm", (self.head_dim,), "float32")
        table = (tirx.Var("chunk", "int64"), self.rotary_total, 2)
        return q_norm, build.arg("rotary", table, "float32")

    def _declare_preparation(
        self, build: FunctionBuilder, q: Buffer, positions: Buffer, rows: Index
    ) -> Callable[[Expr], tuple[Buffer, Index]]:
        q_norm, rotary = self.declare_norm(build)

        def prepared(i: Expr) -> tuple[Buffer, Index]:
            own = T.alloc_buffer((1, self.heads * self.head_dim), "float32", scope="local")
            step = bind(self.step(positions, rows, i32(i)))
            with T.serial(0, self.heads) as h:
                first = h * self.head_dim
                norm_and_rotate(
                    self.head,
                    q,
                    i,
                    first,
                    q_norm,
                    rotary,
                    step,
                    lambda d, y: store(own, y, 0, first + d),
                )
            return own, 0

        return prepared


@dataclass(frozen=True)
class CombineFewRows(FewRows, CombineSplits):
    """`CombineSplits` of each of at most `most_rows` rows.

    Arguments: o_partial (rows, splits, heads, head_dim) out_dtype; split_lse (rows, splits, heads,
    2) f32. Result: (rows, heads * head_dim) out_dtype.
    """

    kind: ClassVar[str] = "combine_few_rows"
    most_rows: int = 1

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name != "split_lse":
            return None
        return np.stack([example_lse(shape[1:], LOWEST, rng) for _ in range(shape[0])])

    def definition(self) -> tirx.PrimFunc:
        rows, dim = symbolic_rows(None), self.head_dim
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
