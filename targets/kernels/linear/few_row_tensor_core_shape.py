"""Division of a matrix among the blocks of byte_products.py: tiles, warps, steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.quantization.recipe import ROW_ALIGNMENT
from gemma4_compile.targets.kernels.common.tensor_cores import BYTE_ROWS, WARP
from gemma4_compile.targets.spec import TargetSpec

ROW_LANES = WARP // BYTE_ROWS  # lanes that have a row of a product together
PIECE_BYTES = 16
STEP_PIECES = ROW_LANES  # of a row that a warp reads in a step, one by each of its lanes
TILE_PIECES = BYTE_ROWS * STEP_PIECES
MIN_WARPS = 2


@dataclass(frozen=True)
class TensorCoreShape:
    """A block, and what its warps take of the channels.

    Attributes
    ----------
    tiles : of 8 rows of the matrix that a warp multiplies
    warps : that divide the channels of the same tiles
    bits, all_groups : of the matrix: its weights', and a row's
    bands : of tiles in a block, each with warps of its own
    """

    tiles: int
    warps: int
    bits: int
    all_groups: int
    bands: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.bands * self.warps * WARP

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.bands * self.tiles * BYTE_ROWS

    @property
    def group_pieces(self) -> int:
        """Pieces of a group."""
        return GROUP * self.bits // 8 // PIECE_BYTES

    @property
    def all_pieces(self) -> int:
        """Pieces of a row."""
        return self.all_groups * self.group_pieces

    @property
    def warp_pieces(self) -> int:
        """Pieces that a warp's lanes hand on in a step."""
        return self.tiles * TILE_PIECES

    @property
    def shared_bytes(self) -> int:
        """Shared memory of the pieces and of the sums."""
        sums = BYTE_ROWS * self.pitch * 4
        return self.warps * (self.bands * self.warp_pieces * PIECE_BYTES + sums)

    @property
    def groups(self) -> int:
        """Groups of a step."""
        return STEP_PIECES // self.group_pieces

    @property
    def steps(self) -> int:
        """Steps of all warps over a row."""
        return -(-self.all_groups // self.groups)

    @property
    def is_ragged(self) -> bool:
        """The last step has groups that the row does not have."""
        return self.all_groups % self.groups != 0

    @property
    def pitch(self) -> int:
        """Places from a warp's sums of a row of x to the next, which lie in other banks."""
        return self.rows + BYTE_ROWS // 2


def tensor_core_shape(
    layout: WeightLayout, rows: int, spec: TargetSpec, block_rows: int = 0
) -> TensorCoreShape:
    """Few warps share a row where the matrix is large, many where it is small.

    Parameters
    ----------
    rows : that are multiplied, which may be some of the matrix
    block_rows : of a block, at least
    """
    tuning = spec.tuning.few_row_tensor_cores
    tiles = tuning.tiles
    if -(-rows // (tiles * BYTE_ROWS)) < tuning.min_blocks:
        tiles //= 2
    bands = max(1, block_rows // (tiles * BYTE_ROWS))
    shape = TensorCoreShape(tiles, MIN_WARPS, layout.bits, layout.cols // GROUP, bands)
    while shape.warps < min(tuning.warps, shape.steps) and shape.warps * rows < tuning.row_warps:
        wider = replace(shape, warps=2 * shape.warps)
        is_large = wider.shared_bytes > spec.max_shared_memory_bytes
        if is_large or wider.threads > spec.max_threads_per_block:
            break
        shape = wider
    assert shape.rows <= ROW_ALIGNMENT, "a block's rows lie in one split"
    assert -(-rows // shape.rows) <= spec.max_grid_dim, "blocks of a grid's second dimension"
    return shape


def fills_tensor_cores(layout: WeightLayout, rows: int, spec: TargetSpec) -> bool:
    """Return whether a matrix has enough rows, also for its channels, or few of these."""
    tuning = spec.tuning.few_row_tensor_cores
    if rows < tuning.min_rows:
        return False
    groups = TensorCoreShape(tuning.tiles, tuning.warps, layout.bits, layout.cols // GROUP)
    return rows * tuning.warps >= tuning.row_warps or groups.steps <= tuning.warps * tuning.steps


def rows_without_tensor_cores(layout: WeightLayout, spec: TargetSpec) -> int:
    """Rows up to which another kernel reads a matrix faster; 0 where none does."""
    tuning = spec.tuning.few_row_tensor_cores
    is_large = layout.rows * layout.cols * layout.bits // 8 >= tuning.direct_bytes
    return tuning.direct_rows if is_large else 0
