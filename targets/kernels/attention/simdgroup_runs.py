"""Attention in simdgroup matrices where each row sees a run of keys.

The work on a tile: simdgroup_block.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.tir import bind, i32, materialize, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.attention.simdgroup_block import SimdgroupAttention, hide_unless
from gemma4_compile.targets.kernels.tiles.loaders import VECTOR

Run = tuple[Expr, Expr]  # the first key, and the one after the last


class _Runs:
    """A row sees a run of keys.

    Parameters
    ----------
    seen : first key and the one after the last of the thread's row
    seen_by_first, seen_by_last : the same of the block's first row and of its last one
    """

    def __init__(
        self,
        keys: int,
        seen: Run,
        seen_by_first: Run,
        seen_by_last: Run,
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
                seen = [(key + c >= first) & (key + c < end) for c in range(VECTOR)]
                hide_unless(seen, own, index)


def attend_to_runs(
    block: SimdgroupAttention, seen: Callable[[Expr], Run], out: Buffer, end: Expr
) -> None:
    """Go through the keys from the first that the block's first row sees to the last one's last.

    Parameters
    ----------
    seen : by a row of the block; neither end falls from a row to the next
    end : rows of the block that there are
    """
    shape = block.shape
    seen_by_first, seen_by_last = seen(i32(0)), seen(i32(shape.rows - 1))
    mask = _Runs(shape.keys, seen(block.own_row), seen_by_first, seen_by_last)
    first, after = seen_by_first[0], seen_by_last[1]
    last = bind(after - 1)
    block.read_scored(i32(0), first, last)
    with T.serial(0, tirx.floordiv(after - first + (shape.keys - 1), shape.keys)) as step:
        block.add_tile(materialize(first + step * shape.keys), last, mask)
    block.finish(out, end)
