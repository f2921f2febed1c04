"""Division of an attention block's work where each warp goes over keys of its own."""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.targets.kernels.common.blocks import WARP
from gemma4_compile.targets.kernels.common.vectors import Vectors
from gemma4_compile.targets.kernels.tiles.tensor_cores import PIECE
from gemma4_compile.targets.spec import TargetSpec

WARP_CHANNELS = WARP * PIECE  # of a key, which a warp reads at once
QUAD = 4
USUAL_ROWS = 4  # of a step of several sequences
FEWEST_JOINT = 2
MANY_BLOCKS = 256  # of a row, for which blocks are of half the threads, and twice as many resident
MOST_MERGED = 16 * 1024  # bytes of warps' sums that lie in shared memory at a time


@dataclass(frozen=True)
class WarpShape:
    """Division of a block's work.

    Attributes
    ----------
    threads : of the block
    heads : query heads of the block, all of one KV head; a power of two
    keys : of a tile of one warp, a power of two: each lane has 8 channels of all of them, or more
    pieces : times 8 channels that a lane has of a key
    resident : blocks that a multiprocessor is to hold
    rows : of several sequences from which on there are enough blocks for it
    """

    threads: int
    heads: int
    keys: int
    pieces: int
    resident: int
    rows: int

    @property
    def vectors(self) -> Vectors:
        """Of four channels, as queries and results lie."""
        return Vectors(QUAD)

    @property
    def warps(self) -> int:
        """Warps of the block."""
        return self.threads // WARP

    @property
    def query_width(self) -> int:
        """Channels of a head."""
        return self.pieces * WARP_CHANNELS

    @property
    def columns(self) -> int:
        """Vectors of a key."""
        return self.query_width // self.vectors.size

    @property
    def padding(self) -> int:
        """Vectors of zeros after a query head: none."""
        return 0

    @property
    def scores(self) -> int:
        """Scores of a tile, of which each lane has one in the end."""
        return self.heads * self.keys

    @property
    def merged_heads(self) -> int:
        """Heads whose sums all warps write to shared memory at a time."""
        most = MOST_MERGED // (4 * self.warps * self.query_width)
        return next(n for n in range(min(self.heads, most), 0, -1) if self.heads % n == 0)


def warp_shape(operator: SplitAttention, spec: TargetSpec) -> WarpShape | None:
    """The shape with the most heads; None where the target or such rows have no such kernel.

    Those of one position have none: alone it is faster, but not in a step, whose kernels begin
    before those ahead of them have ended.

    Fewer heads where the blocks would be too few to fill the device.
    """
    tuning, group = spec.tuning.decode_attention, operator.heads // operator.kv_heads
    pieces, rest = divmod(operator.head_dim, WARP_CHANNELS)
    is_fit = spec.simd_width == WARP and operator.cache_dtype == "float16" and not rest
    if not (tuning.warp_keys and is_fit and operator.part.is_whole and operator.is_joint):
        return None
    most = max(1, tuning.warp_sums // (PIECE * pieces))
    counts = [n for n in (1, 2, 4, 8, 16) if group % n == 0 and n <= most]
    blocks, aim = operator.splits * operator.heads, spec.tuning.few_rows.attention_blocks
    fills = [n for n in counts if USUAL_ROWS * blocks // n >= aim]
    heads = max(fills, default=1)
    keys = min(max(1, tuning.warp_keys // pieces), WARP // heads)
    by = 2 if blocks // heads >= MANY_BLOCKS else 1
    threads = max(tuning.warp_threads // by, operator.head_dim // QUAD)  # each writes a vector
    rows = -(-aim * heads // blocks)
    return WarpShape(threads, heads, keys, pieces, tuning.warp_resident * by, rows)
