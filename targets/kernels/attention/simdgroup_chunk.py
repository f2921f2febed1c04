"""Attention of a prefill chunk in Metal's simdgroup matrices.

Definition: `PrefillAttention` in operators/attention.py. All query heads of a KV head are rows, so
that a tile of its keys is read once for all of them. The work on a tile: simdgroup_block.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import bind, function, i32, materialize, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.attention.group_rows import GroupArguments
from gemma4_compile.targets.kernels.attention.simdgroup_block import (
    AttentionOperands,
    SimdgroupAttention,
)
from gemma4_compile.targets.kernels.attention.simdgroup_shape import chunk_division
from gemma4_compile.targets.kernels.common.blocks import launch
from gemma4_compile.targets.kernels.tiles.loaders import VECTOR, joined, lane_of, put, vector
from gemma4_compile.targets.spec import TargetSpec


def fits_simdgroups(operator: PrefillAttention, spec: TargetSpec) -> bool:
    """Return whether a chunk's attention has `make_simdgroup_chunk_attention`.

    Keys in parts are left to the other kernel, which takes up the sums of the part before.
    """
    is_exact = not operator.rounds_to_halves and operator.part.is_whole
    return is_exact and chunk_division(operator.head_dim).fits(spec)


class _Run:
    """A row sees a run of keys.

    Parameters
    ----------
    seen : first key and the one after the last of the thread's row
    seen_by_first, seen_by_last : the same of the block's first row and of its last one
    """

    def __init__(
        self,
        keys: int,
        seen: tuple[Expr, Expr],
        seen_by_first: tuple[Expr, Expr],
        seen_by_last: tuple[Expr, Expr],
    ) -> None:
        self._keys, self._seen = keys, seen
        # Neither end falls from a row to the next.
        self._begin_of_all, self._end_of_all = seen_by_last[0], seen_by_first[1]

    def prepare(self, base: Expr) -> None:
        """See `Mask`."""

    def hide(self, base: Expr, numbers: Sequence[Expr], own: Buffer) -> None:
        """See `Mask`."""
        first, end = self._seen
        with when((base < self._begin_of_all) | (base + self._keys > self._end_of_all)):
            for index, number in enumerate(numbers):
                key = bind(base + number * VECTOR)
                four = vector(own, index)
                kept = [
                    tirx.Select((key + c >= first) & (key + c < end), lane_of(four, c), f32(LOWEST))
                    for c in range(VECTOR)
                ]
                put(own, index, joined(kept))


def make_simdgroup_chunk_attention(operator: PrefillAttention, _spec: TargetSpec) -> tirx.PrimFunc:
    """Causal (and sliding) attention of all positions of a chunk, and that of pictures.

    Grid: KV heads x rows of a KV head / rows of a block; those with the most keys begin first.
    Shared: scores of a tile, a step of queries and keys or one of values, diagonal matrices.
    Reference: `PrefillAttention.definition`.
    """
    shape, dim = chunk_division(operator.head_dim), operator.head_dim
    with function(scheduled=True) as build:
        args = GroupArguments.declare(build, operator)
        grid = operator.kv_heads, args.tiles(shape.rows)
        with launch(shape.threads, *grid) as (g, turn, thread):
            rows, first_row, end_row = args.rows_of(g, turn, shape.rows)

            def place(row: Expr) -> tuple[Expr, Expr]:
                return rows.token(first_row + row), bind(rows.head(first_row + row) * dim)

            operands = AttentionOperands(args.q, args.key, args.value, g, operator.cache.row, place)
            block = SimdgroupAttention(shape, operands, thread)
            seen_by_first, seen_by_last, seen = (
                rows.seen_by(rows.token(first_row + row))
                for row in (0, shape.rows - 1, block.own_row)
            )
            mask = _Run(shape.keys, seen, seen_by_first, seen_by_last)
            begin, end = seen_by_first[0], seen_by_last[1]
            last = bind(end - 1)
            block.read_scored(i32(0), begin, last)
            with T.serial(0, tirx.floordiv(end - begin + (shape.keys - 1), shape.keys)) as step:
                block.add_tile(materialize(begin + step * shape.keys), last, mask)
            block.finish(args.out, end_row - first_row)
    return build.result
