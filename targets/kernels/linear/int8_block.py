"""Division of a matrix among the blocks of int8_gemv.py: threads, lanes, rows, tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gemma4_compile.operators.activation_quantization import GROUP, PACKED_ROWS
from gemma4_compile.operators.activations import PACKED
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.prologues import Combine, Routed
from gemma4_compile.targets.kernels.common.blocks import BlockSums
from gemma4_compile.targets.kernels.prologues.expert_norms import EXPERT_SUMS
from gemma4_compile.targets.kernels.prologues.vectors import VEC4S
from gemma4_compile.targets.kernels.weights.int8_sums import Int8Shape
from gemma4_compile.targets.spec import TargetSpec
from gemma4_compile.targets.tuning import Int8GemvTuning

MIN_LANES = 8
NARROW = 32  # lanes; a block of more has threads for several rows at a time
MAX_TILE = 64  # divides quantization.recipe.ROW_ALIGNMENT, so that a tile lies in one part
FULL = 0.8  # of the threads that run at a time


def vector_bytes(groups: int, threads: int, sums: int = 1) -> int:
    """Shared memory in which a block makes a vector of so many groups, `sums` vectors of sums."""
    words, largest = 4 * VEC4S * (groups | 1), 4 * VEC4S * groups
    return words + largest + 4 * groups + BlockSums.nbytes(threads, sums)


def staged_bytes(operator: Linear, threads: int) -> int:
    """Shared memory in which a block makes its vector."""
    if operator.in_dtype == PACKED:
        return 0
    sums = EXPERT_SUMS if operator.prologue.branches > 1 else 1
    nbytes = vector_bytes(operator.cols // GROUP, threads, sums)
    match operator.prologue:
        case Combine(heads=heads, splits=splits):
            return nbytes + 4 * heads * splits
        case Routed():
            return nbytes + BlockSums.nbytes(threads)  # of the blocks that route
    return nbytes


def int8_shape(operator: Linear, spec: TargetSpec, beside: int | None = None) -> Int8Shape:
    """The shape of a matmul's blocks.

    `beside` : threads of the blocks of another one in the same launch
    """
    rows, groups = operator.layout.rows, operator.cols // GROUP
    return find_shape(
        rows,
        groups,
        lambda threads: staged_bytes(operator, threads),
        spec,
        packs=operator.packed_out,
        reads_more=isinstance(operator.prologue, Combine) or operator.prologue.branches > 1,
        beside=beside,
    )


def find_shape(
    rows: int,
    groups: int,
    staged: Callable[[int], int],
    spec: TargetSpec,
    packs: bool = False,
    reads_more: bool = False,
    beside: int | None = None,
) -> Int8Shape:
    """Few groups a lane, and then as many rows a block as leave `min_blocks` blocks.

    Parameters
    ----------
    rows, groups : of the matrix, and of a row
    staged : shared memory besides the partial sums, by threads
    packs : the result is packed
    reads_more : the block combines the splits of an attention, or two branches, first
    beside : threads of other blocks of the launch, which these have, too; None for those of its own
    """
    tuning, limit = spec.tuning.int8_gemv, spec.max_threads_per_block
    lanes = MIN_LANES
    while groups > lanes * tuning.groups_per_lane and 2 * lanes <= limit:
        lanes *= 2
    wanted = tuning.threads
    if packs or reads_more or lanes > NARROW:
        wanted = tuning.wide_threads
    threads = max(lanes, min(beside or wanted, limit))
    at_least = PACKED_ROWS if packs else 1
    free = spec.max_shared_memory_bytes - staged(threads)
    shape = Int8Shape(threads, lanes, max(1, at_least * lanes // threads))
    while shape.sum_bytes > free:
        lanes //= 2
        shape = Int8Shape(threads, lanes, max(1, at_least * lanes // threads))
    while True:
        larger = replace(shape, rows=2 * shape.rows)
        if larger.rows > tuning.rows or larger.tile > MAX_TILE or larger.sum_bytes > free:
            return shape
        if -(-rows // larger.tile) < tuning.min_blocks:
            return shape
        shape = larger


def tiles_of_block(tiles: int, threads: int, tuning: Int8GemvTuning) -> int:
    """Tiles that a block takes, one after the other, so that all blocks run at the same time.

    One where that would leave much of the device idle: the last iteration is that of few.
    """
    iterations = -(-tiles * threads // tuning.norm_threads)
    is_full = tiles * threads >= FULL * iterations * tuning.norm_threads
    return iterations if is_full else 1
