"""Sizes of the matmuls of packed rows by warpgroups; see tuning.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WarpgroupTuning:
    """Matrix times the packed rows of a chunk by warpgroups.

    Attributes
    ----------
    min_rows : of x; fewer have the kernel of warps
    matrix_rows : of W, from which on a matrix is taken: smaller ones have too few tiles
    multiprocessors : of the GPU, one block each at a time
    chunk : rows that a prompt's chunk mostly has
    tiles : rows of x of a block, and how long that takes, of the widest one's 256
    """

    min_rows: int = 192
    matrix_rows: int = 3072
    multiprocessors: int = 132
    chunk: int = 512
    tiles: tuple[tuple[int, int], ...] = ((256, 256), (192, 188), (128, 139))

    def tile(self, columns: int) -> int:
        """Rows of x of a block, of a matrix of so many blocks."""

        def time(tile: tuple[int, int]) -> int:
            rows, own = tile
            blocks = -(-self.chunk // rows) * columns
            return -(-blocks // self.multiprocessors) * own

        return min(self.tiles, key=time)[0]
