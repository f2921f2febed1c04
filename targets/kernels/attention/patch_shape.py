"""Division of the work of a block of patches' queries, by head, tuning and limits.

The kernel: tiled_patches.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_compile.operators.vision_attention import PatchAttention
from gemma4_compile.targets.kernels.tiles.loaders import VECTOR
from gemma4_compile.targets.kernels.tiles.products import LANES_N
from gemma4_compile.targets.spec import TargetSpec

HALF, FLOAT = "float16", "float32"
ROWS = THREADS = 64
LANES = LANES_N  # threads that share 8 queries
OWN = 8  # queries of a thread
PARTS = OWN // VECTOR
ROW_VECTORS = ROWS // VECTOR
SINGLES_KEYS = 32  # of a tile, at most, where a thread has single channels
EXCHANGED = 16  # neighbouring threads among which those that share queries are


@dataclass(frozen=True)
class HeadShape:
    """Division of a head's channels over 8 threads: vectors each, and what is left over singly.

    Attributes
    ----------
    dim : channels
    keys : of a tile
    unroll : see `PatchAttentionTuning`
    exchanges : whether threads exchange values in subgroups
    """

    dim: int
    keys: int
    unroll: int
    exchanges: bool

    @property
    def vec4s(self) -> int:
        """Vectors of a head."""
        return self.dim // VECTOR

    @property
    def vectors(self) -> int:
        """Vectors of a thread."""
        return self.vec4s // LANES

    @property
    def singles(self) -> int:
        """Single channels of a thread, after all vectors."""
        return self.dim // LANES - self.vectors * VECTOR

    @property
    def key_parts(self) -> int:
        """Vectors of keys that a thread scores."""
        return self.keys // (LANES * VECTOR)

    @property
    def shared_keys(self) -> int:
        """Items of a tile of keys, or of its weights."""
        return self.keys * max(self.dim, ROWS)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        halves = ROWS * self.dim + self.shared_keys + self.keys * self.dim
        return 2 * halves + (0 if self.exchanges else 4 * ROWS * LANES)


def head_shape(operator: PatchAttention, spec: TargetSpec) -> HeadShape | None:
    """Return the tuned division, or None where tiles do not fit or another kernel is tuned."""
    tuning, dim = spec.tuning.patch_attention, operator.head_dim
    if not tuning.keys or dim % LANES or operator.cache_dtype != HALF:
        return None
    exchanges = "subgroups" in spec.features and spec.simd_width >= EXCHANGED
    # Heads with single channels need more registers: measured, 64 keys take half as long again.
    keys = tuning.keys if dim % (LANES * VECTOR) == 0 else min(tuning.keys, SINGLES_KEYS)
    shape = HeadShape(dim, keys, tuning.unroll, exchanges)
    return shape if shape.shared_bytes <= spec.max_shared_memory_bytes else None
