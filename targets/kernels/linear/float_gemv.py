"""Products of floats with rows of a matrix: the vector, the lanes' sums, the epilogue.

A block of threads is divided into groups of lanes. A group owns some consecutive rows; its lanes
stride over the row's units of 8 channels, keep that slice of x in registers and use it for all of
the group's rows. Sums are float32, the group's scale is applied once a unit.

A vector that is no argument every block makes first: a norm of a few thousand channels, or the
combine of a few splits, costs a block less than a launch. It stays in shared memory, in the order
in which neighbouring lanes read it: channel u * unit + j at j * units + u.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.static_rounding import round_to_step
from gemma4_compile.operators.tir import LocalVar, bind, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.quantization.recipe import ROW_ALIGNMENT
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    BlockReduction,
    BlockSums,
    barrier,
    inverse_rms,
    power_of_two_at_most,
    shared,
    strided,
    sum_over_lanes,
    zero,
)
from gemma4_compile.targets.kernels.common.epilogues import apply_epilogue
from gemma4_compile.targets.kernels.common.row_slice import RowSlice
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.gemv_args import (
    GemvArguments,
    GivenVector,
    SplitVector,
    Vector,
)
from gemma4_compile.targets.kernels.linear.int8_block import tiles_of_block
from gemma4_compile.targets.kernels.prologues.expert_norms import ExpertNormArguments, expert_norm
from gemma4_compile.targets.kernels.prologues.splits import combined_channel
from gemma4_compile.targets.kernels.prologues.vectors import NormArguments
from gemma4_compile.targets.spec import TargetSpec
from gemma4_compile.targets.tuning import GemvTuning

MIN_LANES = 8


@dataclass(frozen=True)
class GemvShape:
    """Threads of a block, lanes of it that share a row, and rows that a group of lanes owns."""

    threads: int
    lanes: int
    rows: int

    @property
    def tile(self) -> int:
        """Rows of a block; it divides ROW_ALIGNMENT, so that they lie in one split."""
        return self.threads // self.lanes * self.rows

    def blocks(self, rows: int) -> int:
        """Blocks for a matrix of so many rows."""
        return -(-rows // self.tile)


def gemv_shape(rows: int, units: int, paired: bool, tuning: GemvTuning) -> GemvShape:
    """Long slices and many rows where the matrix is large; many blocks where it is small.

    Parameters
    ----------
    rows, units : of the matrix; a unit is what a lane decodes at a time
    paired : gate and up rows, which stay together, are neighbours
    """
    threads, few = tuning.threads, 2 if paired else 1
    wanted = max(MIN_LANES, threads // ROW_ALIGNMENT, min(threads, units // tuning.units_per_lane))
    shape = GemvShape(threads, power_of_two_at_most(wanted), tuning.rows)
    while shape.rows > few and (
        shape.tile > ROW_ALIGNMENT or shape.blocks(rows) < tuning.min_blocks
    ):
        shape = replace(shape, rows=shape.rows // 2)
    while shape.lanes < threads and (
        shape.tile > ROW_ALIGNMENT
        or (
            shape.blocks(rows) < tuning.min_blocks
            and units // (2 * shape.lanes) >= tuning.min_units_per_lane
        )
    ):
        shape = replace(shape, lanes=2 * shape.lanes)
    return shape


def wide_tuning(spec: TargetSpec) -> GemvTuning:
    """Sizes for blocks that read more than their rows: twice the threads, half the blocks."""
    tuning = spec.tuning.gemv
    return replace(tuning, threads=min(2 * tuning.threads, spec.max_threads_per_block))


def fused_width(spec: TargetSpec) -> int:
    """The longest vector whose norm fits into shared memory next to the partial sums."""
    threads = wide_tuning(spec).threads
    norms = BlockReduction.nbytes(threads) + BlockSums.nbytes(threads)  # and the router's
    others = 4 * threads * spec.tuning.gemv.rows + norms
    return max(0, (spec.max_shared_memory_bytes - others) // 4)


class StagedVector:
    """A vector in shared memory, in the order in which neighbouring lanes read it."""

    def __init__(self, weights: WeightReader, width: int) -> None:
        self._memory = shared((width,))
        self._unit, self._units = weights.unit, weights.units

    def _place(self, k: Expr) -> Expr:
        return tirx.floormod(k, self._unit) * self._units + tirx.floordiv(k, self._unit)

    def write(self, k: Expr, value: Expr) -> None:
        """Set channel k."""
        store(self._memory, value, self._place(k))

    def read(self, k: Expr) -> Expr:
        """Channel k, float32."""
        return self._memory[self._place(k)]


class FloatProduct:
    """One block's rows of the product: `iterations` tiles, one after the other.

    Shared: the vector if the block makes it, its sums, and a float32 of a thread for each of its
    rows.
    """

    def __init__(self, operator: Linear, args: GemvArguments, spec: TargetSpec) -> None:
        branches, rows = operator.prologue.branches, operator.layout.rows
        paired = operator.epilogue == Epilogue.GELU_PAIRS.value
        tuning = wide_tuning(spec) if branches > 1 else spec.tuning.gemv
        self._operator, self._args = operator, args
        self._shape = gemv_shape(rows, args.weights.units, paired, tuning)
        self.threads, self.tiles = self._shape.threads, self._shape.blocks(rows)
        # Behind two branches, which are more to read, a block takes several tiles.
        several = branches > 1
        self.iterations = (
            tiles_of_block(self.tiles, self.threads, spec.tuning.int8_gemv) if several else 1
        )

    def begin(self, index: Expr, block: Block) -> None:
        """Make the vector; the first block writes the new residual."""
        self._index, self._block, vector = index, block, self._args.vector
        self._staged: StagedVector | None = None
        if isinstance(vector, GivenVector) and not self._operator.steps_in:
            x = vector.x
            self._read: Callable[[Expr], Expr] = lambda k: as_f32(x[0, k])
            return
        self._staged = StagedVector(self._args.weights, self._operator.cols)
        self._read = self._staged.read
        self._fill(vector, self._staged)

    def _fill(self, vector: Vector, staged: StagedVector) -> None:
        block, cols, dtype = self._block, self._operator.cols, self._operator.in_dtype
        if isinstance(vector, GivenVector):
            with strided(block, cols) as k:
                staged.write(k, self._rounded(as_f32(vector.x[0, k])))
            return
        if isinstance(vector, SplitVector):
            splits, _, dim = (int(size) for size in vector.o_partial.shape)
            with strided(block, cols) as k:
                h, d = bind(tirx.floordiv(k, dim)), bind(tirx.floormod(k, dim))
                value = combined_channel(vector.o_partial, vector.split_lse, splits, h, d)
                staged.write(k, self._rounded(as_f32(value.astype(dtype))))
            return
        out, writes, row_slice = self._args.out, self._index == 0, RowSlice(block, cols)
        assert out is not None, "an operator with a norm has the new residual among its results"
        if isinstance(vector, ExpertNormArguments):
            x = expert_norm(vector, out, writes, row_slice, BlockSums(block))
        else:
            assert isinstance(vector, NormArguments), "a packed vector is a product of int8"
            x = _normed_slice(vector, out, writes, row_slice)
        row_slice.visit(x, lambda k, v: staged.write(k, self._rounded(as_f32(v.astype(dtype)))))

    def _rounded(self, value: Expr) -> Expr:
        """A channel as it is multiplied."""
        if not self._operator.steps_in:
            return value
        return round_to_step(bind(value), bind(self._args.after.input_step))

    def run(self, iteration: Index) -> None:
        """A tile's rows of the matrix times the vector, and the epilogue."""
        operator, shape, args = self._operator, self._shape, self._args
        rows, tile = operator.layout.rows, self._index
        if self.iterations > 1:
            tile = bind(tile * self.iterations + iteration)
        if self._staged is not None:
            barrier()
        own = LaneRows(shape, tile, self._block, rows)
        sums = own.sums()
        own.add(sums, args.weights, self._read, tile * shape.tile)
        totals = own.totals(sums)
        with when(own.lane == 0):
            apply_epilogue(operator, args.results[0], 0, own.first, totals, args.after)


def _normed_slice(
    args: NormArguments, out: Buffer, writes: Expr, row_slice: RowSlice
) -> list[Expr]:
    """The thread's slice of x; r' is written to `out` where `writes` holds."""
    norm, reduce = args.norm, BlockReduction(row_slice.block)

    def scale_of(values: Sequence[Expr]) -> Expr:
        return row_slice.splat(
            inverse_rms(reduce(row_slice.dot(values, values)), norm.width, norm.eps)
        )

    mine, old = row_slice.load(args.branch, 0), row_slice.load(args.residual, 0)
    branch_weight = row_slice.load(args.w_branch)
    next_weight = row_slice.load(args.w_next) if args.w_next is not None else []
    factor = row_slice.splat(bind(args.scalar[0]) if args.scalar is not None else f32(1.0))
    scale = scale_of(mine)
    total = row_slice.map(lambda b, r, w: (r + b * scale * w) * factor, mine, old, branch_weight)
    with when(writes):
        row_slice.store(out, total, 0)
    if not norm.normed:
        return total
    next_scale = scale_of(total)
    return row_slice.map(lambda a, w: a * next_scale * w, total, next_weight)


class LaneRows:
    """The rows of a block's tile that a thread's group of lanes owns, of a matrix of `rows`."""

    def __init__(self, shape: GemvShape, tile: Expr, block: Block, rows: int) -> None:
        self._shape, self._block, self._rows = shape, block, rows
        self.lane = bind(tirx.floormod(block.thread, shape.lanes))
        group = tirx.floordiv(block.thread, shape.lanes)
        self.first = bind(tile * shape.tile + group * shape.rows)

    def sums(self) -> list[LocalVar]:
        """A lane's sums, of nothing yet."""
        return [LocalVar("float32", zero()) for _ in range(self._shape.rows)]

    def add(
        self,
        sums: Sequence[LocalVar],
        weights: WeightReader,
        read_x: Callable[[Expr], Expr],
        row_of_split: Expr,
        base: Expr | None = None,
    ) -> None:
        """Add the lane's slice of the products.

        Parameters
        ----------
        row_of_split : a row of the split that the rows are in
        base : where the matrix begins among all rows; None: it has all
        """
        last = self._rows - 1
        owned = [tirx.min(self.first + r, last) for r in range(self._shape.rows)]
        places = owned if base is None else [base + row for row in owned]

        def accumulate(split: Sequence[Buffer], begin: int) -> None:
            inside = [row - begin for row in places]
            accumulate_rows(weights, split, inside, read_x, self.lane, self._shape.lanes, sums)

        weights.in_split(row_of_split, accumulate)

    def totals(self, sums: Sequence[LocalVar]) -> list[Expr]:
        """The sums of all lanes."""
        values = [total.value for total in sums]
        return sum_over_lanes(self._block, values, self._shape.lanes)


def accumulate_rows(
    weights: WeightReader,
    split: Sequence[Buffer],
    rows: Sequence[Expr],
    read_x: Callable[[Expr], Expr],
    lane: Expr,
    lanes: int,
    sums: Sequence[LocalVar],
) -> None:
    """Add a lane's slice of the dot products of x with some rows of one split.

    Parameters
    ----------
    rows : row numbers within the split
    read_x : channel of x, as float32
    sums : one for each row
    """
    with T.serial(0, -(-weights.units // lanes)) as iteration:
        unit = bind(iteration * lanes + lane)
        with when(unit < weights.units):
            inputs = [bind(read_x(unit * weights.unit + j)) for j in range(weights.unit)]
            for row, total in zip(rows, sums, strict=True):
                values, scale = weights.read_unit(split, bind(row), unit)
                dot = LocalVar("float32", zero())
                for value, item in zip(values, inputs, strict=True):
                    dot.add(value * item)
                total.add(dot.value * scale)
