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


@dataclass(frozen=True)
class ShortChunkTuning:
    """Matrix times the packed rows of a short chunk, or of a long one's rest, on tensor cores.

    Attributes
    ----------
    rows : of x that a block takes, with more than 16; 0 where tiles have all chunks
    most_rows : of such a chunk, at most
    narrow_most_rows, narrow_to : the same of a matrix of up to so many rows, which has fewer tiles
        than the device has multiprocessors
    expert_rows : of x for each expert, on average, up to which experts have such a kernel
    multiprocessors : among which blocks are to be spread evenly
    divides_keys : whether attention divides its keys among blocks where they are few (ADR 0058)
    warps, expert_warps : of a multiprocessor, by the registers of a lane
    idle : exponent of the share of them that there are, by which fewer take longer
    few_warps : with fewer of them it takes longer still
    rows_share : what x takes in a step, in tiles' products
    wave : between blocks that follow each other, in tiles' products of a warp's step
    """

    rows: int = 0
    most_rows: int = 0
    narrow_most_rows: int = 0
    narrow_to: int = 0
    expert_rows: int = 0
    multiprocessors: int = 1
    divides_keys: bool = False
    warps: int = 12
    expert_warps: int = 8
    idle: float = 0.2
    few_warps: int = 6
    rows_share: float = 1.0
    wave: float = 0.0
