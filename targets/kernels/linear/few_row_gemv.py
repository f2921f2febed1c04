"""Matrix times a few rows: each weight is read and decoded once, for all of them.

A block's threads are divided into groups of lanes. A group takes OWN_ROWS rows of the matrix at a
time; its lanes stride over the channels, decode what they read of those rows, and go over the rows
of x, so that each load of x is for all rows of the matrix. A lane's sums are vectors of OWN_ROWS,
one for each row of x that it may have: rows that there are not are skipped, which is the same in
all threads. Lanes' sums meet in shared memory, a few rows of x at a time. More rows of x than a
block takes are other blocks'.

Definitions: `Linear.definition` in gemma4_compile/operators/linear.py and `Int8Linear.definition`
in int8_linear.py, of a symbolic number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import GROUP
from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.few_row_linear import (
    FewRowLinear,
    Int8CombinedFewRowLinear,
    Int8FewRowLinear,
)
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.math import as_f32
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import Block, barrier, launch, local, zero
from gemma4_compile.targets.kernels.common.builtins import dot4
from gemma4_compile.targets.kernels.common.vectors import WIDEST, Vectors
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.few_row_lanes import OWN, Lane, no_totals
from gemma4_compile.targets.kernels.linear.few_row_product import (
    Product,
    declare_arguments,
    finish,
)
from gemma4_compile.targets.kernels.linear.few_row_shape import OWN_ROWS, shape_of
from gemma4_compile.targets.kernels.linear.few_row_vectors import (
    BlockRows,
    Packed,
    combine_rows,
    norm_rows,
    round_rows,
)
from gemma4_compile.targets.kernels.linear.int8_sums import RowSums
from gemma4_compile.targets.kernels.linear.int8_vectors import VEC4S
from gemma4_compile.targets.spec import TargetSpec

_WORDS = Vectors(WIDEST)


def make_few_row_gemv(operator: FewRowLinear | Int8FewRowLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """``y[i, r] = epilogue(sum_k x[i, k] W[r, k])`` for a few i.

    Grid: rows of x / those of a block x W's rows / those of a block, so that blocks which read the
    same weights run at the same time. Shared: the lanes' partial sums of a few rows of x, and those
    rows where the kernel makes or rounds them. With a norm, the blocks of W's first rows write the
    new residual. Definition: the operator's `definition`.
    """
    n, rows, cols = symbolic_rows(operator.rows), operator.layout.rows, operator.cols
    is_int8 = isinstance(operator, Int8FewRowLinear)
    most = min(operator.most_rows, spec.tuning.few_rows.rows)
    parts = tirx.floordiv(n + most - 1, most) if most < operator.most_rows else 1
    with function(scheduled=True) as build:
        args = declare_arguments(build, operator, n)
        x, weights = args.x, args.weights
        items = cols // GROUP if is_int8 else weights.units
        shape, iterations = shape_of(operator, items, most, spec)
        tile, lanes, slots = shape.block.tile, shape.block.lanes, shape.block.slots
        grid = -(-rows // (tile * iterations))
        with launch(shape.block.threads, parts, grid) as (part, index, thread):
            block, begin = Block(thread, shape.block.threads, spec.simd_width), bind(part * most)
            count = bind(tirx.min(i32(n) - begin, most))  # the others are other blocks' to write
            slot, number = bind(tirx.floordiv(thread, lanes)), bind(tirx.floormod(thread, lanes))
            of_x, order = BlockRows(begin, count, most), operator.layout.interleaved
            packed: Packed | None = None
            if args.norm is not None:
                assert args.out is not None, "declared with a norm"
                packed = norm_rows(of_x, block, args.norm, args.out, index == 0, order)
            elif isinstance(operator, Int8CombinedFewRowLinear):
                packed = combine_rows(of_x, block, (x[0], x[1]), operator.heads, order)
            elif is_int8 and len(x) == 1:
                packed = round_rows(of_x, block, x[0], order)
            sums = RowSums(shape.sums, block)
            with each_tile(iterations) as iteration:
                first = bind((index * iterations + iteration) * tile)
                owned = [first + m * slots + slot for m in range(OWN_ROWS)]
                if rows % (tile * iterations):
                    owned = [tirx.min(row, rows - 1) for row in owned]
                in_split = first if iterations == 1 else bind(tirx.min(first, rows - 1))
                own_rows = [bind(row) for row in owned]
                lane = Lane(number, lanes, own_rows, in_split, count, most, begin)
                totals = no_totals(most)
                if packed is not None:
                    add_int8(replace(lane, begin=0), weights, *packed, totals)
                elif is_int8:
                    add_int8(lane, weights, x[0], x[1], totals)
                else:
                    add_floats(lane, weights, x[0], totals)
                finish(operator, args, Product(shape, sums, block, lane, slot, totals, first))
    return build.result


@contextmanager
def each_tile(count: int) -> Iterator[Index]:
    """A block's tiles, one after the other: their number."""
    if count == 1:
        yield 0
        return
    with T.serial(0, count) as tile:
        yield tile
        barrier()  # the next tile's sums take the same places


def add_floats(lane: Lane, weights: WeightReader, x: Buffer, totals: Buffer) -> None:
    """Add the lane's products of float rows, unit by unit of channels."""
    size, lanes = weights.unit, lane.lanes
    channels = Vectors.dividing(size)
    values, scales = local((size * OWN_ROWS,)), local((OWN_ROWS,))

    def read(unit: Expr) -> Callable[[Sequence[Buffer], int], None]:
        def of_split(split: Sequence[Buffer], begin: int) -> None:
            units = [weights.read_unit(split, bind(row - begin), unit) for row in lane.rows]
            for j in range(size):
                column = OWN.join([bind(decoded[j]) for decoded, _ in units])
                store(values, column, OWN.at(j))
            store(scales, OWN.join([scale for _, scale in units]), OWN.at(0))

        return of_split

    with T.serial(0, lane.steps(weights.units)) as iteration:
        unit = bind(iteration * lanes + lane.lane)
        with when(unit < weights.units):
            weights.in_split(lane.first, read(unit))
            for i in lane.each_row():
                place = lane.place(i)
                dot = local((OWN_ROWS,))
                store(dot, OWN.splat(zero()), OWN.at(0))
                for at in range(0, size, channels.size):
                    item = x[place, channels.from_channel(unit * size + at)]
                    inputs = bind(channels.cast(item, "float32"))
                    for j, value in enumerate(channels.lanes(inputs)):
                        product = values[OWN.at(at + j)] * OWN.splat(value)
                        store(dot, dot[OWN.at(0)] + product, OWN.at(0))
                added = dot[OWN.at(0)] * scales[OWN.at(0)]
                store(totals, totals[OWN.at(i)] + added, OWN.at(i))


def add_int8(
    lane: Lane, weights: WeightReader, words: Buffer, x_scales: Buffer, totals: Buffer
) -> None:
    """Add the lane's products of packed rows, group by group; integers are summed exactly."""
    layout, lanes = weights.layout, lane.lanes
    groups, size = layout.cols // GROUP, layout.bits  # words of a group of weights
    # 4-bit integers meet the vector as they are, 8-bit ones minus 128.
    offset = layout.zero_point - (0 if layout.bits == 4 else 128)
    stored, scales = local((OWN_ROWS * size,), "uint32"), local((OWN_ROWS,))
    integers = local((OWN_ROWS * VEC4S,), "uint32")

    def read(group: Expr) -> Callable[[Sequence[Buffer], int], None]:
        def of_split(split: Sequence[Buffer], begin: int) -> None:
            own = []
            for m, row in enumerate(lane.rows):
                local_row = bind(row - begin)
                for at in range(0, size, WIDEST):
                    vec4 = split[0][local_row, _WORDS.from_channel(group * size + at)]
                    store(stored, vec4, _WORDS.from_channel(m * size + at))
                own.append(bind(as_f32(split[1][local_row, group])))
            store(scales, OWN.join(own), OWN.at(0))

        return of_split

    with T.serial(0, lane.steps(groups)) as iteration:
        group = bind(iteration * lanes + lane.lane)
        with when(group < groups):
            weights.in_split(lane.first, read(group))
            _unpack(layout, stored, integers)
            for i in lane.each_row():
                place = lane.place(i)
                vec4s = [
                    bind(words[place, _WORDS.from_channel(group * VEC4S + at)])
                    for at in range(0, VEC4S, WIDEST)
                ]
                mine = [bind(word) for vec4 in vec4s for word in _WORDS.lanes(vec4)]
                total = LocalVar("int32", i32(0))
                for word in mine:
                    total.add(dot4(word, tirx.const(0x01010101, "uint32")))
                zeros = bind(total.value * -offset)
                sums = []
                for m in range(OWN_ROWS):
                    dot = zeros
                    for k, word in enumerate(mine):
                        dot = dot + dot4(integers[m * VEC4S + k], word)
                    sums.append(as_f32(dot))
                own = bind(x_scales[place, group])
                added = scales[OWN.at(0)] * OWN.splat(own) * OWN.join(sums)
                store(totals, totals[OWN.at(i)] + added, OWN.at(i))


def _unpack(layout: WeightLayout, stored: Buffer, integers: Buffer) -> None:
    """Words of bytes in the order of packed x, from all words of weights."""
    if layout.bits == 8:
        for place in range(OWN_ROWS * VEC4S):
            flipped = tirx.bitwise_xor(stored[place], tirx.const(0x80808080, "uint32"))
            store(integers, flipped, place)
        return
    low, high = tirx.const(0x0F0F, "uint32"), tirx.const(0x0F0F0000, "uint32")
    for place in range(OWN_ROWS * layout.bits):
        word = bind(stored[place])
        # Nibbles 0, 2, 1, 3 as bytes, then 4, 6, 5, 7.
        parts = (
            (word, tirx.shift_left(word, tirx.const(12, "uint32"))),
            (
                tirx.shift_right(word, tirx.const(16, "uint32")),
                tirx.shift_right(word, tirx.const(4, "uint32")),
            ),
        )
        for half, (near, far) in enumerate(parts):
            four = tirx.bitwise_or(tirx.bitwise_and(near, low), tirx.bitwise_and(far, high))
            store(integers, four, 2 * place + half)
