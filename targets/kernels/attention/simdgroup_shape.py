"""Division of an attention among simdgroups that multiply matrices of 8 x 8 float32.

The kernels: simdgroup_block.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_compile.targets.kernels.tiles.loaders import VECTOR
from gemma4_compile.targets.kernels.tiles.products import ITEM_BYTES
from gemma4_compile.targets.kernels.tiles.simdgroup_matrices import SIDE, SIMDGROUP
from gemma4_compile.targets.spec import TargetSpec

MOST_SUMS = 32  # matrices of a simdgroup's results: 64 registers of a thread
MOST_SIMDGROUPS = 8
VALUE_FLOATS = 4352  # of a step's values, about as much as a step's queries and keys take
DEPTHS = (32, 24, 16)  # channels of a step of scores
DIRECT_DEPTH = 64  # where its queries take no memory


@dataclass(frozen=True)
class SimdgroupAttentionShape:
    """Division of a threadgroup's work.

    Attributes
    ----------
    dim : channels of a head
    rows : queries
    keys : of a tile
    bands, parts : simdgroups that share the rows of the result, and its channels
    score_bands : simdgroups that share the rows of scores; the others share the keys
    direct : queries are loaded as matrices from their tensor, and take no memory
    """

    dim: int
    rows: int
    keys: int
    bands: int
    parts: int
    score_bands: int
    direct: bool = False

    @property
    def threads(self) -> int:
        """Threads of a threadgroup."""
        return self.simdgroups * SIMDGROUP

    @property
    def simdgroups(self) -> int:
        """Simdgroups of a threadgroup."""
        return self.bands * self.parts

    @property
    def tall(self) -> int:
        """Matrices of a simdgroup's results, one below the other."""
        return self.rows // SIDE // self.bands

    @property
    def wide(self) -> int:
        """Matrices of a simdgroup's results, side by side."""
        return self.dim // SIDE // self.parts

    @property
    def score_tall(self) -> int:
        """Matrices of a simdgroup's scores, one below the other."""
        return self.rows // SIDE // self.score_bands

    @property
    def score_wide(self) -> int:
        """Matrices of a simdgroup's scores, side by side."""
        return self.keys // SIDE // (self.simdgroups // self.score_bands)

    @property
    def depth(self) -> int:
        """Channels of a step of scores; 0 where steps would be too short."""
        depths = (DIRECT_DEPTH, *DEPTHS) if self.direct else DEPTHS
        return next((depth for depth in depths if self.dim % depth == 0), 0)

    @property
    def staged_rows(self) -> int:
        """Queries that lie in memory, before the keys."""
        return 0 if self.direct else self.rows

    @property
    def keys_at_once(self) -> int:
        """Keys whose values lie in memory together."""
        count = self.keys
        while count > SIDE and count * pitch_of(self.dim) * VECTOR > VALUE_FLOATS:
            count //= 2
        return count

    @property
    def lanes(self) -> int:
        """Neighbouring threads that make the weights of a row."""
        return self.threads // self.rows

    @property
    def stage_vectors(self) -> int:
        """Memory of a step's queries and keys, of its values, or of results on their way out."""
        scored = (self.staged_rows + self.keys) * pitch_of(self.depth)
        valued = max(self.keys_at_once, self.bands * SIDE) * pitch_of(self.dim)
        return max(scored, valued)

    @property
    def score_vectors(self) -> int:
        """Memory of a tile's scores, and of its weights."""
        return self.rows * pitch_of(self.keys)

    @property
    def diagonal_vectors(self) -> int:
        """Memory of diagonal matrices, one for 8 rows, that rescale what was summed."""
        return self.rows * SIDE // VECTOR

    @property
    def shared_bytes(self) -> int:
        """Threadgroup memory, with a number for each row and each key."""
        vectors = self.stage_vectors + self.score_vectors + self.diagonal_vectors
        return (vectors * VECTOR + self.rows + self.keys) * ITEM_BYTES

    def fits(self, spec: TargetSpec) -> bool:
        """Return whether the target has the matrices, and room for the tiles."""
        if not spec.simdgroup_matrices or not self.depth or self.tall * self.wide > MOST_SUMS:
            return False
        within = self.shared_bytes <= spec.max_shared_memory_bytes
        return within and self.threads <= spec.max_threads_per_block


def pitch_of(width: int) -> int:
    """Vectors from a row of so many float32 to the next.

    An odd number of eights: a matrix's 64 floats then lie in each of 32 banks twice.
    """
    return (width if width % (2 * SIDE) else width + SIDE) // VECTOR


def chunk_division(dim: int, group: int, spec: TargetSpec) -> SimdgroupAttentionShape:
    """Of heads whose channels several simdgroups share, so that a row has many keys in memory.

    Parameters
    ----------
    group : query heads of a KV head, which are rows: eight of them lie evenly if a token has them
    """
    parts = _power_of_two_in(dim // SIDE)
    bands = min(4, MOST_SIMDGROUPS // parts)
    size = spec.tuning.simdgroups
    direct = size.direct_queries and group % SIDE == 0
    return SimdgroupAttentionShape(dim, 32, size.keys, bands, parts, score_bands=2, direct=direct)


def head_division(dim: int) -> SimdgroupAttentionShape:
    """Of short heads, all of whose channels a simdgroup has, for many rows."""
    return SimdgroupAttentionShape(dim, 64, 32, bands=4, parts=1, score_bands=4)


def _power_of_two_in(count: int) -> int:
    """The largest power of two that divides, at most MOST_SIMDGROUPS."""
    return min(count & -count, MOST_SIMDGROUPS)
