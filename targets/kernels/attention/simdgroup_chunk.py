"""Attention of a prefill chunk in Metal's simdgroup matrices.

Definition: `PrefillAttention` in operators/attention.py. All query heads of a KV head are rows, so
that a tile of its keys is read once for all of them. The work on a tile: simdgroup_block.py.
"""

from __future__ import annotations

from tvm import tirx

from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.tir import bind, function
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.attention.group_rows import GroupArguments
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


def fits_simdgroups(operator: PrefillAttention, spec: TargetSpec) -> bool:
    """Return whether a chunk's attention has `make_simdgroup_chunk_attention`.

    Keys in parts are left to the other kernel, which takes up the sums of the part before.
    """
    is_exact = not operator.rounds_to_halves and operator.part.is_whole
    return is_exact and _division(operator, spec).fits(spec)


def _division(operator: PrefillAttention, spec: TargetSpec) -> SimdgroupAttentionShape:
    return chunk_division(operator.head_dim, operator.heads // operator.kv_heads, spec)


def make_simdgroup_chunk_attention(operator: PrefillAttention, spec: TargetSpec) -> tirx.PrimFunc:
    """Causal (and sliding) attention of all positions of a chunk, and that of pictures.

    Grid: KV heads x rows of a KV head / rows of a block; those with the most keys begin first.
    Shared: scores of a tile, a step of queries and keys or one of values, diagonal matrices.
    Reference: `PrefillAttention.definition`.
    """
    shape, dim = _division(operator, spec), operator.head_dim
    with function(scheduled=True) as build:
        args = GroupArguments.declare(build, operator)
        grid = operator.kv_heads, args.tiles(shape.rows)
        with launch(shape.threads, *grid) as (g, turn, thread):
            rows, first_row, end_row = args.rows_of(g, turn, shape.rows)

            def place(row: Expr) -> tuple[Expr, Expr]:
                return rows.token(first_row + row), bind(rows.head(first_row + row) * dim)

            def seen(row: Expr) -> Run:
                return rows.seen_by(rows.token(first_row + row))

            operands = AttentionOperands(args.q, args.key, args.value, g, operator.cache.row, place)
            block = SimdgroupAttention(shape, operands, thread)
            attend_to_runs(block, seen, args.out, end_row - first_row)
    return build.result
