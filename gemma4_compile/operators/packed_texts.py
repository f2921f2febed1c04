"""Operators of an encoder over the rows of several texts, one text after the other.

`spans` (n, 2) int32 are, for each row, the first row of its text and the row after the text's last.
They never fall from a row to the next. A row at or behind the end of its own span is padding: no
row sees it, and its results are finite and mean nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.base import Operator, symbolic_rows, te_prim_func
from gemma4_compile.operators.dots import Dot, plain_dot
from gemma4_compile.operators.examples import ATTENTION_F32, Sizes, rotary_table
from gemma4_compile.operators.heads import CacheShape, Head, Put, QkvColumns, norm_and_rotate
from gemma4_compile.operators.math import as_f32, exact_f32, f32
from gemma4_compile.operators.rows import CHUNK, Rows
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.types import Array

FIRST, END = 0, 1  # columns of a span
SMALLEST_NORM = 1e-12  # of torch.nn.functional.normalize


def example_ranges(count: int, rows: int) -> Array:
    """First row and end of each of some texts of different lengths, (count, 2)."""
    lengths = np.arange(1, count + 1)
    ends = np.maximum(np.cumsum(lengths) * rows // lengths.sum(), lengths)
    ends[-1] = rows
    return np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1)


def example_spans(rows: int) -> Array:
    """The spans of a few texts, of which the last but one has a row of padding."""
    ranges = example_ranges(min(3, rows), rows)
    spans = np.repeat(ranges, ranges[:, END] - ranges[:, FIRST], axis=0)
    if rows > 3:
        padded = spans[:, FIRST] == ranges[-2, FIRST]
        spans[padded, END] = max(ranges[-2, END] - 1, ranges[-2, FIRST] + 1)
    return spans


def _chosen(index: Expr, values: list[float]) -> Expr:
    """One of some float32 constants."""
    found = exact_f32(values[0])
    for number, value in enumerate(values[1:], 1):
        found = tirx.Select(index == number, exact_f32(value), found)
    return found


@dataclass(frozen=True)
class SpanRotary(Operator):
    """Cosines and sines of each row's place in its text.

    Argument: spans (n, 2) int32. Result: (n, pairs of all kinds, 2) f32. A kind is (head_dim,
    pairs, theta): its pair j turns by ``theta^(-2j / head_dim)`` radians a place. The pairs of a
    kind follow those of the kinds before.
    """

    kind: ClassVar[str] = "span_rotary"
    kinds: tuple[tuple[int, int, float], ...]

    @property
    def pairs(self) -> int:
        """Pairs of all kinds."""
        return sum(pairs for _, pairs, _ in self.kinds)

    def frequency(self, pair: Expr) -> Expr:
        """Radians a place of a pair, to two roundings of float32.

        Each is a product of two: a text of constants as long as a kernel can hold.
        """
        result, begin = f32(0.0), 0
        for head_dim, pairs, theta in self.kinds:
            run = math.isqrt(pairs - 1) + 1
            own = pair - i32(begin)
            slow = [theta ** (-2.0 * run * k / head_dim) for k in range(-(-pairs // run))]
            fast = [theta ** (-2.0 * k / head_dim) for k in range(run)]
            product = _chosen(tirx.truncdiv(own, i32(run)), slow) * _chosen(
                tirx.truncmod(own, i32(run)), fast
            )
            result = tirx.Select(pair >= i32(begin), product, result)
            begin += pairs
        return result

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        # Some far into their text.
        return example_spans(shape[0]) - np.array([3000, 0]) if name == "spans" else None

    def definition(self) -> tirx.PrimFunc:
        n = symbolic_rows(None)
        spans = te.placeholder((n, 2), "int32", name="spans")

        def angle(i: Expr, pair: Expr) -> Expr:
            return as_f32(i.astype("int32") - spans[i, FIRST]) * self.frequency(pair)

        out = te.compute(
            (n, self.pairs, 2),
            lambda i, p, k: tirx.if_then_else(k == 0, tirx.cos(angle(i, p)), tirx.sin(angle(i, p))),
            name="rotary",
        )
        return te_prim_func([spans, out])


@dataclass(frozen=True)
class QkvNormRope(Operator):
    """Norms and RoPE of q and k, weightless norm of v, each row's to its own row.

    Arguments: qkv (n, (heads + 2 kv_heads) * head_dim) f32; q_norm, k_norm (head_dim,) f32; rotary
    (n, rotary_total, 2) f32 of `SpanRotary`. Results: q (n, heads * head_dim) f32; k, v (n,
    kv_heads, head_dim) kv_dtype.

    References
    ----------
    transformers 5.24.0, models/embedding_gemma2, `EmbeddingGemma2Attention.forward`.
    """

    kind: ClassVar[str] = "qkv_norm_rope"
    heads: int
    kv_heads: int
    head_dim: int
    pairs: int
    rotary_offset: int
    rotary_total: int
    eps: float
    kv_dtype: str

    @property
    def head(self) -> Head:
        """Norm and rotation of one head."""
        return Head(self.head_dim, self.pairs, self.rotary_offset, self.eps)

    @property
    def columns(self) -> QkvColumns:
        """Columns of the heads in qkv."""
        return QkvColumns(self.heads, self.kv_heads, self.head_dim, True, False)

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        return rotary_table(shape, rng) if name == "rotary" else None

    def definition(self) -> tirx.PrimFunc:
        n, dim = symbolic_rows(None), self.head_dim
        with function(scheduled=False) as build:
            qkv = build.arg("qkv", (n, self.columns.width), "float32")
            q_norm, k_norm = (build.arg(f"{name}_norm", (dim,), "float32") for name in "qk")
            rotary = build.arg("rotary", (n, self.rotary_total, 2), "float32")
            q = build.arg("q", (n, self.heads * dim), "float32")
            k, v = (build.arg(name, (n, self.kv_heads, dim), self.kv_dtype) for name in "kv")
            with T.parallel(0, n) as i:

                def write(column: Expr, weight: Buffer | None, put: Put) -> None:
                    table = None if weight is None else rotary
                    norm_and_rotate(self.head, qkv, i, column, weight, table, i, put)

                with T.serial(0, self.heads) as h:
                    write(h * dim, q_norm, lambda d, y: store(q, y, i, h * dim + d))
                with T.serial(0, self.kv_heads) as g:
                    k_column, v_column = self.columns.of_kv(g)
                    dtype = self.kv_dtype
                    write(k_column, k_norm, lambda d, y: store(k, y.astype(dtype), i, g, d))
                    write(v_column, None, lambda d, y: store(v, y.astype(dtype), i, g, d))
        return build.result


@dataclass(frozen=True)
class SpanAttention(Operator):
    """Attention of each row to the rows of its own text, on both sides of it.

    Arguments: spans (n, 2) int32; q (n, heads * head_dim) f32; key, value (n, kv_heads, head_dim)
    cache_dtype. Result: (n, heads * head_dim) out_dtype. A row sees those that are at most `radius`
    away, or all where that is None. Scores are q.k without any scale; KV head of query head h is
    ``h // (heads / kv_heads)``. No buffer has an entry for each pair of rows.

    References
    ----------
    transformers 5.24.0, models/embedding_gemma2: `sliding_window` is the radius, inclusive.
    """

    kind: ClassVar[str] = "span_attention"
    heads: int
    kv_heads: int
    head_dim: int
    radius: int | None
    cache_dtype: str
    out_dtype: str

    @property
    def rows(self) -> Rows:
        """As many as the texts have."""
        return CHUNK

    @property
    def cache(self) -> CacheShape:
        """Places of a row's K and V: in its own row."""
        return CacheShape(None, self.kv_heads, self.head_dim)

    def first_key(self, position: Expr) -> Expr:
        """The first row that any row may see."""
        return i32(0)

    def seen(self, spans: Buffer, row: Expr) -> tuple[Expr, Expr]:
        """The first row that a row sees, and the one after the last; never none, nor falling."""
        first, end = spans[row, FIRST], spans[row, END]
        if self.radius is None:
            return first, end
        begin = tirx.max(first, tirx.min(i32(row) - self.radius, end - 1))
        return begin, tirx.min(end, i32(row) + (self.radius + 1))

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        return example_spans(shape[0]) if name == "spans" else None

    def known_data(self, name: str, shape: tuple[int, ...], sizes: Sizes) -> Array | None:
        return example_spans(shape[0]) if name == "spans" else None

    def tolerance(self, result: str) -> float:
        return ATTENTION_F32

    def definition(self) -> tirx.PrimFunc:
        return self.with_dot(plain_dot)

    def with_dot(self, dot: Dot) -> tirx.PrimFunc:
        """The function of the definition, whose scores `dot` makes."""
        n, dim = symbolic_rows(None), self.head_dim
        with function(scheduled=False) as build:
            spans = build.arg("spans", (n, 2), "int32")
            q = build.arg("q", (n, self.heads * dim), "float32")
            key, value = (
                build.arg(name, (n, self.kv_heads, dim), self.cache_dtype)
                for name in ("key", "value")
            )
            out = build.arg("out", (n, self.heads * dim), self.out_dtype)
            with T.parallel(0, n) as i, T.serial(0, self.heads) as h:
                g = h // (self.heads // self.kv_heads)
                total = T.alloc_buffer((dim,), "float32", scope="local")
                highest, weights = LocalVar("float32", f32(LOWEST)), LocalVar("float32", f32(0.0))
                with T.serial(0, dim) as d:
                    store(total, f32(0.0), d)
                begin, end = (bind(bound) for bound in self.seen(spans, i))
                with T.serial(begin, end) as t:
                    score = dot(
                        dim,
                        lambda d: q[i, h * dim + d],
                        lambda d: as_f32(key[t, g, d]),
                    )
                    higher = bind(tirx.max(highest.value, score))
                    keep = bind(tirx.exp(highest.value - higher))
                    weight = bind(tirx.exp(score - higher))
                    with T.serial(0, dim) as d:
                        store(total, total[d] * keep + weight * as_f32(value[t, g, d]), d)
                    weights.set(weights.value * keep + weight)
                    highest.set(higher)
                with T.serial(0, dim) as d:
                    store(out, (total[d] / weights.value).astype(self.out_dtype), i, h * dim + d)
        return build.result


@dataclass(frozen=True)
class MeanRows(Operator):
    """The mean of each text's rows.

    Arguments: ranges (texts, 2) int32, each text's first row and the one after its last; x (n,
    width) f32. Result: (texts, width) f32.
    """

    kind: ClassVar[str] = "mean_rows"
    width: int

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        return example_ranges(shape[0], sizes.rows) if name == "ranges" else None

    def known_data(self, name: str, shape: tuple[int, ...], sizes: Sizes) -> Array | None:
        return example_ranges(shape[0], sizes.rows) if name == "ranges" else None

    def definition(self) -> tirx.PrimFunc:
        texts, n = tirx.Var("texts", "int64"), symbolic_rows(None)
        with function(scheduled=False) as build:
            ranges = build.arg("ranges", (texts, 2), "int32")
            x = build.arg("x", (n, self.width), "float32")
            out = build.arg("out", (texts, self.width), "float32")
            with T.parallel(0, texts) as i, T.serial(0, self.width) as j:
                total = LocalVar("float32", f32(0.0))
                begin, end = bind(ranges[i, FIRST]), bind(ranges[i, END])
                with T.serial(begin, end) as row:
                    total.add(x[row, j])
                store(out, total.value / as_f32(end - begin), i, j)
        return build.result


@dataclass(frozen=True)
class UnitRows(Operator):
    """``y = x / max(|x|, 1e-12)``: x (n, width) f32 to the same.

    References
    ----------
    `torch.nn.functional.normalize`, which sentence-transformers' `Normalize` calls.
    """

    kind: ClassVar[str] = "unit_rows"
    width: int

    def inverse(self, squares: Expr) -> Expr:
        """The factor of a row with this sum of squares."""
        return tirx.rsqrt(tirx.max(squares, f32(SMALLEST_NORM**2)))

    def definition(self) -> tirx.PrimFunc:
        n = symbolic_rows(None)
        x = te.placeholder((n, self.width), "float32", name="x")
        k = te.reduce_axis((0, self.width), name="k")
        squares = te.compute((n,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="squares")
        y = te.compute((n, self.width), lambda i, j: x[i, j] * self.inverse(squares[i]), name="y")
        return te_prim_func([x, y])
