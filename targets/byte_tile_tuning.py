"""Sizes of the matmuls of packed rows on tensor cores; see tuning.py."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ByteTile:
    """A tile of packed rows on tensor cores.

    Attributes
    ----------
    rows, columns : rows of x and of W of a block
    part_rows, part_columns : of them, one warp's; multiples of 32 and of 16
    blocks : that a multiprocessor is to hold, by their registers
    """

    rows: int = 64
    columns: int = 128
    part_rows: int = 64
    part_columns: int = 32
    blocks: int = 3


@dataclass(frozen=True)
class ByteTileTuning:
    """Matrix times the packed rows of a chunk on tensor cores, by the rows of W.

    Attributes
    ----------
    narrow, wide : tiles of a matrix
    narrow_to : rows of W up to which a matrix is narrow
    experts : tile of one expert, of as many rows as `PermuteByExpert` gives one
    """

    narrow: ByteTile = field(default_factory=lambda: ByteTile(64, 64, 32, 32, 3))
    wide: ByteTile = field(default_factory=ByteTile)
    narrow_to: int = 2560
    experts: ByteTile = field(default_factory=lambda: ByteTile(32, 128, 32, 32, 3))

    def tile(self, rows: int) -> ByteTile:
        """Tile of a matrix of so many rows."""
        return self.narrow if rows <= self.narrow_to else self.wide
