"""Attention within the texts of a call in Metal's simdgroup matrices.

Definition: `SpanAttention` in operators/packed_texts.py. Rows are those of a chunk: all query heads
of a KV head (group_rows.py).
"""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.packed_texts import SpanAttention
from gemma4_compile.operators.tir import bind, function, i32, materialize
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.attention.group_rows import GroupRows
from gemma4_compile.targets.kernels.attention.prefill import PrefillOperands
from gemma4_compile.targets.kernels.attention.simdgroup_block import (
    AttentionOperands,
    SimdgroupAttention,
)
from gemma4_compile.targets.kernels.attention.simdgroup_runs import Run, attend_to_runs
from gemma4_compile.targets.kernels.attention.simdgroup_shape import (
    SimdgroupAttentionShape,
    chunk_division,
)
from gemma4_compile.targets.kernels.common.blocks import launch
from gemma4_compile.targets.spec import TargetSpec


def fits_simdgroups(operator: SpanAttention, spec: TargetSpec) -> bool:
    """Return whether an encoder's attention has `make_simdgroup_span_attention`."""
    return _division(operator, spec).fits(spec)


def _division(operator: SpanAttention, spec: TargetSpec) -> SimdgroupAttentionShape:
    return chunk_division(operator.head_dim, operator.heads // operator.kv_heads, spec)


def make_simdgroup_span_attention(operator: SpanAttention, spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: KV heads x rows of a KV head / rows of a block. Shared: as a chunk's.

    Reference: `SpanAttention.definition`.
    """
    shape, dim = _division(operator, spec), operator.head_dim
    n, width, group = (
        symbolic_rows(None),
        operator.heads * dim,
        operator.heads // operator.kv_heads,
    )
    with function(scheduled=True) as build:
        spans = build.arg("spans", (n, 2), "int32")
        q = build.arg("q", (n, width), "float32")
        key, value = (
            build.arg(name, (n, operator.kv_heads, dim), operator.cache_dtype)
            for name in ("key", "value")
        )
        out = build.arg("out", (n, width), operator.out_dtype)
        tiles = tirx.floordiv(n * group + (shape.rows - 1), shape.rows)
        with launch(shape.threads, operator.kv_heads, tiles) as (g, tile, thread):
            first_row = bind(i32(tile) * shape.rows)
            first_token = bind(tirx.floordiv(first_row, group))
            args = PrefillOperands(
                q, key, value, g * group, g, first_token, bind(i32(n) - 1), i32(0)
            )
            rows = GroupRows(operator, args)

            def place(row: Expr) -> tuple[Expr, Expr]:
                return rows.token(first_row + row), bind(rows.head(first_row + row) * dim)

            def seen(row: Expr) -> Run:
                first, end = operator.seen(spans, rows.token(first_row + row))
                return materialize(first), materialize(end)

            operands = AttentionOperands(q, key, value, g, operator.cache.row, place)
            block = SimdgroupAttention(shape, operands, thread)
            attend_to_runs(block, seen, out, i32(n) * group - first_row)
    return build.result
