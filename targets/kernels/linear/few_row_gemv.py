"""Matrix times a few rows: each weight is read and decoded once, for all of them.

A block's threads are divided into groups of lanes. A group takes OWN_ROWS rows of the matrix at a
time; its lanes stride over the channels, decode what they read of those rows, and go over the rows
of x, so that each load of x is for all rows of the matrix. A lane's sums are vectors of OWN_ROWS,
one for each row of x that it may have: rows that there are not are skipped, which is the same in
all threads. Lanes' sums meet in shared memory, a few rows of x at a time. More rows of x than a
block takes are other blocks'.

Definition: `Linear.definition` in gemma4_compile/operators/linear.py, of a symbolic number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import GROUP, WORD
from gemma4_compile.operators.activations import PackedOutput
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.math import as_f32, gelu_tanh
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.packing import ONES, ProductPacking
from gemma4_compile.operators.rows import most_of
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    barrier,
    launch,
    local,
    shared,
    strided,
    zero,
)
from gemma4_compile.targets.kernels.common.builtins import dot4
from gemma4_compile.targets.kernels.common.vectors import WIDEST, Vectors
from gemma4_compile.targets.kernels.common.weights import WeightReader, group_terms
from gemma4_compile.targets.kernels.linear.few_row_matmul import FewRowMatmul
from gemma4_compile.targets.kernels.linear.few_row_shape import (
    OWN_ROWS,
    FewRowShape,
    few_row_shape,
    packing_shape,
)
from gemma4_compile.targets.kernels.linear.few_row_steps import add_steps
from gemma4_compile.targets.kernels.linear.few_row_tensor_cores import (
    multiply_on_tensor_cores,
)
from gemma4_compile.targets.kernels.prologues.packed_products import NONE
from gemma4_compile.targets.kernels.prologues.vectors import VEC4S, round_vec4s
from gemma4_compile.targets.kernels.tiles.few_row_shape import (
    rows_without_tensor_cores,
)
from gemma4_compile.targets.kernels.weights.int8_sums import RowSums, ScaledSums
from gemma4_compile.targets.kernels.weights.stepped_lanes import run_of
from gemma4_compile.targets.spec import TargetSpec

_OWN = Vectors(OWN_ROWS)
_WORDS = Vectors(WIDEST)


@dataclass(frozen=True)
class Lane:
    """One lane's part of a block's product.

    Attributes
    ----------
    lane, lanes : its number among those that share a row, and their number
    rows : of the matrix, those of its group
    first : row of the block that is in the same split as all of them
    count : rows of x that the block has
    most : rows of x that it may have
    begin : the first of them
    """

    lane: Expr
    lanes: int
    rows: Sequence[Expr]
    first: Expr
    count: Expr
    most: int
    begin: Index = 0

    def has(self, i: int) -> Expr | None:
        """The condition for row i, the same in all threads; None where there always is one."""
        return self.count > i if i else None

    def place(self, i: int) -> Index:
        """Where row i is in x."""
        return self.begin + i

    def steps(self, items: int) -> Index:
        """Iterations over the items of a row of the matrix."""
        return -(-items // self.lanes)

    def each_row(self) -> Iterator[int]:
        """The rows of x, each as the text that it needs, under its condition."""
        for i in range(self.most):
            condition = self.has(i)
            with nullcontext() if condition is None else when(condition):
                yield i


def make_few_row_gemv(operator: Linear, spec: TargetSpec) -> tirx.PrimFunc:
    """``y[i, r] = epilogue(sum_k x[i, k] W[r, k])`` for a few i.

    Definition: the operator's `definition`.
    """
    most = most_of(operator.rows)
    with function(scheduled=True) as build:
        matmul = FewRowMatmul.declared(build, operator)
        multiply_rows(matmul, min(most, spec.tuning.few_rows.rows), most, spec)
    return build.result


def make_few_rows_on_tensor_cores(operator: Linear, spec: TargetSpec) -> tirx.PrimFunc:
    """The same where tensor cores have the product (few_row_tensor_cores.py).

    Of some matrices they have it from a number of rows on: the host launches one of two kernels.
    """
    with function(scheduled=True) as build:
        matmul = FewRowMatmul.declared(build, operator)
        if direct := _direct_rows(operator, spec):
            with T.If(matmul.n <= direct):
                with T.Then():
                    multiply_rows(matmul, direct, direct, spec)
                with T.Else():
                    multiply_on_tensor_cores(matmul, spec)
        else:
            multiply_on_tensor_cores(matmul, spec)
    return build.result


def _direct_rows(operator: Linear, spec: TargetSpec) -> int:
    """Rows up to which the kernel without tensor cores has a matmul that fits them."""
    output = operator.output
    if operator.tiled or (isinstance(output, PackedOutput) and output.tiled):
        return 0  # only tensor cores read such rows
    return min(most_of(operator.rows), rows_without_tensor_cores(operator.layout, spec))


def multiply_rows(matmul: FewRowMatmul, most: int, bound: int, spec: TargetSpec) -> None:
    """Launch the kernel, whose blocks take `most` rows of x each, of `bound` at most.

    Grid: rows of x / those of a block x W's rows / tile, so that blocks which read the same weights
    run at the same time. Shared: the lanes' partial sums of a few rows of x, those rows where the
    kernel rounds them, and a group of their products where it packs these.
    """
    operator, n, x, weights = matmul.operator, matmul.n, matmul.x, matmul.weights
    rows, cols, packs = operator.layout.rows, operator.cols, matmul.packs
    is_int8 = operator.is_int8
    parts = tirx.floordiv(n + most - 1, most) if most < bound else 1
    items = cols // GROUP if is_int8 else weights.units
    if is_int8 and operator.steps_in:
        items = cols // run_of(operator.layout)
    shape = packing_shape(most, spec) if packs else few_row_shape(rows, items, most, spec)
    tile, lanes, slots = shape.block.tile, shape.block.lanes, shape.block.slots
    with launch(shape.block.threads, parts, -(-rows // tile)) as (part, index, thread):
        block, begin = Block(thread, shape.block.threads, spec.simd_width), bind(part * most)
        count = bind(tirx.min(i32(n) - begin, most))  # the others are other blocks' to write
        slot, first = bind(tirx.floordiv(thread, lanes)), bind(index * tile)
        sums = (ScaledSums if is_int8 and operator.steps_in else RowSums)(shape.sums, block)
        owned = [first + m * slots + slot for m in range(OWN_ROWS)]
        if rows % tile:
            owned = [tirx.min(row, rows - 1) for row in owned]
        own_rows = [bind(row) for row in owned]
        lane = Lane(bind(tirx.floormod(thread, lanes)), lanes, own_rows, first, count, most, begin)
        put: Callable[[int, Expr], None]
        if isinstance(sums, ScaledSums):
            own = add_steps(lane, weights, x[0], bind(matmul.after.input_step))
            put = partial(put_integers, sums, lane, *own, slots=slots)
        else:
            totals = no_totals(most)
            if not is_int8:
                add_floats(lane, weights, x[0], totals)
            elif len(x) == 1:
                packed = round_rows(lane, block, x[0], operator.layout.products.interleaved)
                add_int8(replace(lane, begin=0), weights, *packed, totals)
            else:
                add_int8(lane, weights, x[0], x[1], totals)
            put = partial(put_row, sums, lane, totals, slots=slots)

        values = shared((shape.at_once * GROUP,)) if packs else None

        def finish(i: Expr, own: Expr, row: Expr, added: Sequence[Expr]) -> None:
            if values is None:
                matmul.store(i, bind(first + row), added)
            else:
                product = gelu_tanh(added[0]) * added[1]
                store(values, product, own * GROUP + tirx.floordiv(row, 2))

        def after(first_row: int) -> None:
            if values is None:
                return

            def packed_row(own: Expr) -> Expr:
                row = bind(own + first_row)
                return tirx.Select(row < count, i32(begin) + row, i32(NONE))

            matmul.pack(block, values, index, packed_row)

        _finish(shape, sums, block, lane, slot, put, matmul.sums_a_result, finish, after)


def no_totals(most: int) -> Buffer:
    """A lane's sums, none yet: OWN_ROWS for each row of x that there may be."""
    totals = local((most * OWN_ROWS,))
    for i in range(most):
        store(totals, _OWN.splat(zero()), _OWN.at(i))
    return totals


def add_floats(lane: Lane, weights: WeightReader, x: Buffer, totals: Buffer) -> None:
    """Add the lane's products of float rows, unit by unit of channels."""
    size, lanes = weights.unit, lane.lanes
    channels = Vectors.dividing(size)
    values, scales = local((size * OWN_ROWS,)), local((OWN_ROWS,))

    def read(unit: Expr) -> Callable[[Sequence[Buffer], int], None]:
        def of_split(split: Sequence[Buffer], begin: int) -> None:
            units = [weights.read_unit(split, bind(row - begin), unit) for row in lane.rows]
            for j in range(size):
                column = _OWN.join([bind(decoded[j]) for decoded, _ in units])
                store(values, column, _OWN.at(j))
            store(scales, _OWN.join([scale for _, scale in units]), _OWN.at(0))

        return of_split

    with T.serial(0, lane.steps(weights.units)) as iteration:
        unit = bind(iteration * lanes + lane.lane)
        with when(unit < weights.units):
            weights.in_split(lane.first, read(unit))
            for i in lane.each_row():
                place = lane.place(i)
                dot = local((OWN_ROWS,))
                store(dot, _OWN.splat(zero()), _OWN.at(0))
                for at in range(0, size, channels.size):
                    item = x[place, channels.from_channel(unit * size + at)]
                    inputs = bind(channels.cast(item, "float32"))
                    for j, value in enumerate(channels.lanes(inputs)):
                        product = values[_OWN.at(at + j)] * _OWN.splat(value)
                        store(dot, dot[_OWN.at(0)] + product, _OWN.at(0))
                added = dot[_OWN.at(0)] * scales[_OWN.at(0)]
                store(totals, totals[_OWN.at(i)] + added, _OWN.at(i))


def add_int8(
    lane: Lane, weights: WeightReader, words: Buffer, x_scales: Buffer, totals: Buffer
) -> None:
    """Add the lane's products of packed rows, group by group; integers are summed exactly."""
    layout, lanes = weights.layout, lane.lanes
    groups, size = layout.cols // GROUP, layout.bits  # words of a group of weights
    has_minima = isinstance(layout, MinimaLayout)
    minima = local((OWN_ROWS,)) if has_minima else None
    offset, vectors = layout.products.byte_zero, Vectors.within(size)
    stored, scales = local((OWN_ROWS * size,), "uint32"), local((OWN_ROWS,))
    integers = local((OWN_ROWS * VEC4S,), "uint32")

    def read(group: Expr) -> Callable[[Sequence[Buffer], int], None]:
        def of_split(split: Sequence[Buffer], begin: int) -> None:
            own, lowest = [], []
            for m, row in enumerate(lane.rows):
                local_row = bind(row - begin)
                for at in range(0, size, vectors.size):
                    several = split[0][local_row, vectors.from_channel(group * size + at)]
                    store(stored, several, vectors.from_channel(m * size + at))
                scale, minimum = group_terms(layout, split, local_row, group)
                own.append(bind(scale))
                if minimum is not None:
                    lowest.append(bind(minimum))
            store(scales, _OWN.join(own), _OWN.at(0))
            if minima is not None:
                store(minima, _OWN.join(lowest), _OWN.at(0))

        return of_split

    with T.serial(0, lane.steps(groups)) as iteration:
        group = bind(iteration * lanes + lane.lane)
        with when(group < groups):
            weights.in_split(lane.first, read(group))
            _unpack(layout.products, stored, integers)
            for i in lane.each_row():
                place = lane.place(i)
                vec4s = [
                    bind(words[place, _WORDS.from_channel(group * VEC4S + at)])
                    for at in range(0, VEC4S, WIDEST)
                ]
                mine = [bind(word) for vec4 in vec4s for word in _WORDS.lanes(vec4)]
                total = LocalVar("int32", i32(0))
                for word in mine:
                    total.add(dot4(word, tirx.const(ONES, "uint32")))
                zeros = i32(0) if has_minima else bind(total.value * -offset)
                sums = []
                for m in range(OWN_ROWS):
                    dot = zeros
                    for k, word in enumerate(mine):
                        dot = dot + dot4(integers[m * VEC4S + k], word)
                    sums.append(as_f32(dot))
                own = bind(x_scales[place, group])
                added = scales[_OWN.at(0)] * _OWN.splat(own) * _OWN.join(sums)
                if minima is not None:
                    whole = bind(as_f32(total.value) * own)
                    added = added - minima[_OWN.at(0)] * _OWN.splat(whole)
                store(totals, totals[_OWN.at(i)] + added, _OWN.at(i))


def round_rows(lane: Lane, block: Block, x: Buffer, interleaved: bool) -> tuple[Buffer, Buffer]:
    """Words and scales of the block's rows in shared memory, from 0 on; ends with a barrier."""
    per_row, groups = int(x.shape[1]) // WORD, int(x.shape[1]) // GROUP
    words, scales = shared((lane.most, per_row), "uint32"), shared((lane.most, groups))
    count, vec4s = lane.most * per_row, []
    for iteration in range(-(-count // block.threads)):
        item = bind(tirx.min(block.thread + iteration * block.threads, count - 1))
        row = bind(tirx.min(tirx.floordiv(item, per_row), lane.count - 1))
        vec4 = x[lane.begin + row, _WORDS.at(tirx.floormod(item, per_row))]
        vec4s.append(bind(vec4.astype(f"float32x{WORD}")))

    def put_word(vec4: Expr, word: Expr) -> None:
        store(words, word, tirx.floordiv(vec4, per_row), tirx.floormod(vec4, per_row))

    def put_scale(group: Expr, scale: Expr) -> None:
        store(scales, scale, tirx.floordiv(group, groups), tirx.floormod(group, groups))

    round_vec4s(vec4s, block, count, interleaved, put_word, put_scale)
    barrier()
    return words, scales


def _unpack(packing: ProductPacking, stored: Buffer, integers: Buffer) -> None:
    """Words of bytes in the order of packed x, from all words of weights."""
    words = [stored[place] for place in range(OWN_ROWS * packing.bits)]
    for index, run in enumerate(packing.runs(words)):
        parts = packing.in_order(run)
        for at, part in enumerate(parts):
            store(integers, part, len(parts) * index + at)


def _finish(
    shape: FewRowShape,
    sums: RowSums | ScaledSums,
    block: Block,
    lane: Lane,
    slot: Expr,
    put: Callable[[int, Expr], None],
    step: int,
    body: Callable[[Expr, Expr, Expr, Sequence[Expr]], None],
    after: Callable[[int], None],
) -> None:
    """Add the lanes' sums, of a few rows of x at a time.

    ``put(row of x, row of the tile)`` sets a lane's.
    ``body(row of x, which of those few, row of the tile, step sums)`` all over the block;
    ``after(first of them)`` in all threads.
    """
    tile, outputs = shape.block.tile, shape.block.tile // step
    for begin in range(0, lane.most, shape.at_once):
        with when(lane.count > begin):
            if begin:
                barrier()  # the rows before may still be being read
            for i in range(begin, min(begin + shape.at_once, lane.most)):
                put(i, (i - begin) * tile + slot)
            sums.finish()
            with strided(block, outputs * shape.at_once) as item:
                own = bind(tirx.floordiv(item, outputs))
                with when(own + begin < lane.count):
                    row = bind(tirx.floormod(item, outputs) * step)
                    place = bind(own * tile + row)
                    added = [sums.total(place + index) for index in range(step)]
                    body(bind(lane.begin + own + begin), own, row, added)
            after(begin)


def put_integers(
    sums: ScaledSums,
    lane: Lane,
    integers: Buffer,
    scales: Buffer,
    i: int,
    first: Expr,
    slots: int,
) -> None:
    """As `put_row`, of what `add_steps` gives."""
    for m in range(OWN_ROWS):
        sums.put(first + m * slots, lane.lane, integers[i * OWN_ROWS + m], scales[m])


def put_row(sums: RowSums, lane: Lane, totals: Buffer, i: int, first: Expr, slots: int) -> None:
    """Set the lane's sums of row i of x: OWN_ROWS rows of the tile, `slots` apart, from `first`."""
    for m, part in enumerate(_OWN.lanes(bind(totals[_OWN.at(i)]))):
        sums.put(first + m * slots, lane.lane, part)
