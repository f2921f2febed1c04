"""Arguments of a matmul of a few rows, and what it makes of its lanes' sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from gemma4_compile.operators.activation_quantization import WORD
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.few_row_attention import declare_row_splits
from gemma4_compile.operators.few_row_linear import (
    FewRowLinear,
    Int8CombinedFewRowLinear,
    Int8FewRowLinear,
    Int8NormedFewRowLinear,
)
from gemma4_compile.operators.int8_linear import PACKED
from gemma4_compile.operators.math import gelu_tanh
from gemma4_compile.operators.norms import NormVector
from gemma4_compile.operators.tir import FunctionBuilder, bind, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import Block, barrier, shared, strided
from gemma4_compile.targets.kernels.common.epilogues import apply_epilogue
from gemma4_compile.targets.kernels.common.vectors import WIDEST, Vectors
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.few_row_lanes import Lane, put_row
from gemma4_compile.targets.kernels.linear.few_row_quantize import packed_results
from gemma4_compile.targets.kernels.linear.few_row_shape import FewRowShape, packs_product
from gemma4_compile.targets.kernels.linear.gemm import left_args
from gemma4_compile.targets.kernels.linear.int8_sums import RowSums
from gemma4_compile.targets.kernels.linear.int8_vectors import (
    VEC4S,
    NormArguments,
    round_vec4s,
)

_VEC4 = Vectors(WIDEST)


@dataclass(frozen=True)
class FewRowArguments:
    """The arguments of a kernel, in call order.

    Attributes
    ----------
    x : one tensor of floats, words and scales, or the splits of an attention; none with a norm
    norm : what x is made of, or None
    gate, layer : the per-layer inputs and the layer index, None unless the epilogue needs them
    out : where the new residual goes; None without a norm
    results : the product, or its words and scales
    """

    x: Sequence[Buffer]
    norm: NormArguments | None
    weights: WeightReader
    gate: Buffer | None
    layer: Expr | None
    out: Buffer | None
    results: Sequence[Buffer]


def declare_arguments(
    build: FunctionBuilder, operator: FewRowLinear | Int8FewRowLinear, n: Index
) -> FewRowArguments:
    """Declare them; `n` is the number of rows of x."""
    x, norm = [], None
    if isinstance(operator, Int8NormedFewRowLinear):
        assert isinstance(operator.norm, NormVector), "of one branch"
        norm = NormArguments.declare(build, operator.norm, n)
    elif isinstance(operator, Int8CombinedFewRowLinear):
        x = list(declare_row_splits(build, operator, n, operator.in_dtype))
    else:
        x = left_args(build, (n, operator.cols), operator.in_dtype, operator.in_dtype == PACKED)
    weights = WeightReader(build, operator.layout)
    ple = operator.epilogue == Epilogue.GELU_GATE.value
    gate = build.arg("ple", (n, operator.ple_width), "float32") if ple else None
    layer = build.scalar_arg("layer") if ple else None
    out = None if norm is None else build.arg("out", (n, operator.cols), "float32")
    if packs_product(operator):
        results = packed_results(build, operator.outputs, n)
    else:
        results = [build.arg("y", (n, operator.outputs), "float32")]
    return FewRowArguments(x, norm, weights, gate, layer, out, results)


@dataclass(frozen=True)
class Product:
    """The lanes' sums of a tile.

    Attributes
    ----------
    slot : number of the thread's group of lanes
    first : row of the matrix that the tile begins with
    """

    shape: FewRowShape
    sums: RowSums
    block: Block
    lane: Lane
    slot: Expr
    totals: Buffer
    first: Expr


def finish(
    operator: FewRowLinear | Int8FewRowLinear, args: FewRowArguments, product: Product
) -> None:
    """Add the lanes' sums, a few rows of x at a time, and store the results."""
    shape, sums, lane = product.shape, product.sums, product.lane
    pairs = operator.epilogue == Epilogue.GELU_PAIRS.value
    step, rows = 2 if pairs else 1, operator.layout.rows
    tile, slots, outputs = shape.block.tile, shape.block.slots, shape.block.tile // step
    packs = packs_product(operator)
    values = shared((shape.at_once * outputs,)) if packs else None
    for begin in range(0, lane.most, shape.at_once):
        with when(lane.count > begin):
            if begin:
                barrier()  # the rows before may still be being read
            for i in range(begin, min(begin + shape.at_once, lane.most)):
                first = (i - begin) * tile + product.slot
                put_row(sums, lane, product.totals, i, first, slots)
            sums.finish()
            with strided(product.block, outputs * shape.at_once) as item:
                own = bind(tirx.floordiv(item, outputs))
                with when(own + begin < lane.count):
                    row = bind(tirx.floormod(item, outputs) * step)
                    place = bind(own * tile + row)
                    added = [sums.total(place + index) for index in range(step)]
                    if values is not None:
                        store(values, gelu_tanh(added[0]) * added[1], item)
                    else:
                        where = bind(lane.begin + own + begin), bind(product.first + row)
                        of_gate = args.gate, args.layer
                        apply_epilogue(operator, args.results[0], *where, added, *of_gate, rows)
            if values is not None:
                assert isinstance(operator, Int8FewRowLinear), "it packs its product"
                _pack_products(operator, args.results, product, values, begin)


def _pack_products(
    operator: Int8FewRowLinear,
    results: Sequence[Buffer],
    product: Product,
    values: Buffer,
    begin: int,
) -> None:
    """Round the products of a tile and of the rows from `begin` on; it begins with a barrier."""
    block, lane = product.block, product.lane
    vec4s, per_row = int(values.shape[0]) // WORD, product.shape.block.tile // 2 // WORD
    first = bind(tirx.floordiv(product.first, 2 * WORD))
    mine = []
    barrier()
    for iteration in range(-(-vec4s // block.threads)):
        item = bind(tirx.min(block.thread + iteration * block.threads, vec4s - 1))
        mine.append(bind(values[_VEC4.at(item)]))

    def put(buffer: Buffer, value: Expr, own: Expr, place: Expr) -> None:
        with when((own + begin < lane.count) & (product.first < operator.layout.rows)):
            store(buffer, value, lane.begin + own + begin, place)

    def put_word(vec4: Expr, word: Expr) -> None:
        own = bind(tirx.floordiv(vec4, per_row))
        put(results[0], word, own, first + tirx.floormod(vec4, per_row))

    def put_scale(group: Expr, scale: Expr) -> None:
        own = bind(tirx.floordiv(group * VEC4S, per_row))
        place = tirx.floordiv(first + tirx.floormod(group * VEC4S, per_row), VEC4S)
        put(results[1], scale, own, place)

    order = operator.interleaved_out
    round_vec4s(mine, block, vec4s, order, put_word, put_scale)
