"""Division of a chunk's attention among the warps of a block, on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_compile.errors import LoweringError
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.divided_attention import DividedAttention
from gemma4_compile.targets.kernels.tiles.tensor_cores import PIECE, SUMS, WARP, K, M, N
from gemma4_compile.targets.spec import TargetSpec

TURNED = 8  # pieces of a row that change places, by the row: no two of 8 rows share banks
LARGEST_HEAD = 512  # channels, with which memory has room for two tiles of 16 keys
LARGEST_PART = 256  # channels of which a thread has registers for 16 queries and 16 results
CHANNELS = TURNED * PIECE  # that a part has a multiple of

# Measured on an H100 and an H200: docs/reports/performance.md, "Attention of prompts".
ROWS, MANY_HEADS = 64, 16  # of a block, of models with at least so many query heads
FEW_ROWS = 32  # of others, whose chunks would have too few blocks
WARPS = 8  # aim: a row's channels are in parts until a block has so many
ENOUGH_CHANNELS = 128  # of a part, which is not divided further
KEYS = 32  # of a tile, at most
MOST_SPLITS = 16  # of the keys of a short chunk


@dataclass(frozen=True)
class TensorCoreChunkShape:
    """Division of a block's work: warps share its rows by sixteen, and a row's channels in parts.

    Attributes
    ----------
    rows : of a block, each a query head at a position
    channels : of a head, that one warp multiplies and sums; a multiple of 64
    parts : warps that share the channels of a row
    keys : of a tile
    """

    rows: int
    channels: int
    parts: int
    keys: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows // M * self.parts * WARP

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return self.channels * self.parts

    @property
    def row_pieces(self) -> int:
        """Pieces of a row of K or V."""
        return self.head_dim // PIECE

    @property
    def tile_pieces(self) -> int:
        """Pieces of a tile of K or V."""
        return self.keys * self.row_pieces

    @property
    def steps(self) -> int:
        """Products of 16 channels that make a warp's part of a score."""
        return self.channels // K

    @property
    def scores(self) -> int:
        """Scores of a thread in a tile."""
        return self.keys // N * SUMS

    @property
    def shared_bytes(self) -> int:
        """Shared memory: a tile of K and one of V, and parts of scores where there are several."""
        tiles = 2 * self.tile_pieces * PIECE * 2
        return tiles + (self.threads * self.scores * 4 if self.parts > 1 else 0)

    def fits(self, spec: TargetSpec) -> bool:
        """Return whether the target's blocks are large enough."""
        within = self.shared_bytes <= spec.max_shared_memory_bytes
        return within and self.threads <= spec.max_threads_per_block


def tensor_core_chunk_shape(operator: PrefillAttention, spec: TargetSpec) -> TensorCoreChunkShape:
    """The most rows, and keys of a tile, that a block holds; LoweringError if none holds any."""
    dim = operator.head_dim
    rows = ROWS if operator.heads >= MANY_HEADS else FEW_ROWS
    while rows >= M:
        parts, keys = _parts(dim, rows // M), KEYS
        while parts and keys >= K:
            shape = TensorCoreChunkShape(rows, dim // parts, parts, keys)
            if shape.fits(spec):
                return shape
            keys //= 2
        rows //= 2
    raise LoweringError(f"`{operator.kind}`: no block of `{spec.name}` holds heads of {dim}")


def divided(operator: PrefillAttention, spec: TargetSpec) -> DividedAttention | None:
    """The operator with memory for splits of the keys; None where no chunk is to divide them.

    100 rows of 8 heads are 25 blocks, each of which would read all of a long context. Where there
    are more heads there are more blocks; a window is soon read; pictures see keys that are later.
    """
    blocks = spec.tuning.short_chunks.multiprocessors
    divides = (
        spec.tuning.short_chunks.divides_keys
        and operator.rounds_to_halves
        and operator.window is None
        and operator.part.is_whole
        and operator.heads < MANY_HEADS
        and not operator.has_copies
        and not operator.sees_pictures
    )
    if not divides or blocks < 2:
        return None
    # Blocks of a chunk * its splits are at most `blocks`, and have that many rows of a head.
    places = blocks * tensor_core_chunk_shape(operator, spec).rows // operator.heads
    return DividedAttention(**vars(operator), blocks=blocks, places=places)


def _parts(dim: int, sixteens: int) -> int:
    """Warps that share the channels of a row: the fewest that there are enough with; 0 if none."""
    counts = [n for n in range(1, dim // CHANNELS + 1) if dim % (n * CHANNELS) == 0]
    possible = [n for n in counts if dim // n <= LARGEST_PART]
    enough = (n for n in possible if n * sixteens >= WARPS or dim // n <= ENOUGH_CHANNELS)
    return next(enough, 0)
