"""Rows of the KV state, and the norm and rotation of a head, for attention operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.tir import LocalVar, bind, i32
from gemma4_compile.operators.types import Buffer, Expr, Index


@dataclass(frozen=True)
class CachePart:
    """One of `count` equal parts of the positions of a full layer, from `index` times its rows on.

    The operators of a layer whose keys no binding holds are called once a part, in order. A part's
    operator counts positions from its own first row on: what stands before or behind it has no key
    there.
    """

    index: int = 0
    count: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether it is the layer."""
        return self.count == 1

    @property
    def is_first(self) -> bool:
        """Whether no part is before it."""
        return self.index == 0

    def own(self, position: Expr, cache: Buffer) -> Expr:
        """A position, counted from the part's first row on: negative before it."""
        return position if self.is_first else position - i32(self.index) * i32(cache.shape[0])

    def end(self, end: Expr, cache: Buffer) -> Expr:
        """The end of some keys from the part's first on, within the part; 0 where it has none."""
        if self.is_whole:
            return end
        return tirx.max(tirx.min(end, i32(cache.shape[0])), i32(0))

    def holds(self, own: Expr, cache: Buffer) -> Expr:
        """Whether the part has a row for one of its own positions."""
        return (own >= 0) & (own < i32(cache.shape[0]))


WHOLE = CachePart()


@dataclass(frozen=True)
class Carried:
    """What the parts before one left of a sum.

    Attributes
    ----------
    mean : their attention by channel
    highest, weights : the highest score, and the sum of weights relative to it
    """

    mean: Callable[[Index], Expr]
    highest: Expr
    weights: Expr

    def total(self, channel: Index) -> Expr:
        """The weighted sum of a channel."""
        return as_f32(self.mean(channel)) * self.weights


@dataclass(frozen=True)
class CacheShape:
    """K or V of one layer.

    (cache_rows, kv_heads, head_dim); `cache_rows` is None for the whole context.
    """

    cache_rows: int | None
    kv_heads: int
    head_dim: int

    def shape(self) -> tuple[Index, int, int]:
        """Shape, with a fresh symbolic variable for a full layer."""
        return symbolic_rows(self.cache_rows, "capacity"), self.kv_heads, self.head_dim

    def pool(self) -> tuple[Index, Index, int, int]:
        """Shape of those of all slots, with a fresh symbolic variable for their number, too."""
        return tirx.Var("slots", "int64"), *self.shape()

    def row(self, position: Expr) -> Expr:
        """The row that holds `position` (int32)."""
        return (
            position if self.cache_rows is None else tirx.floormod(position, i32(self.cache_rows))
        )


@dataclass(frozen=True)
class QkvColumns:
    """Columns of the heads in the result of the fused projection: q, then k, then v.

    A layer that reads another layer's keys has q alone; with `value_is_key` there is no v.
    """

    heads: int
    kv_heads: int
    head_dim: int
    owns_kv: bool
    value_is_key: bool

    @property
    def width(self) -> int:
        """All columns."""
        kv = (1 if self.value_is_key else 2) * self.kv_heads if self.owns_kv else 0
        return (self.heads + kv) * self.head_dim

    def of_kv(self, g: Expr) -> tuple[Expr, Expr]:
        """First columns of KV head g's key, and of what its value is made from."""
        k_column = (self.heads + g) * self.head_dim
        v_column = k_column if self.value_is_key else k_column + self.kv_heads * self.head_dim
        return k_column, v_column


@dataclass(frozen=True)
class Head:
    """Sizes of the norm and the rotation of one head."""

    head_dim: int
    pairs: int
    rotary_offset: int
    eps: float

    def cos_sin(self, rotary: Buffer, step: Expr, j: Expr) -> tuple[Expr, Expr]:
        """Cosine and sine of pair j; pairs beyond `pairs` are not rotated."""
        pair = self.rotary_offset + tirx.min(j, self.pairs - 1)
        rotated = j < self.pairs
        cos = bind(tirx.Select(rotated, rotary[step, pair, 0], f32(1.0)))
        sin = bind(tirx.Select(rotated, rotary[step, pair, 1], f32(0.0)))
        return cos, sin


class Splits(Protocol):
    """An operator that reads or writes the partial results of an attention."""

    @property
    def splits(self) -> int:
        """Parts of the keys."""

    @property
    def heads(self) -> int:
        """Query heads."""

    @property
    def head_dim(self) -> int:
        """Channels of a head."""


Put = Callable[[Expr, Expr], None]
"""Takes a channel of a head and its value."""


def norm_and_rotate(
    head: Head,
    qkv: Buffer,
    i: Index,
    column: Expr,
    weight: Buffer | None,
    rotary: Buffer | None,
    step: Expr,
    put: Put,
) -> None:
    """Norm of one head, and with a rotary table RoPE: channel j pairs with j + head_dim / 2.

    Parameters
    ----------
    qkv : (rows, width) f32; the head is row `i`, columns from `column` on
    weight : (head_dim,) f32, None for the weightless norm of v
    rotary, step : the rotary table and its row, None for v
    put : called with each channel and its value
    """
    dim, half = head.head_dim, head.head_dim // 2
    squares = LocalVar("float32", f32(0.0))
    with T.serial(0, dim) as d:
        squares.add(qkv[i, column + d] * qkv[i, column + d])
    inverse = bind(tirx.rsqrt(squares.value / f32(dim) + f32(head.eps)))

    def normed(d: Expr) -> Expr:
        y = qkv[i, column + d] * inverse
        return y if weight is None else y * weight[d]

    with T.serial(0, half) as j:
        low, high = normed(j), normed(j + half)
        if rotary is None:
            put(j, low)
            put(j + half, high)
        else:
            cos, sin = head.cos_sin(rotary, step, j)
            put(j, low * cos - high * sin)
            put(j + half, high * cos + low * sin)
