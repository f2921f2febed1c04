"""Attention of one position: its keys are split among thread blocks. Flash decoding.

A block goes over its keys for several query heads of one KV head, so that K and V are read once for
all of them. Definitions: `SplitAttention.definition` and `DecodeAttention.definition` in
gemma4_compile/operators/attention.py. The splits are put together in combine.py.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention import DecodeAttention, SplitAttention
from gemma4_compile.operators.attention_splits import LOWEST, declare_splits
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import bind, function, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.attention.decode_block import DecodeBlock
from gemma4_compile.targets.kernels.attention.decode_norms import DecodeNorms
from gemma4_compile.targets.kernels.attention.decode_shape import DecodeShape, decode_shape
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    barrier,
    launch,
    shared,
    strided,
    zero,
)
from gemma4_compile.targets.spec import TargetSpec


def _store_empty(
    operator: SplitAttention,
    shape: DecodeShape,
    o_partial: Buffer,
    split_lse: Buffer,
    split: Expr,
    first: Expr,
    block: Block,
) -> None:
    """The results of a split without keys."""
    vectors = shape.vectors
    with strided(block, shape.heads * shape.columns) as item:
        h, column = tirx.floordiv(item, shape.columns), tirx.floormod(item, shape.columns)
        nothing = vectors.splat(tirx.const(0, operator.cache_dtype))
        store(o_partial, nothing, split, first + h, vectors.at(column))
    with when(block.thread < shape.heads):
        store(split_lse, f32(LOWEST), split, first + block.thread, 0)
        store(split_lse, zero(), split, first + block.thread, 1)


def _slices(operator: SplitAttention, shape: DecodeShape) -> int:
    """Blocks that share the query heads of one KV head."""
    return operator.heads // operator.kv_heads // shape.heads


def make_split_attention(operator: SplitAttention, spec: TargetSpec) -> tirx.PrimFunc:
    """Online softmax over one split's keys, for some query heads of one KV head.

    Grid: splits x heads / heads of a block. Shared: q, the threads' slices of the scores, scores
    and weights. Reference: `SplitAttention.definition`.
    """
    dim, heads, shape = operator.head_dim, operator.heads, decode_shape(operator, spec)
    vectors = shape.vectors
    with function(scheduled=True) as build:
        q = build.arg("q", (1, heads * dim), "float32")
        cache = operator.cache.shape()
        key = build.arg("key", cache, operator.cache_dtype)
        value = build.arg("value", cache, operator.cache_dtype)
        positions = build.arg("positions", (4,), "int32")
        o_partial, split_lse = declare_splits(build, operator, operator.cache_dtype)
        with launch(shape.threads, operator.splits, heads // shape.heads) as (split, part, thread):
            position = materialize(positions[2] - 1)
            begin, end = (materialize(bound) for bound in operator.split_range(position, split))
            g, first = bind(tirx.floordiv(part, _slices(operator, shape))), bind(part * shape.heads)
            block = Block(thread, shape.threads, spec.simd_width)
            attention = DecodeBlock(operator, shape, key, value, block)
            with T.If(begin < end):
                with T.Then():
                    attention.load_keys(begin, end - 1, g)
                    attention.pad_query()
                    with strided(block, shape.heads * shape.columns) as item:
                        h = bind(tirx.floordiv(item, shape.columns))
                        place = bind(tirx.floormod(item, shape.columns))
                        item = q[0, vectors.from_channel((first + h) * dim + place * vectors.size)]
                        store(attention.query, item, h, vectors.at(place))
                    barrier()
                    attention.run(begin, end, end - 1, position, g)
                    attention.finish(o_partial, split_lse, split, first)
                with T.Else():
                    _store_empty(operator, shape, o_partial, split_lse, split, first, block)
    return build.result


def make_decode_attention(operator: DecodeAttention, spec: TargetSpec) -> tirx.PrimFunc:
    """`make_split_attention` with the norms and rotations of q, k and v in front of it.

    Every block makes the new key and value for itself; the first block of the KV head in the split
    that ends with the new position writes them to the cache, which nobody else reads there. Grid
    and shared memory as `make_split_attention`, and the new key and value. Reference:
    `DecodeAttention.definition`.
    """
    dim, heads, owns = operator.head_dim, operator.heads, operator.owns_kv
    shape = decode_shape(operator, spec)
    vectors = shape.vectors
    with function(scheduled=True) as build:
        qkv = build.arg("qkv", (1, operator.columns.width), "float32")
        q_norm = build.arg("q_norm", (dim,), "float32")
        k_norm = build.arg("k_norm", (dim,), "float32") if owns else None
        positions = build.arg("positions", (4,), "int32")
        table = (tirx.Var("chunk", "int64"), operator.rotary_total, 2)
        rotary = build.arg("rotary", table, "float32")
        cache = operator.cache.shape()
        key = build.arg("key", cache, operator.cache_dtype)
        value = build.arg("value", cache, operator.cache_dtype)
        o_partial, split_lse = declare_splits(build, operator, operator.cache_dtype)
        with launch(shape.threads, operator.splits, heads // shape.heads) as (split, part, thread):
            position, step = materialize(positions[2] - 1), materialize(positions[1] - 1)
            begin, end = (materialize(bound) for bound in operator.split_range(position, split))
            slices = _slices(operator, shape)
            g, first = bind(tirx.floordiv(part, slices)), bind(part * shape.heads)
            block = Block(thread, shape.threads, spec.simd_width)
            attention = DecodeBlock(operator, shape, key, value, block)
            if owns:
                dtype = operator.cache_dtype
                attention.new = shared((dim,), dtype), shared((dim,), dtype)
            last = materialize(tirx.max(tirx.min(end, position) - 1, 0)) if owns else end - 1
            norms = DecodeNorms(operator, attention, (qkv, q_norm, k_norm, rotary), step)
            with T.If(begin < end):
                with T.Then():
                    attention.load_keys(begin, last, g)
                    attention.pad_query()
                    norms.run(first, g)
                    attention.run(begin, end, last, position, g)
                    if owns:
                        is_writer = (end == position + 1) & (tirx.floormod(part, slices) == 0)
                        slot = materialize(operator.cache.row(position))
                        with when(is_writer & (thread < shape.columns)):
                            place = vectors.at(thread)
                            for new, target in zip(attention.new or (), (key, value), strict=True):
                                store(target, new[place], slot, g, place)
                    attention.finish(o_partial, split_lse, split, first)
                with T.Else():
                    _store_empty(operator, shape, o_partial, split_lse, split, first, block)
    return build.result
