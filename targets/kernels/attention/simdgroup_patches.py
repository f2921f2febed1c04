"""Attention of a picture's patches in Metal's simdgroup matrices.

Definition: `PatchAttention` in operators/vision_attention.py. Each head is a threadgroup's of its
own. The work on a tile: simdgroup_block.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.tir import bind, function, i32, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.operators.vision_attention import PatchAttention
from gemma4_compile.targets.kernels.attention.patch_operands import patch_operands
from gemma4_compile.targets.kernels.attention.simdgroup_block import (
    AttentionOperands,
    SimdgroupAttention,
    hide_unless,
)
from gemma4_compile.targets.kernels.attention.simdgroup_shape import head_division
from gemma4_compile.targets.kernels.common.blocks import launch, shared
from gemma4_compile.targets.kernels.tiles.loaders import VECTOR
from gemma4_compile.targets.spec import TargetSpec


def fits_simdgroups(operator: PatchAttention, spec: TargetSpec) -> bool:
    """Return whether patches have `make_simdgroup_patch_attention`."""
    return head_division(operator.head_dim).fits(spec)


class _Padding:
    """No row sees a key of padding; found once for a tile."""

    def __init__(self, keys: int, positions: Buffer, patches: int, thread: Expr, end: Expr) -> None:
        self._keys, self._positions, self._patches = keys, positions, patches
        self._thread, self._end = thread, end
        self._seen = shared((keys,), "int32")

    def prepare(self, base: Expr) -> None:
        """See `Mask`."""
        with when(self._thread < self._keys):
            key = bind(base + self._thread)
            block = bind(tirx.truncdiv(tirx.min(key, self._end - 1), self._patches))
            is_seen = (key < self._end) & (self._positions[block, 0] >= 0)
            store(self._seen, tirx.Select(is_seen, i32(1), i32(0)), self._thread)

    def hide(self, base: Expr, numbers: Sequence[Expr], own: Buffer) -> None:
        """See `Mask`."""
        for index, number in enumerate(numbers):
            seen = [self._seen[number * VECTOR + c] > 0 for c in range(VECTOR)]
            hide_unless(seen, own, index)


def make_simdgroup_patch_attention(operator: PatchAttention, _spec: TargetSpec) -> tirx.PrimFunc:
    """Grid: heads x patches / rows of a block. Shared: as `make_simdgroup_chunk_attention`.

    Reference: `PatchAttention.definition`.
    """
    shape, dim = head_division(operator.head_dim), operator.head_dim
    with function(scheduled=True) as build:
        args = patch_operands(build, operator)
        tiles = tirx.floordiv(args.rows + (shape.rows - 1), shape.rows)
        with launch(shape.threads, operator.heads, tiles) as (head, tile, thread):
            end, first = bind(i32(args.rows)), bind(i32(tile) * shape.rows)

            def place(row: Expr) -> tuple[Expr, Expr]:
                return materialize(tirx.min(first + row, end - 1)), bind(head * dim)

            operands = AttentionOperands(
                args.q, args.key, args.value, head, operator.cache.row, place
            )
            block = SimdgroupAttention(shape, operands, thread)
            mask = _Padding(shape.keys, args.positions, operator.pooling**2, thread, end)
            block.read_scored(i32(0), i32(0), end - 1)
            with T.serial(0, tirx.floordiv(end + (shape.keys - 1), shape.keys)) as step:
                block.add_tile(materialize(step * shape.keys), end - 1, mask)
            block.finish(args.out, end - first)
    return build.result
