"""Division of a matrix among the blocks of few_row_gemv.py: threads, lanes, tiles, sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.few_row_linear import (
    FewRowLinear,
    Int8CombinedFewRowLinear,
    Int8FewRowLinear,
    Int8NormedFewRowLinear,
)
from gemma4_compile.operators.int8_linear import PACKED, PACKED_ROWS
from gemma4_compile.quantization.recipe import ROW_ALIGNMENT
from gemma4_compile.targets.kernels.common.blocks import BlockSums
from gemma4_compile.targets.kernels.common.vectors import WIDEST
from gemma4_compile.targets.kernels.linear.int8_sums import Int8Shape
from gemma4_compile.targets.kernels.linear.int8_vectors import VEC4S
from gemma4_compile.targets.spec import TargetSpec

MIN_LANES = 8
MIN_THREADS = 64
OWN_ROWS = WIDEST  # rows of the matrix that a lane multiplies at a time: each load of x is for all
MAX_SUM_BYTES = 8 << 10  # partial sums in shared memory at a time: more would keep blocks out
THREAD_SUM_BYTES = 64  # a thread's share of them, where that is more


@dataclass(frozen=True)
class FewRowShape:
    """A block's threads, the lanes that share a row of the matrix, and rows summed at a time.

    Attributes
    ----------
    block : threads, lanes, and OWN_ROWS rows of the matrix for each group of lanes
    at_once : rows of x whose partial sums are in shared memory at a time
    """

    block: Int8Shape
    at_once: int

    @property
    def sums(self) -> Int8Shape:
        """The block as one that has the rows of the matrix once for each row of x."""
        return replace(self.block, rows=self.block.rows * self.at_once)


def packs_product(operator: FewRowLinear | Int8FewRowLinear) -> bool:
    """Return whether the product of gate and up leaves the kernel rounded."""
    return isinstance(operator, Int8FewRowLinear) and operator.packed_out


def shape_of(
    operator: FewRowLinear | Int8FewRowLinear, items: int, most_rows: int, spec: TargetSpec
) -> tuple[FewRowShape, int]:
    """The shape of a matmul's blocks, and the tiles that a block takes one after the other."""
    rows, packs = operator.layout.rows, packs_product(operator)
    makes = isinstance(operator, Int8NormedFewRowLinear | Int8CombinedFewRowLinear)
    if makes or packs:
        block = _wide_block(rows, items, packs, spec)
    else:
        block = few_row_shape(rows, items, most_rows, spec).block
    staged = 0
    if isinstance(operator, Int8FewRowLinear) and operator.in_dtype != PACKED:
        staged = staged_bytes(most_rows, operator.cols, block.threads, spec.simd_width)
    if isinstance(operator, Int8CombinedFewRowLinear):
        staged += 4 * most_rows * operator.heads * operator.splits
    shape = _summed(block, most_rows, spec.max_shared_memory_bytes - staged)
    most_blocks = max(1, spec.tuning.few_rows.norm_threads // block.threads)
    return shape, -(-rows // (block.tile * most_blocks)) if makes else 1


def _wide_block(rows: int, items: int, packs: bool, spec: TargetSpec) -> Int8Shape:
    """A block that makes its rows of x, whose threads share that work, or packs its product.

    A group of packed results comes from PACKED_ROWS rows of the matrix, which is a tile.
    """
    tuning = spec.tuning.few_rows
    threads = min(tuning.wide_threads, spec.max_threads_per_block)
    if packs:
        return Int8Shape(threads, threads * OWN_ROWS // PACKED_ROWS, OWN_ROWS)
    block = Int8Shape(threads, MIN_LANES, OWN_ROWS)
    while block.tile > ROW_ALIGNMENT or (
        items > block.lanes * tuning.items_per_lane and block.lanes < threads
    ):
        block = replace(block, lanes=2 * block.lanes)
    # A small matrix: more lanes share a row, down to an item each.
    while -(-rows // block.tile) < tuning.wide_blocks and block.lanes < min(threads, items):
        block = replace(block, lanes=2 * block.lanes)
    return block


def _summed(block: Int8Shape, most_rows: int, free: int) -> FewRowShape:
    """The block, and as many rows summed at a time as fit into its share of free memory."""
    limit = min(max(MAX_SUM_BYTES, THREAD_SUM_BYTES * block.threads), free)
    return FewRowShape(block, max(1, min(most_rows, limit // block.sum_bytes)))


def staged_bytes(rows: int, width: int, threads: int, subgroup_width: int) -> int:
    """Shared memory in which a block makes rows: norms, magnitudes of groups, words and scales."""
    sums = BlockSums.nbytes(threads)
    if subgroup_width:
        sums = 4 * rows * (WIDEST * -(-threads // subgroup_width) + 2)
    magnitudes = 0 if subgroup_width >= VEC4S else width
    return rows * (width + 4 * width // GROUP) + sums + magnitudes


def normed_width(spec: TargetSpec) -> int:
    """The longest rows whose norms fit into shared memory next to the sums of one of them."""
    tuning = spec.tuning.few_rows
    threads, rows = min(tuning.wide_threads, spec.max_threads_per_block), tuning.rows
    sums = 5 * OWN_ROWS * threads  # a float32 each, and what keeps rows of them in other banks
    empty, one = (staged_bytes(rows, width, threads, spec.simd_width) for width in (0, GROUP))
    free, of_group = max(0, spec.max_shared_memory_bytes - sums - empty), one - empty
    return free // of_group * GROUP


def few_row_shape(rows: int, items: int, most_rows: int, spec: TargetSpec) -> FewRowShape:
    """Few items a lane where the matrix is large, many blocks where it is small.

    Parameters
    ----------
    rows, items : of the matrix, and of a row: what a lane takes at a time
    most_rows : of x
    """
    tuning, lanes = spec.tuning.few_rows, MIN_LANES
    threads = min(tuning.threads, spec.max_threads_per_block)
    while items > lanes * tuning.items_per_lane and lanes < threads:
        lanes *= 2
    block = Int8Shape(threads, lanes, OWN_ROWS)
    while block.lanes < threads and block.tile > ROW_ALIGNMENT:
        block = replace(block, lanes=2 * block.lanes)
    while -(-rows // block.tile) < tuning.min_blocks and block.threads > max(
        block.lanes, MIN_THREADS
    ):
        block = replace(block, threads=block.threads // 2)
    # A small matrix: more lanes share a row, down to an item each.
    while -(-rows // block.tile) < tuning.min_blocks and block.lanes < min(block.threads, items):
        block = replace(block, lanes=2 * block.lanes)
    # A vocabulary with long rows: fewer lanes share a row, where the grid would be too large.
    while -(-rows // block.tile) > spec.max_grid_dim and 2 * block.tile <= ROW_ALIGNMENT:
        block = replace(block, lanes=block.lanes // 2)
    assert block.tile <= ROW_ALIGNMENT, "a tile lies in one split"
    return _summed(block, most_rows, spec.max_shared_memory_bytes)
