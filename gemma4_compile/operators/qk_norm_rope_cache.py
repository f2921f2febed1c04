"""What comes before attention over the KV state: q, k and v are normed, rotated and written."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.examples import (
    Sizes,
    call_positions,
    rotary_table,
    shared_positions,
)
from gemma4_compile.operators.heads import (
    WHOLE,
    CachePart,
    CacheShape,
    Head,
    Put,
    QkvColumns,
    norm_and_rotate,
)
from gemma4_compile.operators.rows import Joint, Rows
from gemma4_compile.operators.tir import OneRow, bind, function, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.types import Array


@dataclass(frozen=True)
class QkNormRopeCache(Operator):
    """Norms and RoPE of q and k, weightless norm of v; k and v go to the KV state.

    Arguments: qkv (rows, (heads + 2 or 1 x kv_heads) * head_dim) f32; q_norm (head_dim,); k_norm
    (head_dim,) if `owns_kv`; positions (4,) int32; rotary (chunk, rotary_total, 2) f32; key and
    value caches in place if `owns_kv`. Result: q (rows, heads * head_dim) f32. With `value_is_key`
    the value is the raw key projection. With `has_copies` the rows before the last ``positions[1]``
    are copies of the first of those, at its position (padded_rows.py). Of a part of the cache it
    writes the keys and values that have rows there; a later part has neither q_norm nor q.

    Rows of several sequences (`Joint`) have positions, rotary table and caches as `SplitAttention`
    of such rows; of one sequence there may be several, each at a position of its own.

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
    part: CachePart = field(default=WHOLE, kw_only=True)

    @property
    def name(self) -> str:
        return f"joint_{self.kind}" if self.is_joint else self.kind

    @property
    def variant(self) -> str:
        return self.name

    @property
    def is_joint(self) -> bool:
        """Whether its rows are of several sequences, and the caches those of all slots."""
        return isinstance(self.rows, Joint)

    @property
    def makes_q(self) -> bool:
        """Whether it is not of a later part."""
        return self.part.is_first

    @property
    def cache(self) -> CacheShape:
        """Shape of K and V."""
        return CacheShape(self.cache_rows, self.kv_heads, self.head_dim)

    def slot(self, position: Expr, cache: Buffer | None) -> Expr:
        """The row of the cache for a position; of a part, where it has one (`is_held`)."""
        own = position if cache is None else self.part.own(position, cache)
        return self.cache.row(own)

    def positions_shape(self) -> tuple[Index, ...]:
        """Shape of the positions: of the call, or those of each row."""
        return (tirx.Var("chunk", "int64"), 2) if self.is_joint else (4,)

    def cache_shape(self) -> tuple[Index, ...]:
        """Shape of K and V: of one slot, or of all."""
        return self.cache.pool() if self.is_joint else self.cache.shape()

    def position(self, positions: Buffer, row: Expr, step: Expr) -> Expr:
        """The position of a row of the call, which `step` is of."""
        return positions[row, 0] if self.is_joint else positions[0] + step

    def of_row(self, cache: Buffer | None, positions: Buffer, row: Expr) -> Buffer | None:
        """K or V of the sequence that a row is of."""
        if cache is None or not self.is_joint:
            return cache
        return OneRow(cache, bind(positions[row, 1]))

    def is_held(self, slot: Expr, cache: Buffer) -> Expr | None:
        """Whether the part has a row; None where all positions have one."""
        return None if self.part.is_whole else self.part.holds(slot, cache)

    def step(self, positions: Buffer, rows: Index, row: Expr) -> Expr:
        """The row of the rotary table for a row of the call."""
        if self.is_joint:
            return row
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
        if name == "positions":
            return self._example_positions(shape, sizes)
        if self.has_copies and name == "qkv":
            values = rng.normal(size=shape)
            values[: shape[0] // 3] = values[shape[0] // 3]
            return values
        return rotary_table(shape, rng) if name == "rotary" else None

    def known_data(self, name: str, shape: tuple[int, ...], sizes: Sizes) -> Array | None:
        return self._example_positions(shape, sizes) if name == "positions" else None

    def _example_positions(self, shape: tuple[int, ...], sizes: Sizes) -> Array:
        if self.is_joint:
            return shared_positions(self.rows, shape, sizes)
        return call_positions(self.rows, self.part.index, sizes, self.has_copies)

    def definition(self) -> tirx.PrimFunc:
        rows, dim = self.rows.extent(), self.head_dim
        with function(scheduled=False) as build:
            qkv = build.arg("qkv", (rows, self.columns.width), "float32")
            q_norm = build.arg("q_norm", (dim,), "float32") if self.makes_q else None
            k_norm = build.arg("k_norm", (dim,), "float32") if self.owns_kv else None
            positions = build.arg("positions", self.positions_shape(), "int32")
            rotary = build.arg(
                "rotary", (tirx.Var("chunk", "int64"), self.rotary_total, 2), "float32"
            )
            shape = self.cache_shape()
            keys = build.arg("key", shape, self.cache_dtype) if self.owns_kv else None
            values = build.arg("value", shape, self.cache_dtype) if self.owns_kv else None
            q = build.arg("q", (rows, self.heads * dim), "float32") if self.makes_q else None
            with T.serial(0, rows) as i:
                step = bind(self.step(positions, rows, i32(i)))
                key, value = (self.of_row(one, positions, i32(i)) for one in (keys, values))
                slot = bind(self.slot(self.position(positions, i32(i), step), key))

                def write(column: Expr, weight: Buffer | None, rotate: bool, put: Put) -> None:
                    table = rotary if rotate else None
                    norm_and_rotate(self.head, qkv, i, column, weight, table, step, put)

                if q is not None:
                    with T.serial(0, self.heads) as h:
                        write(h * dim, q_norm, True, lambda d, y: store(q, y, i, h * dim + d))
                if key is not None and value is not None:
                    held = self.is_held(slot, key)
                    with (
                        when(held) if held is not None else nullcontext(),
                        T.serial(0, self.kv_heads) as g,
                    ):
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
