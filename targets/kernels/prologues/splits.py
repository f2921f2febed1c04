"""The splits of an attention put together, by a launch of its own or in a matmul's."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.attention_splits import LOWEST
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.tir import bind, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockReduction,
    barrier,
    local,
    power_of_two_at_most,
    shared,
    zero,
)
from gemma4_compile.targets.kernels.common.vectors import Vectors
from gemma4_compile.targets.spec import TargetSpec

THREADS = 128
MAX_GROUPS = 16  # groups of threads that divide the splits
REUSED_WITHIN = 16  # TVM's StorageRewrite: most that two arrays of one place differ in size


def combined_channel(o_partial: Buffer, split_lse: Buffer, splits: int, h: Expr, d: Expr) -> Expr:
    """One channel of a head over all splits, each weighed by its maximum: float32."""
    maxima = [split_lse[split, h, 0] for split in range(splits)]
    highest: Expr = maxima[0]
    for maximum in maxima[1:]:
        highest = tirx.max(highest, maximum)
    highest = bind(highest)
    weights = [
        bind(materialize(tirx.exp(maximum - highest) * split_lse[split, h, 1], "float32"))
        for split, maximum in enumerate(maxima)
    ]
    total = sum((weights[s] * as_f32(o_partial[s, h, d]) for s in range(splits)), zero())
    return bind(total / sum(weights, zero()))


@dataclass(frozen=True)
class CombineShape:
    """Division of a head's channels among blocks, and of the splits among threads.

    Attributes
    ----------
    splits, columns : of a head; columns are vectors
    threads : of a block
    vectors : channels of a vector
    simd_width : as in the target's spec
    """

    splits: int
    columns: int
    threads: int
    vectors: Vectors
    simd_width: int

    @property
    def factors(self) -> Vectors:
        """Layout of a split's factor in shared memory.

        TVM gives two arrays of a block one place if they are not needed at the same time. As an
        array of scalars it would not be aligned for the vectors after the factors, so factors are
        vectors, too, where subgroups are known; elsewhere the reductions' own arrays are as large.
        """
        return self.vectors if self.simd_width else Vectors(1)

    @property
    def factor_places(self) -> int:
        """Factors that shared memory has room for.

        The array of a reduction by subgroups is of scalars, and stays apart because TVM puts no
        array into the place of one that is less than a sixteenth of its size.
        """
        needed = self.own * self.groups
        if not self.simd_width:
            return needed
        results = self.threads // self.simd_width
        return max(needed, REUSED_WITHIN * results // self.vectors.size + 1)

    @property
    def groups(self) -> int:
        """Groups of threads, each for every so many splits."""
        return min(MAX_GROUPS, power_of_two_at_most(self.splits))

    @property
    def width(self) -> int:
        """Columns of a block."""
        return self.threads // self.groups

    @property
    def slices(self) -> int:
        """Blocks of a head."""
        return -(-self.columns // self.width)

    @property
    def own(self) -> int:
        """Splits of a group."""
        return -(-self.splits // self.groups)


def combine_shape(dim: int, splits: int, spec: TargetSpec) -> CombineShape:
    """The shape for heads of `dim` channels."""
    vectors = Vectors.dividing(dim)
    threads = min(THREADS, spec.max_threads_per_block)
    return CombineShape(splits, dim // vectors.size, threads, vectors, spec.simd_width)


def combine_slice(
    shape: CombineShape, o_partial: Buffer, split_lse: Buffer, h: Expr, slice_: Expr, thread: Expr
) -> Expr:
    """Put the splits of a slice of head `h` together.

    Returns a float32 vector, which is column `slice_ * width + thread` in the block's first `width`
    threads. A group's loads are under way while the block finds the weights of the splits.
    """
    vectors, groups, width = shape.vectors, shape.groups, shape.width
    group, mine = bind(tirx.floordiv(thread, width)), bind(tirx.floormod(thread, width))
    place = vectors.at(bind(tirx.min(slice_ * width + mine, shape.columns - 1)))
    loaded = local((shape.own * vectors.size,), o_partial.dtype)
    for index in range(shape.own):
        split = bind(tirx.min(group + index * groups, shape.splits - 1))
        store(loaded, o_partial[split, h, place], vectors.at(index))
    factors = shared((shape.factor_places * shape.factors.size,))
    _write_factors(shape, split_lse, h, thread, factors)
    total = local((vectors.size,))
    store(total, vectors.splat(zero()), vectors.at(0))
    for index in range(shape.own):
        factor = bind(factors[shape.factors.at(group + index * groups)])
        if shape.factors.size < vectors.size:
            factor = vectors.splat(factor)
        product = vectors.cast(loaded[vectors.at(index)], "float32") * factor
        store(total, total[vectors.at(0)] + product, vectors.at(0))
    if groups == 1:
        return total[vectors.at(0)]
    partial = shared((groups, width * vectors.size))
    store(partial, total[vectors.at(0)], group, vectors.at(mine))
    barrier()
    with when(thread < width), T.serial(1, groups) as other:
        store(total, total[vectors.at(0)] + partial[other, vectors.at(mine)], vectors.at(0))
    return total[vectors.at(0)]


def _write_factors(
    shape: CombineShape, split_lse: Buffer, h: Expr, thread: Expr, factors: Buffer
) -> None:
    """The weight of each split in the result; 0 after the last, whose loads are repeated."""
    threads, splits = shape.threads, shape.splits
    reduce = BlockReduction(Block(thread, threads, shape.simd_width))
    found = []
    for iteration in range(-(-splits // threads)):
        split = bind(thread + iteration * threads)
        bound, inside = bind(tirx.min(split, splits - 1)), split < splits
        highest = bind(tirx.Select(inside, split_lse[bound, h, 0], f32(LOWEST)))
        found.append((split, highest, bind(tirx.Select(inside, split_lse[bound, h, 1], zero()))))
    own = f32(LOWEST)
    for _, highest, _ in found:
        own = tirx.max(own, highest)
    most = reduce(own, tirx.max)
    weights = [bind(tirx.exp(highest - most) * total) for _, highest, total in found]
    whole = reduce(sum(weights, zero()))
    for weight, (split, _, _) in zip(weights, found, strict=True):
        with when(split < shape.own * shape.groups):
            factor = tirx.Select(split < splits, weight / whole, zero())
            store(factors, shape.factors.splat(factor), shape.factors.at(split))
    barrier()
