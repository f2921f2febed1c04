"""Division of an attention block's work, where it goes over a split's keys for a few queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gemma4_compile.errors import LoweringError
from gemma4_compile.operators.split_attention import SplitAttention
from gemma4_compile.targets.kernels.attention.head_dims import check_head_dim
from gemma4_compile.targets.kernels.common.blocks import power_of_two_at_most
from gemma4_compile.targets.kernels.common.vectors import Vectors
from gemma4_compile.targets.spec import TargetSpec

MAX_LANES = 16  # threads that share the dot products of one key: 128 bytes of float16
MAX_KEYS = 64  # of a tile
MAX_TURNS = 4  # keys of a tile that one thread helps to score: their loads stand in the text
MIN_THREADS = 32


@dataclass(frozen=True)
class DecodeShape:
    """Division of a block's work.

    Attributes
    ----------
    threads : of the block
    heads : query heads of the block, all of one KV head
    keys : of a tile: scored together, then used together
    lanes : threads that share the dot products of one key; those beyond its vectors multiply by 0
    columns : vectors of a key
    vectors : channels of a vector
    """

    threads: int
    heads: int
    keys: int
    lanes: int
    columns: int
    vectors: Vectors

    @property
    def keys_at_once(self) -> int:
        """Keys that the block loads at a time."""
        return self.threads // self.lanes

    @property
    def iterations(self) -> int:
        """Keys of a tile that one thread helps to score."""
        return self.keys // self.keys_at_once

    @property
    def chunks(self) -> int:
        """Vectors of a key that one thread multiplies."""
        return -(-self.columns // self.lanes)

    @property
    def padding(self) -> int:
        """Vectors of zeros after a query head, which the lanes beyond the last vector read."""
        return self.chunks * self.lanes - self.columns

    @property
    def query_width(self) -> int:
        """Channels of a query head in shared memory."""
        return self.chunks * self.lanes * self.vectors.size

    @property
    def key_groups(self) -> int:
        """Groups of threads that divide the values of a tile; each has a thread a column."""
        return min(power_of_two_at_most(self.threads // self.columns), self.keys)

    @property
    def spare_groups(self) -> int:
        """Groups whose columns need memory in the end; one has that of q, one keeps its own."""
        return max(0, self.key_groups - 2)

    @property
    def own_keys(self) -> int:
        """Values of a tile that one thread weighs."""
        return self.keys // self.key_groups

    @property
    def pack(self) -> Vectors:
        """Weights that are read at once: keys u, u + keys / 4, ... of a tile."""
        return Vectors.dividing(self.own_keys)

    @property
    def packs(self) -> int:
        """Vectors of weights of a head."""
        return self.keys // self.pack.size

    def fits(self, operator: SplitAttention, spec: TargetSpec) -> bool:
        """Return whether every thread has work, and shared memory is enough."""
        threads, most_bytes = self.threads, spec.max_shared_memory_bytes
        is_even = threads <= self.keys * self.lanes <= threads * MAX_TURNS
        has_owners = self.keys * self.heads <= threads and self.columns <= threads
        return is_even and has_owners and self.shared_bytes(operator) <= most_bytes

    def shared_bytes(self, operator: SplitAttention) -> int:
        """Shared memory of the kernel."""
        item = 2 if operator.cache_dtype == "float16" else 4
        scores = self.keys * self.heads
        rows = self.query_width + self.spare_groups * operator.head_dim
        floats = self.heads * (rows + 1) + scores * (self.lanes + 3) + self.threads
        return 4 * floats + 2 * item * operator.head_dim


def decode_shape(operator: SplitAttention, spec: TargetSpec) -> DecodeShape:
    """The most heads and keys of a block that shared memory and registers allow.

    Fewer heads where the blocks would be too few to fill the device.

    Raises
    ------
    LoweringError
        If the target has no kernel for such heads.
    """
    tuning, group = spec.tuning.decode_attention, operator.heads // operator.kv_heads
    counts = [n for n in range(min(group, tuning.heads), 0, -1) if group % n == 0]
    fills = [n for n in counts if operator.splits * operator.heads // n >= tuning.min_blocks]
    return shape_of_heads(operator, spec, [*fills, 1] if 1 not in fills else fills)


def shape_of_heads(
    operator: SplitAttention, spec: TargetSpec, head_counts: Sequence[int]
) -> DecodeShape:
    """The shape with one of these numbers of heads, the first for which there is one.

    Lanes that divide a key's vectors go first; where they are too few to score a tile, the key is
    padded.

    Raises
    ------
    LoweringError
        If the target has no kernel for such heads.
    """
    check_head_dim(operator.head_dim, spec)
    vectors = Vectors.dividing(operator.head_dim // 2)
    columns = operator.head_dim // vectors.size
    most = next(n for n in (MAX_LANES, 8, 4, 2, 1) if columns % n == 0)
    padded = sorted((MAX_LANES, MAX_LANES // 2), key=lambda n: (-columns % n, -n))
    for lanes in ((most, max(1, most // 2)), padded):
        shape = _shape_of_lanes(operator, spec, vectors, lanes, head_counts)
        if shape is not None:
            return shape
    raise LoweringError(
        f"`{operator.name}`: no block of `{spec.name}` holds heads of {operator.head_dim}"
    )


def _shape_of_lanes(
    operator: SplitAttention,
    spec: TargetSpec,
    vectors: Vectors,
    lane_counts: Sequence[int],
    head_counts: Iterable[int],
) -> DecodeShape | None:
    """The shape with one of these numbers of lanes, the first that fits."""
    tuning, dim = spec.tuning.decode_attention, operator.head_dim
    columns = dim // vectors.size
    loads = tuning.loads if operator.cache_dtype == "float16" else max(1, tuning.loads // 2)
    most = min(tuning.threads, spec.max_threads_per_block)
    threads = min(most, max(MIN_THREADS, power_of_two_at_most(2 * columns - 1)))
    threads = max(threads, min(most, power_of_two_at_most(dim)))
    for heads in head_counts:
        keys = power_of_two_at_most(max(1, min(loads * threads // columns, MAX_KEYS)))
        while keys:
            for lanes in lane_counts:
                shape = DecodeShape(threads, heads, keys, lanes, columns, vectors)
                if shape.fits(operator, spec):
                    return shape
            keys //= 2
    return None
