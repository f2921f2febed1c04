"""Division of a prefill attention block's work, by head, tuning and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from gemma4_compile.errors import LoweringError
from gemma4_compile.operators.heads import CacheShape
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.attention.head_dims import check_head_dim
from gemma4_compile.targets.kernels.common.blocks import power_of_two_at_most
from gemma4_compile.targets.kernels.common.vectors import Vectors
from gemma4_compile.targets.spec import TargetSpec

SCORE_VEC4 = Vectors(4)  # of scores: keys u, u + a quarter, ... of a tile, which one thread scores
MAX_CHUNK = 8  # vectors of q and K in shared memory at a time


class ChunkOperator(Protocol):
    """An attention of many rows whose keys are all there."""

    kind: ClassVar[str]

    @property
    def heads(self) -> int:
        """Query heads."""

    @property
    def kv_heads(self) -> int:
        """Heads of K and V."""

    @property
    def head_dim(self) -> int:
        """Channels of a head."""

    @property
    def cache(self) -> CacheShape:
        """Places of K and V of a position."""

    @property
    def cache_dtype(self) -> str:
        """Type of K and V."""

    @property
    def out_dtype(self) -> str:
        """Type of the result."""

    def first_key(self, position: Expr) -> Expr:
        """The first position that `position` attends to."""


@dataclass(frozen=True)
class ChunkShape:
    """Division of a block's work.

    Attributes
    ----------
    threads : of the block
    rows : of a block, each a query head at a position
    heads : query heads of the block, all of one KV head
    keys : of a tile
    columns : vectors of a head
    vectors : channels of a vector
    """

    threads: int
    rows: int
    heads: int
    keys: int
    columns: int
    vectors: Vectors

    @property
    def positions(self) -> int:
        """Positions of a block."""
        return self.rows // self.heads

    @property
    def vec4s(self) -> int:
        """Vectors of scores in a row of a tile."""
        return self.keys // SCORE_VEC4.size

    @property
    def scored_rows(self) -> int:
        """Rows that one thread scores; each with one vector of keys."""
        return self.rows * self.vec4s // self.threads

    @property
    def chunk(self) -> int:
        """Vectors of q and K in shared memory at a time."""
        return next(n for n in (MAX_CHUNK, 4, 2, 1) if self.columns % n == 0)

    @property
    def row_groups(self) -> int:
        """Groups of threads that divide the rows of the result; each has a thread a column."""
        return min(power_of_two_at_most(self.threads // self.columns), self.rows)

    @property
    def own_rows(self) -> int:
        """Rows of the result that one thread sums."""
        return self.rows // self.row_groups

    def fits(self, spec: TargetSpec) -> bool:
        """Return whether every thread has work, and shared memory is enough."""
        if self.columns > self.threads or self.rows * self.vec4s < self.threads:
            return False
        staged = (self.rows + self.keys) * self.chunk * self.vectors.size
        floats = staged + self.rows * (self.keys + self.vec4s + 1)
        return self.threads >= self.rows and 4 * floats <= spec.max_shared_memory_bytes


def chunk_shape(operator: ChunkOperator, spec: TargetSpec) -> ChunkShape:
    """The largest tile that tuning, shared memory and the head allow; LoweringError if none."""
    check_head_dim(operator.head_dim, spec)
    tuning, dim = spec.tuning.prefill_attention, operator.head_dim
    vectors = Vectors.dividing(dim)
    columns = dim // vectors.size
    group = operator.heads // operator.kv_heads
    threads = min(tuning.threads, spec.max_threads_per_block)
    rows = tuning.rows
    while rows:
        heads = next(n for n in (rows, 16, 8, 4, 2, 1) if n <= rows and group % n == 0)
        keys = tuning.keys
        while keys >= SCORE_VEC4.size:
            shape = ChunkShape(threads, rows, heads, keys, columns, vectors)
            if shape.fits(spec):
                return shape
            keys //= 2
        rows //= 2
    raise LoweringError(f"`{operator.kind}`: no block of `{spec.name}` holds heads of {dim}")
