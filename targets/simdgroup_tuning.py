"""Sizes of kernels in Metal's simdgroup matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class SimdgroupTuning:
    """Tiles of Metal's simdgroup matrices; all are multiples of 8.

    Attributes
    ----------
    rows, columns, depth : rows of x, rows of W and channels of a threadgroup's step
    part_rows, part_columns : of them, one simdgroup's
    expert_columns : rows of W of a threadgroup, of a chunk's experts
    keys : of a tile of a chunk's attention
    direct_queries : whether such an attention takes q as matrices straight from its tensor, where
        its rows lie evenly
    """

    rows: int = 64
    columns: int = 64
    depth: int = 32
    part_rows: int = 32
    part_columns: ClassVar[int] = 32
    expert_columns: int = 128
    keys: int = 64
    direct_queries: bool = False
