"""Matrix times one vector of int8 groups: the decode form where activations are int8.

A block owns `tile` consecutive rows. Its threads are divided into groups of lanes; a group of lanes
takes one row at a time, each lane the same few groups of channels (weights/int8_lanes.py). The
weights of the next row are read while the present one is multiplied. Sums of lanes meet in shared
memory, once for all rows of the block.

The vector comes packed, or the block makes it first (prologues/vectors.py). Definitions:
gemma4_compile/operators/linear.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import GROUP, WORD
from gemma4_compile.operators.activations import PACKED, PackedOutput
from gemma4_compile.operators.attention_splits import declare_splits
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.math import gelu_tanh
from gemma4_compile.operators.prologues import Combine, Norm
from gemma4_compile.operators.tir import (
    FunctionBuilder,
    bind,
    function,
    store,
    when,
)
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    barrier,
    launch,
    shared,
    strided,
)
from gemma4_compile.targets.kernels.common.epilogues import apply_epilogue, gate_args
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.int8_block import int8_shape, tiles_of_block
from gemma4_compile.targets.kernels.prologues.router_blocks import (
    BesideRouter,
    behind_router,
    declare_router,
    routing_blocks,
)
from gemma4_compile.targets.kernels.prologues.vectors import (
    combine_vec4s,
    declare_norm,
    float_vec4s,
    norm_vec4s,
    round_vec4s,
)
from gemma4_compile.targets.kernels.weights.int8_lanes import (
    LaneSlice,
    QuantizedVector,
    RowStream,
    StagedQuantizedVector,
)
from gemma4_compile.targets.kernels.weights.int8_sums import Int8Shape, RowSums
from gemma4_compile.targets.spec import TargetSpec

VectorMaker = Callable[[Block, Buffer | None, Expr], list[Expr]]
"""Makes a thread's vec4s of the vector, from the block, where the new residual goes, and whether
this block writes it."""


@dataclass(frozen=True)
class _Arguments:
    """The arguments of a kernel, in call order.

    Attributes
    ----------
    router : what routes in the same launch, with its arguments, or None
    vector : packed in two arguments, or made of other arguments
    gate, layer : the per-layer inputs and the layer index, None unless the epilogue needs them
    out : where the new residual goes; None without a norm
    results : of the matmul
    routed : the router's result
    """

    router: BesideRouter | None
    vector: QuantizedVector | VectorMaker
    weights: WeightReader
    gate: Buffer | None
    layer: Expr | None
    out: Buffer | None
    results: Sequence[Buffer]
    routed: Buffer | None


def _declare(build: FunctionBuilder, operator: Linear) -> _Arguments:
    """Step 1: the arguments, and where the vector comes from."""
    router = declare_router(build, operator)
    vector = _declare_vector(build, operator, router)
    weights = WeightReader(build, operator.layout)
    gate, layer = gate_args(build, operator, 1)
    norms = operator.prologue.writes_residual
    out = build.arg("out", (1, operator.cols), "float32") if norms else None
    results = [
        build.arg(f"y{index}", shape, dtype)
        for index, (shape, dtype) in enumerate(operator.result_specs)
    ]
    routed = results.pop(0) if router else None
    return _Arguments(router, vector, weights, gate, layer, out, results, routed)


def _declare_vector(
    build: FunctionBuilder, operator: Linear, router: BesideRouter | None
) -> QuantizedVector | VectorMaker:
    """The arguments in front of the weights, as the vector that they give."""
    cols = operator.cols
    if router is not None:
        routed_args = router.norm_arguments
        return lambda block, out, writes: norm_vec4s(routed_args, out, writes, block)
    match operator.prologue:
        case Norm() as norm:
            args = declare_norm(build, norm.vector(cols))
            return lambda block, out, writes: norm_vec4s(args, out, writes, block)
        case Combine() as combine:
            splits = declare_splits(build, combine, operator.in_dtype)
            return lambda block, out, writes: combine_vec4s(block, *splits, combine.heads)
    if operator.in_dtype == PACKED:
        return QuantizedVector(build, cols)
    x = build.arg("x", (1, cols), operator.in_dtype)
    return lambda block, out, writes: float_vec4s(block, x, cols)


class _BlockProduct:
    """One block's rows of the product: `iterations` tiles, one after the other.

    The first rows of the weights are under way before the vector is there.
    """

    def __init__(
        self,
        operator: Linear,
        shape: Int8Shape,
        args: _Arguments,
        iterations: int,
        index: Expr,
        block: Block,
    ) -> None:
        self._operator, self._shape, self._args = operator, shape, args
        self._iterations, self._index, self._block = iterations, index, block
        self._lane = bind(tirx.floormod(block.thread, shape.lanes))
        self._slot = bind(tirx.floordiv(block.thread, shape.lanes))
        self._first = bind(index * (iterations * shape.tile))
        self._lane_slice = LaneSlice(operator.layout, shape.lanes, self._lane)
        # Measured: many rows a block, and no norm whose registers would be missing.
        keeps_registers = operator.packed_out and operator.in_dtype == PACKED
        self._rows = RowStream(
            args.weights,
            self._lane_slice,
            shape.rows * iterations,
            self._row_of,
            ahead=2 if keeps_registers and shape.rows % 2 == 0 else 1,
        )

    def _row_of(self, iteration: Index) -> tuple[Expr, Expr]:
        """The matrix row of a group of lanes, and a row of the same part."""
        shape, last = self._shape, self._operator.layout.rows - 1
        own = tirx.min(self._first + iteration * shape.slots + self._slot, last)
        if self._iterations == 1:
            return own, self._first
        tile = iteration // shape.rows
        return own, bind(tirx.min(self._first + tile * shape.tile, last))

    def stage(self) -> None:
        """Step 2: make the vector in shared memory, unless it comes packed, and read the slice."""
        args, operator = self._args, self._operator
        if isinstance(args.vector, QuantizedVector):
            self._lane_slice.load(args.vector.read)
        else:
            staged = StagedQuantizedVector(operator.cols)
            vec4s = args.vector(self._block, args.out, self._index == 0)
            staged.fill(self._block, vec4s, operator.interleaved)
            self._lane_slice.load(staged.read)
        self._sums = RowSums(self._shape, self._block)

    def multiply(self, iteration: Index) -> None:
        """Step 3: the sums of a tile's rows."""
        shape, sums = self._shape, self._sums

        def put(row: Expr, words: Sequence[Sequence[Expr]], scales: Sequence[Expr]) -> None:
            sums.put(
                row * shape.slots + self._slot, self._lane, self._lane_slice.dot(words, scales)
            )

        self._rows.run_some(iteration * shape.rows, shape.rows, put)
        sums.finish()

    def store(self, iteration: Index) -> None:
        """Step 4: the epilogue, or a packed result."""
        operator, shape, args = self._operator, self._shape, self._args
        output = operator.output
        if not isinstance(output, PackedOutput):
            begin = bind(self._first + iteration * shape.tile)
            y, gate, layer = args.results[0], args.gate, args.layer
            _store(operator, shape, self._sums, begin, self._block, y, gate, layer)
            return
        tiles = -(-operator.layout.rows // shape.tile)
        tile = bind(self._index * self._iterations + iteration)
        exists = tile < tiles if tiles % self._iterations else None
        order = output.interleaved
        store_packed(shape, self._sums, tile, self._block, args.results, 0, order, exists)


def make_int8_gemv(operator: Linear, spec: TargetSpec) -> tirx.PrimFunc:
    """Make the vector, multiply, add up, store.

    A block that norms takes several tiles, one after the other, where there are many: every block
    repeats the norm. Grid: the router's blocks if there is one, then tiles / tiles of a block.
    Shared: the vector (unless it comes packed) and the partial sums of a tile. With a norm, block 0
    after the router's writes the new residual. Definition: the operator's `definition`.
    """
    shape = int8_shape(operator, spec)
    threads, tiles, iterations = shape.threads, -(-operator.layout.rows // shape.tile), 1
    if operator.prologue.writes_residual:
        iterations = tiles_of_block(tiles, threads, spec.tuning.int8_gemv)
    with function(scheduled=True) as build:
        args = _declare(build, operator)
        grid = -(-tiles // iterations) + routing_blocks(args.router)
        with (
            launch(threads, grid) as (launched, _, thread),
            behind_router(
                args.router, args.routed, launched, Block(thread, threads, spec.simd_width)
            ) as (index, block),
        ):
            product = _BlockProduct(operator, shape, args, iterations, index, block)
            product.stage()
            if iterations == 1:
                product.multiply(0)
                product.store(0)
            else:
                with T.serial(0, iterations) as iteration:
                    product.multiply(iteration)
                    product.store(iteration)
                    barrier()  # the next tile's sums take the same places
    return build.result


def _store(
    operator: Linear,
    shape: Int8Shape,
    sums: RowSums,
    first: Expr,
    block: Block,
    y: Buffer,
    gate: Buffer | None,
    layer: Expr | None,
) -> None:
    step = 2 if operator.epilogue == Epilogue.GELU_PAIRS.value else 1
    with strided(block, shape.tile // step) as item:
        row = bind(item * step)
        totals = [sums.total(row + index) for index in range(step)]
        apply_epilogue(operator, y, 0, first + row, totals, gate, layer, operator.layout.rows)


def store_packed(
    shape: Int8Shape,
    sums: RowSums,
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
    barrier()
    vec4s = outputs // WORD
    iterations = -(-vec4s // shape.threads)
    mine = []
    for iteration in range(iterations):
        item = bind(tirx.min(block.thread + iteration * shape.threads, vec4s - 1))
        lanes = [bind(values[item * WORD + index]) for index in range(WORD)]
        mine.append(bind(tirx.Shuffle(lanes, list(range(WORD)))))
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
