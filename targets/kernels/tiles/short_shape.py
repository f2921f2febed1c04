"""Division of a matrix among the blocks of short_products.py: tiles, warps, bands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd

from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.types import IndexT
from gemma4_compile.quantization.recipe import ROW_ALIGNMENT
from gemma4_compile.targets.kernels.tiles.few_row_shape import (
    BANDS,
    MATRICES,
    MOST_RESIDENT,
    PIECE_BYTES,
    STEP_PIECES,
    TILES,
    TensorCoreShape,
    takes_tensor_cores,
)
from gemma4_compile.targets.spec import TargetSpec

ROW_PIECES = GROUP // PIECE_BYTES  # of a group of a row of x
PLACES = 2  # of shared memory, where groups of x wait


@dataclass(frozen=True)
class ShortShape(TensorCoreShape):
    """A block, and its rows of x.

    Attributes
    ----------
    x_rows : 16 or 32
    """

    x_rows: int = 32

    @property
    def part_groups(self) -> int:
        """Groups of x that are copied at a time."""
        return MATRICES // self.group_pieces

    @property
    def part_pieces(self) -> int:
        """Pieces of a row of them."""
        return self.part_groups * ROW_PIECES

    @property
    def place_pieces(self) -> int:
        """Pieces of a warp's rows of them."""
        return self.x_rows * self.part_pieces

    @property
    def shared_bytes(self) -> int:
        """See `TensorCoreShape`: x as well, with a piece of scales a row."""
        places = self.bands * self.warps * PLACES
        return super().shared_bytes + places * (self.place_pieces + self.x_rows) * PIECE_BYTES

    def place(self, row: IndexT, piece: IndexT) -> IndexT:
        """Where a row's piece lies: in other banks than the same one of the rows around."""
        by_rows = STEP_PIECES // self.part_pieces
        twist = (row // by_rows) % (self.part_pieces // ROW_PIECES)
        return row * self.part_pieces + (piece ^ (twist * ROW_PIECES))


def short_shape(
    layout: WeightLayout, rows: int, x_rows: int, spec: TargetSpec, experts: int = 0
) -> ShortShape | None:
    """The block with which the multiprocessor that has the most to do is done first, if any fits.

    None also where the target has no kernel for short chunks, or tensor cores not the product.

    Parameters
    ----------
    rows : that are multiplied, which may be some of the matrix
    x_rows : of a block: 16 or 32
    experts : that have as many rows and are multiplied at the same time; 0 where it is no expert's
    """
    if not takes_tensor_cores(layout):
        return None
    step = gcd(ROW_ALIGNMENT, *layout.split_rows[:-1]) if len(layout.split_rows) > 1 else 0
    fitting = [
        shape
        for shape in _shapes(layout, rows, x_rows, spec, experts)
        if (not step or step % shape.rows == 0)  # a block's rows lie in one split
        and shape.shared_bytes <= spec.max_shared_memory_bytes
        and shape.threads <= spec.max_threads_per_block
        and -(-rows // shape.rows) <= spec.max_grid_dim
    ]
    return min(fitting, key=lambda shape: _cost(shape, rows, spec, max(1, experts)), default=None)


def _shapes(
    layout: WeightLayout, rows: int, x_rows: int, spec: TargetSpec, experts: int
) -> Iterator[ShortShape]:
    """Of each number of tiles and bands the blocks of any number of warps."""
    minima, tuning = isinstance(layout, MinimaLayout), spec.tuning.short_chunks
    scale_bytes = 2 if minima or layout.dtype == "float16" else 4
    most = tuning.expert_warps if experts else tuning.warps
    for tiles in TILES:
        for bands in BANDS:
            one = ShortShape(
                tiles,
                1,
                layout.bits,
                scale_bytes,
                layout.cols // GROUP,
                bands,
                minima=minima,
                x_rows=x_rows,
            )
            held = _held(one, rows, spec, max(1, experts))
            for warps in range(1, min(one.steps, most // bands) + 1):
                if bands * warps == 1 < most:
                    continue  # a multiprocessor has too few of such blocks
                resident = max(1, min(held, most // (warps * bands), MOST_RESIDENT))
                yield replace(one, warps=warps, resident=resident)


def _held(shape: TensorCoreShape, rows: int, spec: TargetSpec, copies: int) -> int:
    """Blocks of the multiprocessor that has the most of them."""
    blocks = copies * -(-rows // shape.rows)
    return -(-blocks // spec.tuning.short_chunks.multiprocessors)


def _cost(shape: TensorCoreShape, rows: int, spec: TargetSpec, copies: int) -> float:
    """About the instructions of the multiprocessor that has the most rows, by time.

    A warp decodes x again for each step, whatever the number of its tiles; fewer warps than the
    aim leave instructions waiting; between blocks that follow each other, and while sums are
    added up, nothing multiplies. With minima a last wave of few blocks takes nearly as long as a
    full one.
    """
    tuning = spec.tuning.short_chunks
    held = _held(shape, rows, spec, copies)
    waves = -(-held // shape.resident)
    warps = min(held, shape.resident) * shape.bands * shape.warps
    steps = -(-shape.steps // shape.warps) * shape.warps
    longest = (held + waves * shape.resident) / 2 if shape.minima else held
    work = longest * shape.bands * steps * (shape.tiles + tuning.rows_share)
    idle = max(1.0, tuning.warps / warps) ** tuning.idle
    idle *= max(1.0, tuning.few_warps / warps) ** 0.5
    return work * idle + waves * tuning.wave
