"""Matmuls of a few rows whose weights come by stages of shared memory, matrix by matrix."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StagedTuning:
    """Matrices for which it is faster, and their blocks; numbers of one GPU, which its file has.

    Attributes
    ----------
    blocks : of each matrix rows, channels and bits, then of its block tiles of 8 rows of a warp,
        warps that divide the channels, bands of tiles, blocks of a multiprocessor, stages, and 1
        where rows of x come step by step
    """

    blocks: tuple[tuple[int, ...], ...] = ()

    def block(self, rows: int, channels: int, bits: int) -> tuple[int, ...] | None:
        """What `blocks` says of a matrix."""
        matrix = rows, channels, bits
        return next((block[3:] for block in self.blocks if block[:3] == matrix), None)
