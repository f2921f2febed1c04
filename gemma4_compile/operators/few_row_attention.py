"""Flash decoding of a few rows: their keys in splits that all rows share, and the combination."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention import DecodeAttention, SplitAttention
from gemma4_compile.operators.attention_splits import declare_row_splits
from gemma4_compile.operators.heads import norm_and_rotate
from gemma4_compile.operators.tir import FunctionBuilder, bind, function, i32, store
from gemma4_compile.operators.types import Buffer, Expr, Index


@dataclass(frozen=True)
class FewRowAttention(SplitAttention):
    """Causal (and sliding) attention of a few rows, in splits of their keys.

    The rows' own keys are in the KV state. The keys that any row sees are divided among the splits,
    which all rows share; of a split a row sees those that are in its window and not after it.

    Arguments: q (rows, heads * head_dim) f32; key, value caches; positions (4,) int32. Results:
    o_partial (rows, splits, heads, head_dim) cache_dtype and split_lse (rows, splits, heads, 2) f32
    as of `SplitAttention`. A split of which a row sees nothing has outputs 0, maximum `LOWEST` and
    sum 0.
    """

    kind: ClassVar[str] = "few_row_attention"

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
