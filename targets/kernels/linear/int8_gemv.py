"""Products of int8 groups with rows of a matrix, where activations are int8.

A block owns `tile` consecutive rows. Its threads are divided into groups of lanes; a group of lanes
takes one row at a time, each lane the same few groups of channels (weights/int8_lanes.py). The
weights of the next row are read while the present one is multiplied. Sums of lanes meet in shared
memory, once for all rows of the block.

The vector comes packed, or the block makes it first (prologues/vectors.py). Definitions:
gemma4_compile/operators/linear.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from tvm import tirx

from gemma4_compile.operators.activation_quantization import GROUP, WORD
from gemma4_compile.operators.activations import INTERLEAVED, PACKED, PackedOutput
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.math import gelu_tanh
from gemma4_compile.operators.tir import (
    bind,
    store,
    when,
)
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    barrier,
    shared,
    strided,
)
from gemma4_compile.targets.kernels.common.epilogues import apply_epilogue, gated
from gemma4_compile.targets.kernels.linear.gemv_args import (
    GemvArguments,
    GivenVector,
    SplitVector,
)
from gemma4_compile.targets.kernels.linear.int8_block import int8_shape, tiles_of_block
from gemma4_compile.targets.kernels.linear.int8_reading import reading_of
from gemma4_compile.targets.kernels.prologues.expert_norms import ExpertNormArguments
from gemma4_compile.targets.kernels.prologues.packed_products import vec4s_of
from gemma4_compile.targets.kernels.prologues.vectors import (
    NormArguments,
    combine_vec4s,
    float_vec4s,
    norm_vec4s,
    round_vec4s,
    step_vec4s,
)
from gemma4_compile.targets.kernels.weights.int8_lanes import (
    LaneSlice,
    QuantizedVector,
    RowStream,
    StagedQuantizedVector,
)
from gemma4_compile.targets.kernels.weights.int8_sums import Int8Shape, RowSums, ScaledSums
from gemma4_compile.targets.kernels.weights.stepped_lanes import (
    StagedSteppedVector,
    SteppedSlice,
    SteppedVector,
)
from gemma4_compile.targets.spec import TargetSpec


class Int8Product:
    """One block's rows of the product: `iterations` tiles, one after the other.

    The first rows of the weights are under way before the vector is there. Shared: the vector
    (unless it comes packed) and the partial sums of a tile.
    """

    def __init__(
        self, operator: Linear, args: GemvArguments, spec: TargetSpec, beside: int | None = None
    ) -> None:
        self._operator, self._args = operator, args
        tuning = spec.tuning.int8_gemv
        self._shape = int8_shape(operator, spec, beside)
        self.threads = self._shape.threads
        self.tiles, self.iterations = -(-operator.layout.rows // self._shape.tile), 1
        if operator.prologue.writes_residual:
            self.iterations = tiles_of_block(self.tiles, self.threads, tuning)
        self._reading = reading_of(operator, self._shape, self.iterations, tuning)

    @property
    def resident(self) -> int:
        """See `Reading`."""
        return self._reading.resident

    def begin(self, index: Expr, block: Block) -> None:
        """Read the first rows, make the vector and read the lane's slice of it."""
        self._index, self._block, shape, operator = index, block, self._shape, self._operator
        self._lane = bind(tirx.floormod(block.thread, shape.lanes))
        self._slot = bind(tirx.floordiv(block.thread, shape.lanes))
        self._first = bind(index * (self.iterations * shape.tile))
        slice_of = SteppedSlice if operator.steps_in else LaneSlice
        self._lane_slice: LaneSlice | SteppedSlice = slice_of(
            operator.layout, shape.lanes, self._lane
        )
        # Measured: many rows a block, and no norm whose registers would be missing.
        keeps_registers = operator.packed_out and operator.in_dtype == PACKED
        self._after = self._args.after.read()
        self._rows = RowStream(
            self._args.weights,
            self._lane_slice,
            shape.rows * self.iterations,
            self._row_of,
            ahead=2 if keeps_registers and shape.rows % 2 == 0 else 1,
            as_stored=self._reading.as_stored,
            unrolled=self._reading.unrolled,
        )
        if isinstance(self._lane_slice, SteppedSlice):
            self._load_steps(self._lane_slice)
        elif isinstance(self._args.vector, QuantizedVector):
            self._lane_slice.load(self._args.vector.read)
        else:
            assert not isinstance(self._args.vector, SteppedVector), "that is a SteppedSlice's"
            staged = StagedQuantizedVector(operator.cols)
            staged.fill(block, self._vec4s(self._args.vector), operator.interleaved)
            self._lane_slice.load(staged.read)
        self._sums = (ScaledSums if operator.steps_in else RowSums)(shape, block)

    def _load_steps(self, own: SteppedSlice) -> None:
        """Take the lane's runs of a vector by the checkpoint's step."""
        vector, step = self._args.vector, self._after.input_step
        if isinstance(vector, SteppedVector):
            own.load(vector.read, step)
            return
        assert not isinstance(vector, QuantizedVector), "that is a LaneSlice's"
        staged = StagedSteppedVector(self._operator.cols)
        staged.fill(self._block, self._vec4s(vector), self._operator.interleaved, step)
        own.load(staged.read, step)

    def _vec4s(
        self, vector: GivenVector | SplitVector | NormArguments | ExpertNormArguments
    ) -> list[Expr]:
        """The thread's vec4s of the vector; the first block writes the new residual."""
        block = self._block
        match vector:
            case GivenVector(x=x):
                return float_vec4s(block, x, self._operator.cols)
            case SplitVector(o_partial=o_partial, split_lse=split_lse):
                return combine_vec4s(block, o_partial, split_lse, int(o_partial.shape[1]))
        return norm_vec4s(vector, self._args.out, self._index == 0, block)

    def _row_of(self, iteration: Index) -> tuple[Expr, Expr]:
        """The matrix row of a group of lanes, and a row of the same part."""
        shape, last = self._shape, self._operator.layout.rows - 1
        own = tirx.min(self._first + iteration * shape.slots + self._slot, last)
        if self.iterations == 1:
            return own, self._first
        tile = iteration // shape.rows
        return own, bind(tirx.min(self._first + tile * shape.tile, last))

    def run(self, iteration: Index) -> None:
        """A tile's sums, and the epilogue or a packed result."""
        self._multiply(iteration)
        self._store(iteration)
        if self.iterations > 1:
            barrier()  # the next tile's sums take the same places

    def _multiply(self, iteration: Index) -> None:
        """The sums of a tile's rows."""
        shape, sums, own = self._shape, self._sums, self._lane_slice

        def place(row: Expr) -> Expr:
            return row * shape.slots + self._slot

        first = iteration * shape.rows
        if isinstance(own, SteppedSlice):
            assert isinstance(sums, ScaledSums), "made for it"
            self._rows.run_some(
                first,
                shape.rows,
                lambda row, *given: sums.put(place(row), self._lane, *own.dot(*given)),
            )
        else:
            assert isinstance(sums, RowSums), "made for it"
            self._rows.run_some(
                first,
                shape.rows,
                lambda row, *given: sums.put(place(row), self._lane, own.dot(*given)),
            )
        sums.finish()

    def _store(self, iteration: Index) -> None:
        """The epilogue, or a packed result."""
        operator, shape, args = self._operator, self._shape, self._args
        output = operator.output
        if not operator.packed_out:
            first = bind(self._first + iteration * shape.tile)
            step = 2 if operator.epilogue == Epilogue.GELU_PAIRS.value else 1
            y = args.results[0]
            with strided(self._block, shape.tile // step) as item:
                row = bind(item * step)
                totals = [self._sums.total(row + other) for other in range(step)]
                apply_epilogue(operator, y, 0, first + row, totals, self._after)
            return
        tile = bind(self._index * self.iterations + iteration)
        exists = tile < self.tiles if self.tiles % self.iterations else None
        if isinstance(output, PackedOutput):
            order = output.interleaved
            store_packed(shape, self._sums, tile, self._block, args.results, 0, order, exists)
        else:
            self._store_words(tile, exists)

    def _store_words(self, tile: Expr, exists: Expr | None) -> None:
        """Gate and up to words by the step of what reads them: four results from eight rows."""
        operator, shape, block, args = self._operator, self._shape, self._block, self._args
        assert self._after.readers is not None, "an argument of such results"
        outputs, step = shape.tile // 2, self._after.readers[0]
        values, sums = shared((outputs,)), self._sums
        with strided(block, outputs) as item:
            pair = [sums.total(2 * item), sums.total(2 * item + 1)]
            row = bind(tile * shape.tile + 2 * item)
            store(values, gated(operator, row, pair, self._after), item)
        vec4s, mine = outputs // WORD, vec4s_of(block, values)
        last = operator.outputs // WORD

        def put_word(vec4: Expr, value: Expr) -> None:
            place = bind(tile * vec4s + vec4)
            inside = place < last if exists is None else tirx.all(exists, place < last)
            with when(inside):
                store(args.results[0], value, 0, place)

        step_vec4s(mine, block, vec4s, operator.result_form == INTERLEAVED, step, put_word)


def store_packed(
    shape: Int8Shape,
    sums: RowSums | ScaledSums,
    tile: Expr,
    block: Block,
    results: Sequence[Buffer],
    position: Index,
    interleaved: bool,
    exists: Expr | None = None,
) -> None:
    """Gate and up to rounded products: a group of results from PACKED_ROWS rows.

    Parameters
    ----------
    exists : whether there is such a tile; None if that is known
    """
    outputs = shape.tile // 2
    values = shared((outputs,))
    with strided(block, outputs) as item:
        gate, up = sums.total(2 * item), sums.total(2 * item + 1)
        store(values, gelu_tanh(gate) * up, item)
    vec4s, mine = outputs // WORD, vec4s_of(block, values)
    words, scales = results
    groups = outputs // GROUP

    def put(buffer: Buffer, value: Expr, place: Expr) -> None:
        with nullcontext() if exists is None else when(exists):
            store(buffer, value, position, place)

    round_vec4s(
        mine,
        block,
        vec4s,
        interleaved,
        lambda vec4, word: put(words, word, tile * vec4s + vec4),
        lambda group, scale: put(scales, scale, tile * groups + group),
    )
