"""Attention of a vision tower: every patch of a picture sees every other.

Blocks, patches and positions as in operators/vision.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.base import Operator, symbolic_rows, te_prim_func
from gemma4_compile.operators.dots import Dot, plain_dot
from gemma4_compile.operators.examples import ATTENTION_F16, ATTENTION_F32, Sizes, rotary_table
from gemma4_compile.operators.heads import CacheShape
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store
from gemma4_compile.operators.types import Expr, Index
from gemma4_compile.operators.vision import example_positions
from gemma4_compile.types import Array


@dataclass(frozen=True)
class PatchQkNormRope(Operator):
    """Norms and two-dimensional RoPE of q and k, weightless norm of v.

    Arguments: q, k, v (rows, heads * head_dim) f32; q_norm, k_norm (head_dim,) f32; rotary (rows,
    head_dim / 2, 2) f32 of `PatchRotary`. Results: q (rows, heads * head_dim) f32; k, v (rows,
    heads, head_dim) kv_dtype. The first half of a head turns with x, the second with y; within a
    half channel j is paired with channel ``j + head_dim / 4``.

    References
    ----------
    transformers 5.24.0, `Gemma4VisionAttention`, `apply_multidimensional_rope`.
    """

    kind: ClassVar[str] = "patch_qk_norm_rope"
    heads: int
    head_dim: int
    eps: float
    kv_dtype: str

    @property
    def width(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    def channels(self, pair: Expr) -> tuple[Expr, Expr]:
        """Channels of a head that a pair of the rotary table turns."""
        count = self.head_dim // 4
        low = pair // count * (2 * count) + pair % count
        return low, low + count

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        return rotary_table(shape, rng) if name == "rotary" else None

    def definition(self) -> tirx.PrimFunc:
        n, heads, dim, count = symbolic_rows(None), self.heads, self.head_dim, self.head_dim // 4
        q, k, v = (te.placeholder((n, self.width), "float32", name=name) for name in "qkv")
        weights = [te.placeholder((dim,), "float32", name=f"{name}_norm") for name in "qk"]
        rotary = te.placeholder((n, dim // 2, 2), "float32", name="rotary")

        def inverse(x: te.Tensor) -> te.Tensor:
            d = te.reduce_axis((0, dim), name="d")
            squares = te.compute(
                (n, heads),
                lambda i, h: te.sum(x[i, h * dim + d] * x[i, h * dim + d], axis=d),
                name=f"{x.op.name}_squares",
            )
            return te.compute(
                (n, heads),
                lambda i, h: tirx.rsqrt(squares[i, h] / f32(dim) + f32(self.eps)),
                name=f"{x.op.name}_rsqrt",
            )

        def rotated(
            x: te.Tensor, scale: te.Tensor, weight: te.Tensor, i: Expr, h: Expr, d: Expr
        ) -> Expr:
            def normed(channel: Expr) -> Expr:
                return x[i, h * dim + channel] * scale[i, h] * weight[channel]

            within = d % (2 * count)
            pair, is_low = d // (2 * count) * count + within % count, within < count
            other = tirx.if_then_else(is_low, d + count, d - count)
            sin = rotary[i, pair, 1]
            turned = normed(other) * tirx.if_then_else(is_low, f32(0.0) - sin, sin)
            return normed(d) * rotary[i, pair, 0] + turned

        q_scale, k_scale, v_scale = (inverse(x) for x in (q, k, v))
        shape = (n, heads, dim)
        q_out = te.compute(
            (n, self.width),
            lambda i, c: rotated(q, q_scale, weights[0], i, c // dim, c % dim),
            name="q_out",
        )
        k_out = te.compute(
            shape,
            lambda i, h, d: rotated(k, k_scale, weights[1], i, h, d).astype(self.kv_dtype),
            name="k_out",
        )
        v_out = te.compute(
            shape,
            lambda i, h, d: (v[i, h * dim + d] * v_scale[i, h]).astype(self.kv_dtype),
            name="v_out",
        )
        return te_prim_func([q, k, v, *weights, rotary, q_out, k_out, v_out])


@dataclass(frozen=True)
class PatchAttention(Operator):
    """Attention of all patches to all that are no padding.

    Arguments: positions (n, 2) int32; q (n * pooling^2, heads * head_dim) f32; key, value (n *
    pooling^2, heads, head_dim) cache_dtype. Result: (n * pooling^2, heads * head_dim) out_dtype.
    Scores are q.k without any scale. No buffer has an entry for each pair of patches.
    """

    kind: ClassVar[str] = "patch_attention"
    heads: int
    head_dim: int
    pooling: int
    cache_dtype: str
    out_dtype: str

    @property
    def kv_heads(self) -> int:
        """Heads of K and V."""
        return self.heads

    @property
    def rows(self) -> None:
        """Patches are as many as the picture has."""
        return None

    @property
    def cache(self) -> CacheShape:
        """Places of a patch's K and V: in its own row."""
        return CacheShape(None, self.heads, self.head_dim)

    def first_key(self, position: Expr) -> Expr:
        """The first patch that a patch sees."""
        return i32(0)

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name == "q":
            # As norms leave it; scores of larger ones are one patch's alone.
            return rng.normal(0, 0.5, shape)
        return example_positions(shape, rng) if name == "positions" else None

    def tolerance(self, result: str) -> float:
        return ATTENTION_F16 if self.cache_dtype == "float16" else ATTENTION_F32

    def definition(self) -> tirx.PrimFunc:
        return self.with_dot(plain_dot)

    def with_dot(self, dot: Dot) -> tirx.PrimFunc:
        """The function of the definition, whose scores `dot` makes."""
        n, dim, count = symbolic_rows(None), self.head_dim, self.pooling**2
        rows: Index = n * count
        with function(scheduled=False) as build:
            positions = build.arg("positions", (n, 2), "int32")
            q = build.arg("q", (rows, self.heads * dim), "float32")
            key = build.arg("key", (rows, self.heads, dim), self.cache_dtype)
            value = build.arg("value", (rows, self.heads, dim), self.cache_dtype)
            out = build.arg("out", (rows, self.heads * dim), self.out_dtype)
            with T.parallel(0, rows) as i, T.serial(0, self.heads) as h:
                total = T.alloc_buffer((dim,), "float32", scope="local")
                highest, weights = LocalVar("float32", f32(LOWEST)), LocalVar("float32", f32(0.0))
                with T.serial(0, dim) as d:
                    store(total, f32(0.0), d)
                with T.serial(0, rows) as t, T.If(positions[t // count, 0] >= 0), T.Then():
                    score = dot(
                        dim,
                        lambda d: q[i, h * dim + d],
                        lambda d: as_f32(key[t, h, d]),
                    )
                    higher = bind(tirx.max(highest.value, score))
                    keep = bind(tirx.exp(highest.value - higher))
                    weight = bind(tirx.exp(score - higher))
                    with T.serial(0, dim) as d:
                        store(total, total[d] * keep + weight * as_f32(value[t, h, d]), d)
                    weights.set(weights.value * keep + weight)
                    highest.set(higher)
                with T.serial(0, dim) as d:
                    store(out, (total[d] / weights.value).astype(self.out_dtype), i, h * dim + d)
        return build.result
