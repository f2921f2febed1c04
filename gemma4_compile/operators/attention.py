"""Attention over the KV state.

Attend for a chunk; what that has in common with attention in splits (split_attention.py).

Position p of a sequence lives in row ``p % rows`` of a sliding layer's ring and in row p of a full
layer. Row i of a call with `rows` rows is at position ``positions[2] - rows + i``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.dots import Dot, plain_dot
from gemma4_compile.operators.examples import (
    ATTENTION_F32,
    HALF_ULP_F16,
    Sizes,
    call_positions,
    example_carried,
    joint_positions,
    rotary_table,
)
from gemma4_compile.operators.heads import (
    WHOLE,
    CachePart,
    CacheShape,
    Carried,
)
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.picture_attention import example_last_rows
from gemma4_compile.operators.rows import Joint, OneOf, Rows
from gemma4_compile.operators.spreads import LSE, Spread
from gemma4_compile.operators.tir import (
    FunctionBuilder,
    LocalVar,
    bind,
    function,
    i32,
    store,
)
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.types import Array


@dataclass(frozen=True)
class OverCache(Operator):
    """Shapes of attention over the cache, and the keys that a position sees.

    The keys of a part are in the rows of its own; a later part goes on from what those before it
    left: their attention and, of each sum, its highest score and weights.
    """

    rows: Rows
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None
    cache_dtype: str
    cache_rows: int | None
    part: CachePart = field(default=WHOLE, kw_only=True)

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
        if name == "positions":
            return self._positions(shape, sizes)
        if name == "split_lse" and not self.part.is_first:
            return example_carried(shape, rng)
        return rotary_table(shape, rng) if name == "rotary" else None

    def _positions(self, shape: tuple[int, ...], sizes: Sizes) -> Array:
        if isinstance(self.rows, Joint | OneOf):
            return joint_positions(self.rows, shape, sizes)
        return call_positions(self.rows, self.part.index, sizes)

    def known_spreads(self, name: str, dtype: str) -> tuple[Spread, ...]:
        return LSE if name == "split_lse" else super().known_spreads(name, dtype)

    def known_data(self, name: str, shape: tuple[int, ...], sizes: Sizes) -> Array | None:
        return self._positions(shape, sizes) if name == "positions" else None

    def tolerance(self, result: str) -> float:
        return ATTENTION_F32

    def operand(self, channel: Expr) -> Expr:
        """A channel of q as it is multiplied."""
        return channel

    def online(
        self,
        q: Buffer,
        key: Buffer,
        value: Buffer,
        i: Index,
        h: Expr,
        begin: Expr,
        end: Expr,
        carried: Carried | None = None,
        dot: Dot = plain_dot,
    ) -> tuple[Buffer, LocalVar, LocalVar]:
        """Softmax-weighted sum over keys [begin, end): unnormalised, maximum, weight sum.

        `carried` : of the parts before, whose sum goes on
        """
        dim, g = self.head_dim, h // (self.heads // self.kv_heads)
        total = T.alloc_buffer((dim,), "float32", scope="local")
        first = (f32(LOWEST), f32(0.0)) if carried is None else (carried.highest, carried.weights)
        highest, weights = LocalVar("float32", first[0]), LocalVar("float32", first[1])
        with T.serial(0, dim) as d:
            store(total, f32(0.0) if carried is None else carried.total(d), d)
        with T.serial(begin, end) as t:
            slot = bind(self.cache.row(t))
            score = dot(
                dim,
                lambda d: self.operand(q[i, h * dim + d]),
                lambda d: as_f32(key[slot, g, d]),
            )
            higher = bind(tirx.max(highest.value, score))
            keep, weight = bind(tirx.exp(highest.value - higher)), bind(tirx.exp(score - higher))
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

    Of a part of the cache it is the attention to the keys up to the part's last, and split_lse
    (rows, heads, 2) f32 a second result: highest score and sum of weights. Those of a later part
    are in place.

    With `sees_pictures` the rows of a block see one another, within the window: row i sees the keys
    from the first of its window to that of row ``last_rows[i]`` of the chunk. They are one more
    argument, the last: last_rows (rows,) int32, as `LastVisibleRows` makes them.

    References
    ----------
    transformers 5.24.0, `create_masks_for_vision_model` of models/gemma4/modeling_gemma4.py. Only
    sliding layers have it; the window bounds what comes before a row, not what comes after.
    With `rounds_to_halves` q and the weights of keys are rounded to float16 before their products,
    as K and V are: matrix units multiply nothing longer.
    """

    kind: ClassVar[str] = "prefill_attention"
    out_dtype: str = "float32"
    has_copies: bool = False
    sees_pictures: bool = False
    rounds_to_halves: bool = False

    @property
    def name(self) -> str:
        return f"picture_{self.kind}" if self.sees_pictures else self.kind

    @property
    def variant(self) -> str:
        return self.name

    def operand(self, channel: Expr) -> Expr:
        return as_f32(channel.astype("float16")) if self.rounds_to_halves else channel

    def tolerance(self, result: str) -> float:
        # A weight moves by half a unit at most, and so does a mean of values, of their size.
        return super().tolerance(result) + (HALF_ULP_F16 if self.rounds_to_halves else 0.0)

    def position(self, positions: Buffer, position: Expr) -> Expr:
        """Position of a row; a copy has that of the first row that is kept."""
        return tirx.max(position, positions[0]) if self.has_copies else position

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if self.has_copies and name == "positions":
            return call_positions(self.rows, self.part.index, sizes, has_copies=True)
        if name == "last_rows":
            last_rows = example_last_rows(*shape)
            return np.maximum(last_rows, shape[0] // 3) if self.has_copies else last_rows
        return super().example_input(name, shape, rng, sizes)

    def known_data(self, name: str, shape: tuple[int, ...], sizes: Sizes) -> Array | None:
        if name == "last_rows":
            return example_last_rows(*shape)
        return super().known_data(name, shape, sizes)

    @property
    def goes_on(self) -> bool:
        return not self.part.is_first

    def declare_last_rows(self, build: FunctionBuilder, rows: Index) -> Buffer | None:
        """The argument with the last row that each row sees; None where that is the row itself."""
        return build.arg("last_rows", (rows,), "int32") if self.sees_pictures else None

    def declare_lse(self, build: FunctionBuilder, rows: Index) -> Buffer | None:
        """The argument with maxima and weights of the parts up to this one; None of a whole."""
        if self.part.is_whole:
            return None
        return build.arg("split_lse", (rows, self.heads, 2), "float32")

    def declare_memory(self, build: FunctionBuilder) -> list[Buffer]:
        """Results without a meaning, behind the others, which a kernel uses; none here."""
        del build
        return []

    def definition(self) -> tirx.PrimFunc:
        return self.with_dot(plain_dot)

    def with_dot(self, dot: Dot) -> tirx.PrimFunc:
        """The function of the definition, whose scores `dot` makes."""
        rows, dim, part = self.rows.extent(), self.head_dim, self.part
        with function(scheduled=False) as build:
            q = build.arg("q", (rows, self.heads * dim), "float32")
            shape = self.cache.shape()
            key = build.arg("key", shape, self.cache_dtype)
            value = build.arg("value", shape, self.cache_dtype)
            positions = build.arg("positions", (4,), "int32")
            last_rows = self.declare_last_rows(build, rows)
            out = build.arg("out", (rows, self.heads * dim), self.out_dtype)
            split_lse = self.declare_lse(build, rows)
            self.declare_memory(build)
            with T.parallel(0, rows) as i, T.serial(0, self.heads) as h:
                position = bind(self.position(positions, positions[2] - i32(rows) + i32(i)))
                last = position
                if last_rows is not None:
                    last = bind(positions[2] - i32(rows) + last_rows[i])
                carried = None
                if split_lse is not None and not part.is_first:
                    lse = bind(split_lse[i, h, 0]), bind(split_lse[i, h, 1])
                    carried = Carried(lambda d: out[i, h * dim + d], *lse)
                end = part.end(part.own(last + 1, key), key)
                begin = self.first_key(position)
                found = self.online(q, key, value, i, h, begin, end, carried, dot)
                total, highest, weights = found
                with T.serial(0, dim) as d:
                    store(out, (total[d] / weights.value).astype(self.out_dtype), i, h * dim + d)
                if split_lse is not None:
                    store(split_lse, highest.value, i, h, 0)
                    store(split_lse, weights.value, i, h, 1)
        return build.result
