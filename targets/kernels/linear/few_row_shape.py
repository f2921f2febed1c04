"""Division of a matrix among the blocks of few_row_gemv.py: threads, lanes, tiles, sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemma4_compile.operators.activation_quantization import PACKED_ROWS
from gemma4_compile.quantization.recipe import ROW_ALIGNMENT
from gemma4_compile.targets.kernels.common.vectors import WIDEST
from gemma4_compile.targets.kernels.weights.int8_sums import Int8Shape
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


def packing_shape(most_rows: int, spec: TargetSpec) -> FewRowShape:
    """The shape where the product is packed: PACKED_ROWS rows of the matrix make a group of it."""
    threads = min(spec.tuning.few_rows.wide_threads, spec.max_threads_per_block)
    block = Int8Shape(threads, threads * OWN_ROWS // PACKED_ROWS, OWN_ROWS)
    return _summed(block, most_rows, spec)


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
    return _summed(block, most_rows, spec)


def _summed(block: Int8Shape, most_rows: int, spec: TargetSpec) -> FewRowShape:
    """The block with as many rows summed at a time as their memory allows."""
    most_bytes = max(MAX_SUM_BYTES, THREAD_SUM_BYTES * block.threads)
    free = min(most_bytes, spec.max_shared_memory_bytes // 2)
    return FewRowShape(block, max(1, min(most_rows, free // block.sum_bytes)))
