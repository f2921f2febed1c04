"""Division of a chunk's attention among the subgroups of a block, in WebGPU's matrices."""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.targets.kernels.common.blocks import power_of_two_at_most
from gemma4_compile.targets.kernels.tiles.subgroup_matrices import (
    PIECE_BYTES,
    SIDE,
    SUBGROUP,
    SUM_PIECE,
    has_subgroup_matrices,
)
from gemma4_compile.targets.kernels.tiles.tensor_cores import PIECE
from gemma4_compile.targets.spec import TargetSpec

LARGEST_HEAD = 512  # channels
CHANNELS = 128  # of a row's sums in one subgroup, at most: 64 registers of a thread
KEYS = 32  # of a tile, at most
ROWS, MANY_HEADS = 64, 16  # of a block, of models with at least so many query heads
FEW_ROWS = 32  # of others, whose chunks would have too few blocks
SCORE_PADDING = 2  # pieces after each row of scores: so rows begin in different banks


@dataclass(frozen=True)
class SubgroupChunkShape:
    """Division of a block's work: a group of subgroups has sixteen rows, and shares their channels.

    Attributes
    ----------
    rows : of a block, each a query head at a position
    dim : channels of a head
    parts : subgroups of a group, each with as many channels of the results
    keys : of a tile
    """

    rows: int
    dim: int
    parts: int
    keys: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows // SIDE * self.parts * SUBGROUP

    @property
    def channels(self) -> int:
        """Channels of the results that one subgroup sums."""
        return self.dim // self.parts

    @property
    def key_parts(self) -> int:
        """Subgroups of a group that score different keys of a tile, sixteen or more each."""
        counts = range(self.parts, 0, -1)
        return next(n for n in counts if self.parts % n == 0 and self.keys % (n * SIDE) == 0)

    @property
    def score_parts(self) -> int:
        """Subgroups of a group that score the same keys, each in some of the channels."""
        return self.parts // self.key_parts

    @property
    def score_channels(self) -> int:
        """Channels of the queries that a subgroup multiplies by its keys."""
        return self.dim // self.score_parts

    @property
    def score_keys(self) -> int:
        """Keys of a tile that a subgroup scores."""
        return self.keys // self.key_parts

    @property
    def sharing(self) -> int:
        """Neighbouring threads that make the weights of a row: pieces of weights each."""
        return min(self.keys // PIECE, power_of_two_at_most(self.threads // self.rows))

    @property
    def row_pieces(self) -> int:
        """Pieces of a row of K or V."""
        return self.dim // PIECE

    @property
    def pitch(self) -> int:
        """Pieces from a row of a tile to the next: no two of 8 share banks."""
        return self.row_pieces + 1

    @property
    def score_pitch(self) -> int:
        """Pieces from a row of scores to the next."""
        return self.keys // SUM_PIECE + SCORE_PADDING

    @property
    def weight_pitch(self) -> int:
        """Pieces from a row of weights to the next."""
        return self.keys // PIECE + 1

    @property
    def shared_bytes(self) -> int:
        """Shared memory: a tile, parts of scores, weights, and what rescales rows."""
        scores = self.score_parts * self.rows * self.score_pitch
        pieces = self.keys * self.pitch + scores + self.rows * self.weight_pitch
        return PIECE_BYTES * pieces + 4 * (self.rows + self.rows // SIDE + 1)

    def fits(self, spec: TargetSpec) -> bool:
        """Return whether the target's blocks are large enough."""
        within = self.shared_bytes <= spec.max_shared_memory_bytes
        return within and self.threads <= spec.max_threads_per_block


def subgroup_chunk_shape(dim: int, heads: int, spec: TargetSpec) -> SubgroupChunkShape | None:
    """The most rows, and keys of a tile, that a block holds; None where it holds none."""
    sixteens = dim // SIDE
    if dim % SIDE:
        return None
    counts = (n for n in range(1, sixteens + 1) if sixteens % n == 0 and dim // n <= CHANNELS)
    parts = next(counts)
    rows = ROWS if heads >= MANY_HEADS else FEW_ROWS
    while rows >= SIDE:
        keys = KEYS
        while keys >= SIDE:
            shape = SubgroupChunkShape(rows, dim, parts, keys)
            if shape.fits(spec):
                return shape
            keys //= 2
        rows //= 2
    return None


def subgroup_chunk_heads(spec: TargetSpec) -> tuple[int, ...]:
    """Channels of the heads that a block holds: multiples of 32."""
    every = range(2 * SIDE, LARGEST_HEAD + 1, 2 * SIDE)
    return tuple(dim for dim in every if subgroup_chunk_shape(dim, 1, spec) is not None)


def fits_subgroup_matrices(operator: PrefillAttention, spec: TargetSpec) -> bool:
    """Return whether the target has them, and operands are rounded to what they multiply."""
    if not has_subgroup_matrices(spec) or not operator.rounds_to_halves:
        return False
    return subgroup_chunk_shape(operator.head_dim, operator.heads, spec) is not None
