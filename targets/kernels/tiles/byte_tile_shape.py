"""How a block of warps divides a tile of packed x by a tile of W in matrices of bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemma4_compile.operators.activation_quantization import GROUP, WORD
from gemma4_compile.operators.types import IndexT
from gemma4_compile.targets.byte_tile_tuning import ByteTile
from gemma4_compile.targets.kernels.tiles.tensor_cores import PIECE_WORDS, WARP, M, N
from gemma4_compile.targets.spec import TargetSpec

GROUP_WORDS = GROUP // WORD
GROUP_PIECES = GROUP_WORDS // PIECE_WORDS
PIECE_BYTES, ITEM_BYTES = 16, 4
BANK_PIECES = 8  # that lie side by side in the banks of shared memory
MOST_GROUPS = 4  # of a step: a row's bytes then fill a line of the cache


@dataclass(frozen=True)
class ByteTileShape:
    """Division of a block's work.

    Attributes
    ----------
    rows, columns : rows of x and of W that a block multiplies
    part_rows, part_columns : of them, one warp's; multiples of 32 and of 16
    groups : of a step, of 32 channels each: 2 or 4
    minima : whether each row of W has an offset beside the scale
    scaled : whether each row and group has a scale
    stages : of shared memory; with two of them one is multiplied while the next one is written
    blocks : that a multiprocessor is to hold, by their registers
    """

    rows: int
    columns: int
    part_rows: int
    part_columns: int
    groups: int = 2
    minima: bool = False
    scaled: bool = True
    stages: int = 2
    blocks: int = 1

    def __post_init__(self) -> None:
        assert self.rows % self.part_rows == 0 == self.columns % self.part_columns, "whole parts"
        sizes = self.part_rows % (2 * M), self.part_columns % (2 * N)
        assert sizes == (0, 0), "operands and a lane's scales come in fours"
        assert self.row_pieces in (BANK_PIECES // 2, BANK_PIECES), "rows fill the banks"

    @classmethod
    def of(
        cls, size: ByteTile, cols: int, limit: int, minima: bool = False, scaled: bool = True
    ) -> ByteTileShape:
        """The shape by some sizes, for rows of so many channels, within a limit of shared bytes."""
        own = size.rows, size.columns, size.part_rows, size.part_columns
        groups = MOST_GROUPS if cols % (MOST_GROUPS * GROUP) == 0 else MOST_GROUPS // 2
        shape = cls(*own, groups, minima=minima, scaled=scaled, blocks=size.blocks)
        return shape if shape.shared_bytes <= limit else replace(shape, stages=1)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows // self.part_rows * (self.columns // self.part_columns) * WARP

    @property
    def group(self) -> int:
        """Words that have a scale for each row, 0 if none."""
        return GROUP_WORDS if self.scaled else 0

    @property
    def depth(self) -> int:
        """Words of a step."""
        return self.groups * GROUP_WORDS

    @property
    def row_pieces(self) -> int:
        """Pieces of 16 bytes of a row in shared memory."""
        return self.groups * GROUP_PIECES

    @property
    def stage_pieces(self) -> int:
        """Pieces of both tiles of a step."""
        return (self.rows + self.columns) * self.row_pieces

    @property
    def stage_scales(self) -> int:
        """Float32 of both tiles of a step: one a row and group, and offsets of W."""
        count = (self.rows + self.columns) * self.scaled + self.columns * self.minima
        return count * self.groups

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        stage = self.stage_pieces * PIECE_BYTES + self.stage_scales * ITEM_BYTES
        return self.stages * stage

    def place(self, row: IndexT, piece: IndexT) -> IndexT:
        """Where a row's piece lies within its tile.

        Neighbouring rows have their pieces in other orders, so that eight rows' pieces of the same
        channels lie in different banks, and so do the pieces of neighbouring rows.
        """
        by_rows = BANK_PIECES // self.row_pieces
        twist = (row // by_rows) % self.row_pieces
        return row * self.row_pieces + (piece ^ twist)

    def fits(self, spec: TargetSpec) -> bool:
        """Return whether a target has room for a block."""
        fits = self.shared_bytes <= spec.max_shared_memory_bytes
        return fits and self.threads <= spec.max_threads_per_block
