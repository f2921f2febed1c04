"""Division of an attention block's work where its warps divide the channels, on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.targets.kernels.common.blocks import WARP
from gemma4_compile.targets.kernels.common.vectors import Vectors
from gemma4_compile.targets.kernels.tiles.tensor_cores import PIECE, N
from gemma4_compile.targets.spec import TargetSpec

LANES = 4  # that have the scores of one head
KEY_CHANNELS = LANES * PIECE  # of eight keys, which a warp reads at once
VALUE_CHANNELS = WARP // LANES * PIECE  # of four keys' values
QUAD = 4

# Measured on an H200: docs/reports/performance.md, "Attention of several sequences".
CHANNELS, KEYS = 64, 16
RESIDENT_WARPS = 16  # that registers are left for


@dataclass(frozen=True)
class TensorCoreDecodeShape:
    """Division of a block's work.

    Attributes
    ----------
    heads : query heads of the block, all of one KV head, at most eight
    warps : that divide the channels
    channels : of a warp, a multiple of 64
    keys : of a tile, a multiple of 16
    resident : blocks that a multiprocessor is to hold
    """

    heads: int
    warps: int
    channels: int
    keys: int
    resident: int

    @property
    def threads(self) -> int:
        """Threads of the block."""
        return self.warps * WARP

    @property
    def vectors(self) -> Vectors:
        """Of four channels, as queries lie."""
        return Vectors(QUAD)

    @property
    def query_width(self) -> int:
        """Channels of a head."""
        return self.warps * self.channels

    @property
    def columns(self) -> int:
        """Vectors of a key."""
        return self.query_width // QUAD

    @property
    def padding(self) -> int:
        """Vectors of zeros after a query head: none."""
        return 0


def tensor_core_decode_shape(
    operator: SplitAttention, spec: TargetSpec
) -> TensorCoreDecodeShape | None:
    """The shape; None where the target or such rows have no such kernel."""
    least, dim = spec.tuning.decode_attention.matrix_head_dim, operator.head_dim
    # A row's norm is of whole warps, of which each thread has a vector of either half.
    fits = 0 < least <= dim and dim % CHANNELS == 0 and dim % (2 * QUAD * WARP) == 0
    is_of_cache = operator.cache_dtype == "float16" and operator.part.is_whole
    is_meant = operator.is_one or operator.is_joint
    if not (spec.tensor_cores and fits and is_of_cache and is_meant):
        return None
    group, warps = operator.heads // operator.kv_heads, dim // CHANNELS
    heads = next(n for n in range(min(group, N), 0, -1) if group % n == 0)
    return TensorCoreDecodeShape(heads, warps, CHANNELS, KEYS, max(1, RESIDENT_WARPS // warps))
