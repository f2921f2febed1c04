"""Division of a matrix among the blocks of byte_products.py: tiles, warps, steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd

from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.linear import INTEGERS, WeightLayout
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.quantization.recipe import ROW_ALIGNMENT
from gemma4_compile.targets.kernels.tiles.tensor_cores import BYTE_ROWS, WARP
from gemma4_compile.targets.spec import TargetSpec

ROW_LANES = WARP // BYTE_ROWS  # lanes that have a row of a product together
PIECE_BYTES = 16
STEP_PIECES = 8  # of a row that a warp reads in a step: a line of a cache
READ_ROWS = WARP // STEP_PIECES  # that its lanes read of them at a time
MATRICES = 4  # of 8 rows and a piece that are loaded from shared memory at a time
TILE_PIECES = BYTE_ROWS * STEP_PIECES
TILES, BANDS = (1, 2, 3, 4), (1, 2, 4)
MOST_WARPS, MOST_WARPS_OF_ONE_TILE = 16, 20  # of a multiprocessor, by the registers of a lane
MOST_RESIDENT = 16  # blocks of a multiprocessor, also of Turing's
TERM_BYTES = 8  # of a group with a minimum: its scale and the minimum in float32


@dataclass(frozen=True)
class TensorCoreShape:
    """A block, and what its warps take of the channels.

    Attributes
    ----------
    tiles : of 8 rows of the matrix that a warp multiplies
    warps : that divide the channels of the same tiles
    bits, scale_bytes, all_groups : of the matrix: of a weight, of a group's scale, and of a row;
        with minima a group's share of its block's words is as a scale
    bands : of tiles in a block, each with warps of its own
    resident : blocks that a multiprocessor is to hold
    minima : whether groups have a minimum beside the scale
    stages : of shared memory for weights on their way (staged_products.py); 0: in registers
    x_by_steps : rows of x come with the weights, in place of all of them before
    """

    tiles: int
    warps: int
    bits: int
    scale_bytes: int
    all_groups: int
    bands: int = 1
    resident: int = 1
    minima: bool = False
    stages: int = 0
    x_by_steps: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.bands * self.warps * WARP

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.bands * self.warp_rows

    @property
    def warp_rows(self) -> int:
        """Rows of a warp."""
        return self.tiles * BYTE_ROWS

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
        """Shared memory: what lanes hand on, the sums, and products that are packed."""
        term_bytes = TERM_BYTES if self.minima else 0
        scales = self.warp_rows * self.groups * (self.scale_bytes + term_bytes)
        handed_on = self.bands * self.warps * (self.warp_pieces * PIECE_BYTES + scales)
        handed_on *= max(1, self.stages)
        sums = self.warps * BYTE_ROWS * self.pitch * 4
        return handed_on + sums + BYTE_ROWS * (GROUP + 1) * 4

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
    layout: WeightLayout, rows: int, spec: TargetSpec, block_rows: int = 0, copies: int = 1
) -> TensorCoreShape:
    """The block with which all multiprocessors have the most to do for the longest.

    Parameters
    ----------
    rows : that are multiplied, which may be some of the matrix
    block_rows : of a block; 0 for any number
    copies : of such rows that are multiplied at the same time
    """
    step = gcd(ROW_ALIGNMENT, *layout.split_rows[:-1]) if len(layout.split_rows) > 1 else 0
    fitting = [
        shape
        for shape in _shapes(layout, rows, spec, copies)
        if (not block_rows or shape.rows == block_rows)
        and (not step or step % shape.rows == 0)  # a block's rows lie in one split
        and shape.shared_bytes <= spec.max_shared_memory_bytes
        and shape.threads <= spec.max_threads_per_block
        and -(-rows // shape.rows) <= spec.max_grid_dim  # blocks of a grid's second dimension
    ]
    assert fitting, f"no block for {rows} rows in splits {layout.split_rows}"
    return min(fitting, key=lambda shape: _cost(shape, rows, spec, copies))


def _shapes(
    layout: WeightLayout, rows: int, spec: TargetSpec, copies: int
) -> Iterator[TensorCoreShape]:
    """Of each number of tiles and bands the blocks of any number of warps."""
    minima = isinstance(layout, MinimaLayout)
    scale_bytes, groups = 2 if minima or layout.dtype == "float16" else 4, layout.cols // GROUP
    for tiles in TILES:
        for bands in BANDS:
            one = TensorCoreShape(tiles, 1, layout.bits, scale_bytes, groups, bands, minima=minima)
            held = _blocks_of_one(one, rows, spec, copies)
            most = MOST_WARPS_OF_ONE_TILE if tiles == 1 else MOST_WARPS
            for warps in range(1, min(one.steps, most // bands) + 1):
                resident = max(1, min(held, most // (warps * bands), MOST_RESIDENT))
                yield replace(one, warps=warps, resident=resident)


def _blocks_of_one(shape: TensorCoreShape, rows: int, spec: TargetSpec, copies: int) -> int:
    """Blocks of the multiprocessor that has the most of them."""
    blocks = copies * -(-rows // shape.rows)
    return -(-blocks // spec.tuning.few_row_tensor_cores.multiprocessors)


def _cost(shape: TensorCoreShape, rows: int, spec: TargetSpec, copies: int) -> float:
    """About the microseconds of the multiprocessor that has the most rows.

    The factors were found by measuring (docs/reports/drafter-kernels.md, "Tensor cores").
    """
    tuning = spec.tuning.few_row_tensor_cores
    held, aim = _blocks_of_one(shape, rows, spec, copies), tuning.warps
    waves = -(-held // shape.resident)
    longest = (held + waves * shape.resident) / 2 * shape.rows
    warps = min(held, shape.resident) * shape.bands * shape.warps
    idle = max(1.0, aim / warps) ** 0.5 + tuning.more_warps * max(0, warps - aim)
    reads_x = 1 + tuning.warp_reads / shape.tiles  # each warp for all of its tiles
    reads_x += 1 / shape.rows  # and each block
    alone = tuning.alone if held == 1 else 1.0
    reads = longest * shape.all_pieces * PIECE_BYTES * idle * reads_x * alone / tuning.bytes_per_us
    steps = tuning.step_us * -(-shape.steps // shape.warps) * waves
    return reads + steps + tuning.wave_us * (waves - 1)


def takes_tensor_cores(layout: WeightLayout) -> bool:
    """Return whether tensor cores have the product of a matrix with quantised vectors."""
    is_groups = layout.form == INTEGERS or isinstance(layout, MinimaLayout)
    return is_groups and layout.takes_int8 and layout.products.fills_pieces


def fills_tensor_cores(rows: int, spec: TargetSpec) -> bool:
    """Return whether a matrix has enough rows."""
    return rows >= spec.tuning.few_row_tensor_cores.min_rows


def reads_tiles(layout: WeightLayout, spec: TargetSpec) -> bool:
    """Return whether a matmul on packed rows has tensor cores for any number of rows."""
    fits = takes_tensor_cores(layout) and fills_tensor_cores(layout.rows, spec)
    return fits and not rows_without_tensor_cores(layout, spec)


def rows_without_tensor_cores(layout: WeightLayout, spec: TargetSpec) -> int:
    """Rows up to which another kernel reads a matrix faster; 0 where none does."""
    tuning = spec.tuning.few_row_tensor_cores
    if layout.form == INTEGERS and spec.tuning.staged.block(layout.rows, layout.cols, layout.bits):
        return 0  # staged_shape.py: not of groups with minima
    nbytes = layout.rows * layout.cols * layout.bits // 8
    is_medium = tuning.direct_bytes <= nbytes <= tuning.direct_most_bytes
    return tuning.direct_rows if is_medium else 0
