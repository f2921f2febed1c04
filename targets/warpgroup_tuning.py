"""Sizes of the matmuls of packed rows by warpgroups; see tuning.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WarpgroupTuning:
    """Matrix times the packed rows of a chunk by warpgroups.

    Attributes
    ----------
    min_rows : of x; fewer have the kernel of warps
    few_rows : the same of weights for which that one takes longer: with minima, of 6 bits
    matrix_rows : of W, from which on a matrix is taken: smaller ones have too few tiles
    multiprocessors : of the GPU, one block each at a time
    chunk : rows that a prompt's chunk mostly has
    tiles : rows of x of a block, and how long that takes, of the widest one's 256
    """

    min_rows: int = 65
    few_rows: int = 33
    matrix_rows: int = 3072
    multiprocessors: int = 132
    chunk: int = 512
    tiles: tuple[tuple[int, int], ...] = ((256, 256), (192, 208), (128, 155))

    def tile(self, columns: int) -> int:
        """Rows of x of a block, of a matrix of so many blocks."""
        return min(self.tiles, key=lambda tile: self._time(tile, columns, self.chunk))[0]

    def small_tile(self, columns: int) -> tuple[int, int]:
        """Rows of x of a block for fewer rows of x, and up to how many; 0 where none is faster.

        A tenth is what a model of waves alone may be wrong by.
        """
        large, small, most = self.tile(columns), min(self.tiles), 0
        tile = next(tile for tile in self.tiles if tile[0] == large)
        for end in range(small[0], self.chunk + 1, small[0]):
            least = end - small[0] + 1  # for which the larger tile may have fewer blocks
            if 10 * self._time(small, columns, end) > 9 * self._time(tile, columns, least):
                break
            most = end
        return small[0], most

    def _time(self, tile: tuple[int, int], columns: int, count: int) -> int:
        """That of some rows of x."""
        rows, own = tile
        blocks = -(-count // rows) * columns
        return -(-blocks // self.multiprocessors) * own
