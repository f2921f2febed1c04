"""Norms and RoPE of q and k, norm of v, and the write into the KV state.

One thread block a head and position.

Definition: gemma4_compile/operators/qk_norm_rope_cache.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tvm import tirx

from gemma4_compile.operators.heads import Head, Put
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.qk_norm_rope_cache import QkNormRopeCache
from gemma4_compile.operators.tir import LocalVar, bind, function, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockReduction,
    inverse_rms,
    launch,
    row_threads,
    strided,
    zero,
)
from gemma4_compile.targets.spec import TargetSpec


def make_qk_norm_rope_cache(operator: QkNormRopeCache, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: (heads + 2 kv_heads, or heads) x rows. Shared: one float32 a thread.

    Reference: `QkNormRopeCache.definition`.
    """
    rows, dim, heads, kv_heads = (
        operator.rows.extent(),
        operator.head_dim,
        operator.heads,
        operator.kv_heads,
    )
    half = dim // 2
    threads = row_threads(half, spec.max_threads_per_block)
    queries = heads if operator.makes_q else 0
    blocks = queries + (2 * kv_heads if operator.owns_kv else 0)
    with function(scheduled=True) as build:
        qkv = build.arg("qkv", (rows, operator.columns.width), "float32")
        q_norm = build.arg("q_norm", (dim,), "float32") if operator.makes_q else None
        k_norm = build.arg("k_norm", (dim,), "float32") if operator.owns_kv else None
        positions = build.arg("positions", operator.positions_shape(), "int32")
        rotary_shape = (tirx.Var("chunk", "int64"), operator.rotary_total, 2)
        rotary = build.arg("rotary", rotary_shape, "float32")
        shape = operator.cache_shape()
        keys = build.arg("key", shape, operator.cache_dtype) if operator.owns_kv else None
        values = build.arg("value", shape, operator.cache_dtype) if operator.owns_kv else None
        q = build.arg("q", (rows, heads * dim), "float32") if operator.makes_q else None
        with launch(threads, blocks, rows) as (place, i, thread):
            number = place if operator.makes_q else bind(place + heads)
            block = Block(thread, threads, spec.simd_width)
            step = bind(operator.step(positions, rows, i))
            key, value = (operator.of_row(cache, positions, i) for cache in (keys, values))
            slot = bind(operator.slot(operator.position(positions, i, step), key))
            reduce = BlockReduction(block)
            is_value = number >= heads + kv_heads
            # With `value_is_key` the value is made from the key's columns.
            source = (
                tirx.Select(is_value, number - kv_heads, number)
                if operator.value_is_key
                else number
            )
            column = bind(source * dim)
            squares = LocalVar("float32", zero())
            with strided(block, dim) as d:
                squares.add(qkv[i, column + d] * qkv[i, column + d])
            inverse = inverse_rms(reduce(squares.value), dim, operator.eps)

            head = HeadOfRow(qkv, rotary, i, column, inverse, step)
            write = partial(write_head, operator.head, block, head)
            if q is not None:
                with when(number < heads):
                    write(q_norm, True, lambda d, y: store(q, y, i, column + d))
            if key is not None and value is not None:
                dtype = operator.cache_dtype
                held = operator.is_held(slot, key)
                is_key = (number >= heads) & (number < heads + kv_heads)
                with when(is_key if held is None else is_key & held):
                    write(
                        k_norm,
                        True,
                        lambda d, y: store(key, y.astype(dtype), slot, number - heads, d),
                    )
                with when(is_value if held is None else is_value & held):
                    g = bind(number - heads - kv_heads)
                    write(None, False, lambda d, y: store(value, y.astype(dtype), slot, g, d))
    return build.result


@dataclass(frozen=True)
class HeadOfRow:
    """One head of a position's q, k or v.

    Attributes
    ----------
    i, column : where it begins in qkv
    inverse : 1 / rms of its channels
    step : row of the rotary table
    """

    qkv: Buffer
    rotary: Buffer
    i: Expr
    column: Expr
    inverse: Expr
    step: Expr


def write_head(
    sizes: Head,
    block: Block,
    head: HeadOfRow,
    weight: Buffer | None,
    rotate: bool,
    put: Put,
) -> None:
    """Norm of a head, and RoPE: channel j pairs with j + head_dim / 2.

    Pairs beyond `sizes.pairs` are not rotated.
    """
    qkv, i, column, inverse = head.qkv, head.i, head.column, head.inverse
    half = sizes.head_dim // 2
    with strided(block, half) as j:
        low, high = qkv[i, column + j] * inverse, qkv[i, column + j + half] * inverse
        if weight is not None:
            low, high = low * weight[j], high * weight[j + half]
        low, high = bind(low), bind(high)
        if not rotate:
            put(j, low)
            put(j + half, high)
            return
        pair = sizes.rotary_offset + tirx.min(j, sizes.pairs - 1)
        rotated = j < sizes.pairs
        cos = bind(tirx.Select(rotated, head.rotary[head.step, pair, 0], f32(1.0)))
        sin = bind(tirx.Select(rotated, head.rotary[head.step, pair, 1], f32(0.0)))
        put(j, low * cos - high * sin)
        put(j + half, high * cos + low * sin)
