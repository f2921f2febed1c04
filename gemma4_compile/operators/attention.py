"""Attention over the KV state.

Prepare q, k and v; attend for a chunk; attend for one position in splits and combine.

Position p of a sequence lives in row ``p % rows`` of a sliding layer's ring and in row p of a full
layer. Row i of a call with `rows` rows is at position ``positions[2] - rows + i``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.examples import (
    ATTENTION_F32,
    Sizes,
    kept_positions,
    kv_positions,
    rotary_table,
)
from gemma4_compile.operators.heads import CacheShape, Head, Put, QkvColumns, norm_and_rotate
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.picture_attention import example_last_rows
from gemma4_compile.operators.rows import Rows
from gemma4_compile.operators.spreads import LSE, Spread
from gemma4_compile.operators.tir import FunctionBuilder, LocalVar, bind, function, i32, store
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.types import Array


def _kv_input(
    rows: Rows, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
) -> Array | None:
    """Example inputs that the KV state gives."""
    if name == "positions":
        return kv_positions(rows, sizes)
    return rotary_table(shape, rng) if name == "rotary" else None


@dataclass(frozen=True)
class QkNormRopeCache(Operator):
    """Norms and RoPE of q and k, weightless norm of v; k and v go to the KV state.

    Arguments: qkv (rows, (heads + 2 or 1 x kv_heads) * head_dim) f32; q_norm (head_dim,); k_norm
    (head_dim,) if `owns_kv`; positions (4,) int32; rotary (chunk, rotary_total, 2) f32; key and
    value caches in place if `owns_kv`. Result: q (rows, heads * head_dim) f32. With `value_is_key`
    the value is the raw key projection. With `has_copies` the rows before the last ``positions[1]``
    are copies of the first of those, at its position (padded_rows.py).

    References
    ----------
    transformers 5.24.0, `Gemma4TextAttention.forward`: V is normalised although no weight is stored
    for it.
    """

    kind: ClassVar[str] = "qk_norm_rope_cache"
    rows: Rows
    heads: int
    kv_heads: int
    head_dim: int
    pairs: int
    rotary_offset: int
    rotary_total: int
    eps: float
    owns_kv: bool
    value_is_key: bool
    cache_dtype: str
    cache_rows: int | None
    has_copies: bool = False

    @property
    def cache(self) -> CacheShape:
        """Shape of K and V."""
        return CacheShape(self.cache_rows, self.kv_heads, self.head_dim)

    def step(self, positions: Buffer, rows: Index, row: Expr) -> Expr:
        """The row of the rotary table for a row of the call."""
        step = positions[1] - i32(rows) + row
        return tirx.max(step, i32(0)) if self.has_copies else step

    @property
    def head(self) -> Head:
        """Norm and rotation of one head."""
        return Head(self.head_dim, self.pairs, self.rotary_offset, self.eps)

    @property
    def columns(self) -> QkvColumns:
        """Columns of the heads in qkv."""
        return QkvColumns(self.heads, self.kv_heads, self.head_dim, self.owns_kv, self.value_is_key)

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        values = _kv_input(self.rows, name, shape, rng, sizes)
        if self.has_copies and name == "positions":
            return kept_positions(self.rows, sizes)
        if self.has_copies and name == "qkv":
            values = rng.normal(size=shape)
            values[: shape[0] // 3] = values[shape[0] // 3]
        return values

    def known_data(self, name: str, shape: tuple[int, ...], sizes: Sizes) -> Array | None:
        return kv_positions(self.rows, sizes) if name == "positions" else None

    def definition(self) -> tirx.PrimFunc:
        rows, dim = self.rows.extent(), self.head_dim
        with function(scheduled=False) as build:
            qkv = build.arg("qkv", (rows, self.columns.width), "float32")
            q_norm = build.arg("q_norm", (dim,), "float32")
            k_norm = build.arg("k_norm", (dim,), "float32") if self.owns_kv else None
            positions = build.arg("positions", (4,), "int32")
            rotary = build.arg(
                "rotary", (tirx.Var("chunk", "int64"), self.rotary_total, 2), "float32"
            )
            shape = self.cache.shape()
            key = build.arg("key", shape, self.cache_dtype) if self.owns_kv else None
            value = build.arg("value", shape, self.cache_dtype) if self.owns_kv else None
            q = build.arg("q", (rows, self.heads * dim), "float32")
            with T.serial(0, rows) as i:
                step = bind(self.step(positions, rows, i32(i)))
                slot = bind(self.cache.row(positions[0] + step))

                def write(column: Expr, weight: Buffer | None, rotate: bool, put: Put) -> None:
                    table = rotary if rotate else None
                    norm_and_rotate(self.head, qkv, i, column, weight, table, step, put)

                with T.serial(0, self.heads) as h:
                    write(h * dim, q_norm, True, lambda d, y: store(q, y, i, h * dim + d))
                if key is not None and value is not None:
                    with T.serial(0, self.kv_heads) as g:
                        k_column, v_column = self.columns.of_kv(g)
                        write(
                            k_column,
                            k_norm,
                            True,
                            lambda d, y: store(key, y.astype(self.cache_dtype), slot, g, d),
                        )
                        write(
                            v_column,
                            None,
                            False,
                            lambda d, y: store(value, y.astype(self.cache_dtype), slot, g, d),
                        )
        return build.result


@dataclass(frozen=True)
class OverCache(Operator):
    """Shapes of attention over the cache, and the keys that a position sees."""

    rows: Rows
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None
    cache_dtype: str
    cache_rows: int | None

    @property
    def cache(self) -> CacheShape:
        """Shape of K and V."""
        return CacheShape(self.cache_rows, self.kv_heads, self.head_dim)

    def first_key(self, position: Expr) -> Expr:
        """The first position that `position` attends to."""
        if self.window is None:
            return i32(0)
        return tirx.max(position - i32(self.window - 1), i32(0))

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        return _kv_input(self.rows, name, shape, rng, sizes)

    def known_spreads(self, name: str, dtype: str) -> tuple[Spread, ...]:
        return LSE if name == "split_lse" else super().known_spreads(name, dtype)

    def known_data(self, name: str, shape: tuple[int, ...], sizes: Sizes) -> Array | None:
        return kv_positions(self.rows, sizes) if name == "positions" else None

    def tolerance(self, result: str) -> float:
        return ATTENTION_F32

    def online(
        self, q: Buffer, key: Buffer, value: Buffer, i: Index, h: Expr, begin: Expr, end: Expr
    ) -> tuple[Buffer, LocalVar, LocalVar]:
        """Softmax-weighted sum over keys [begin, end): unnormalised, maximum, weight sum."""
        dim, g = self.head_dim, h // (self.heads // self.kv_heads)
        total = T.alloc_buffer((dim,), "float32", scope="local")
        highest, weights = LocalVar("float32", f32(LOWEST)), LocalVar("float32", f32(0.0))
        with T.serial(0, dim) as d:
            store(total, f32(0.0), d)
        with T.serial(begin, end) as t:
            slot = bind(self.cache.row(t))
            score = LocalVar("float32", f32(0.0))
            with T.serial(0, dim) as d:
                score.add(q[i, h * dim + d] * as_f32(key[slot, g, d]))
            higher = bind(tirx.max(highest.value, score.value))
            keep, weight = (
                bind(tirx.exp(highest.value - higher)),
                bind(tirx.exp(score.value - higher)),
            )
            with T.serial(0, dim) as d:
                store(total, total[d] * keep + weight * as_f32(value[slot, g, d]), d)
            weights.set(weights.value * keep + weight)
            highest.set(higher)
        return total, highest, weights


@dataclass(frozen=True)
class PrefillAttention(OverCache):
    """Causal (and sliding) attention of a chunk whose keys are already in the KV state.

    Arguments: q (rows, heads * head_dim) f32; key, value caches; positions (4,) int32. Result:
    (rows, heads * head_dim) out_dtype. Scores are q.k without any scale; KV head of query head h is
    ``h // (heads / kv_heads)``. `has_copies`: as of `QkNormRopeCache`.

    With `sees_pictures` the rows of a block see one another, within the window: row i sees the keys
    from the first of its window to that of row ``last_rows[i]`` of the chunk. They are one more
    argument, the last: last_rows (rows,) int32, as `LastVisibleRows` makes them.

    References
    ----------
    transformers 5.24.0, `create_masks_for_vision_model` of models/gemma4/modeling_gemma4.py. Only
    sliding layers have it; the window bounds what comes before a row, not what comes after.
    """

    kind: ClassVar[str] = "prefill_attention"
    out_dtype: str = "float32"
    has_copies: bool = False
    sees_pictures: bool = False

    @property
    def name(self) -> str:
        return f"picture_{self.kind}" if self.sees_pictures else self.kind

    @property
    def variant(self) -> str:
        return self.name

    def position(self, positions: Buffer, position: Expr) -> Expr:
        """Position of a row; a copy has that of the first row that is kept."""
        return tirx.max(position, positions[0]) if self.has_copies else position

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if self.has_copies and name == "positions":
            return kept_positions(self.rows, sizes)
        if name == "last_rows":
            last_rows = example_last_rows(*shape)
            return np.maximum(last_rows, shape[0] // 3) if self.has_copies else last_rows
        return super().example_input(name, shape, rng, sizes)

    def known_data(self, name: str, shape: tuple[int, ...], sizes: Sizes) -> Array | None:
        if name == "last_rows":
            return example_last_rows(*shape)
        return super().known_data(name, shape, sizes)

    def declare_last_rows(self, build: FunctionBuilder, rows: Index) -> Buffer | None:
        """The argument with the last row that each row sees; None where that is the row itself."""
        return build.arg("last_rows", (rows,), "int32") if self.sees_pictures else None

    def definition(self) -> tirx.PrimFunc:
        rows, dim = self.rows.extent(), self.head_dim
        with function(scheduled=False) as build:
            q = build.arg("q", (rows, self.heads * dim), "float32")
            shape = self.cache.shape()
            key = build.arg("key", shape, self.cache_dtype)
            value = build.arg("value", shape, self.cache_dtype)
            positions = build.arg("positions", (4,), "int32")
            last_rows = self.declare_last_rows(build, rows)
            out = build.arg("out", (rows, self.heads * dim), self.out_dtype)
            with T.serial(0, rows) as i, T.serial(0, self.heads) as h:
                position = bind(self.position(positions, positions[2] - i32(rows) + i32(i)))
                last = position
                if last_rows is not None:
                    last = bind(positions[2] - i32(rows) + last_rows[i])
                total, _, weights = self.online(
                    q, key, value, i, h, self.first_key(position), last + 1
                )
                with T.serial(0, dim) as d:
                    store(out, (total[d] / weights.value).astype(self.out_dtype), i, h * dim + d)
        return build.result
