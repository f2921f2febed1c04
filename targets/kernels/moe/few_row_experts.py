"""A few positions with their experts: each expert's weights are read and decoded once.

A block takes a tile of rows of the expert of one (position, slot) pair, and multiplies it with all
positions that chose the expert, as few_row_gemv.py does with all rows of x. So that this happens
once, the blocks of an expert's other pairs have nothing to do: only the first of the pairs has.
Every block finds its pairs itself, in the ids of all positions.

Definitions: gemma4_compile/operators/expert_linear.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import GROUP, PACKED_ROWS
from gemma4_compile.operators.activations import PackedOutput
from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.rows import most_of
from gemma4_compile.operators.tir import bind, function, i32, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.quantization.recipe import ROW_ALIGNMENT
from gemma4_compile.targets.kernels.common.blocks import Block, barrier, launch, shared, strided
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.few_row_gemv import (
    Lane,
    add_floats,
    add_int8,
    no_totals,
    put_row,
)
from gemma4_compile.targets.kernels.linear.few_row_shape import (
    MIN_LANES,
    OWN_ROWS,
    few_row_shape,
)
from gemma4_compile.targets.kernels.moe.expert_tiles import kept_or_previous, tailed
from gemma4_compile.targets.kernels.moe.router import slots_of
from gemma4_compile.targets.kernels.prologues.packed_products import NONE, pack_products
from gemma4_compile.targets.kernels.prologues.packed_rows import left_args, matmul_results
from gemma4_compile.targets.kernels.weights.int8_sums import Int8Shape, RowSums
from gemma4_compile.targets.spec import TargetSpec


@dataclass(frozen=True)
class _ExpertLane(Lane):
    """A lane whose rows of x are the positions that chose the block's expert.

    Attributes
    ----------
    pairs : for each position that there may be its pair, or NONE
    reads_pairs : x has a row for each pair, otherwise for each position
    needed : the block has anything to multiply
    """

    pairs: Sequence[Expr] = ()
    reads_pairs: bool = False
    needed: Expr | None = None

    def has(self, i: int) -> Expr | None:
        return self.pairs[i] >= 0

    def place(self, i: int) -> Index:
        return self.pairs[i] if self.reads_pairs else i

    def steps(self, items: int) -> Index:
        count = i32(-(-items // self.lanes))
        return bind(tirx.Select(self.needed, count, i32(0)))


def make_few_row_experts(operator: ExpertLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """A tile of one expert's rows, for all positions that chose it.

    Grid: expert rows / tile (of a packed result as many tiles as make a group) x pairs. Shared: the
    lanes' partial sums of a position, and the group. Definition: the operator's `definition`.
    """
    n, rows, top_k = symbolic_rows(None), operator.expert_rows, operator.top_k
    is_int8, pairs, output = operator.is_int8, n * top_k, operator.output
    packs = isinstance(output, PackedOutput)
    order = isinstance(output, PackedOutput) and output.interleaved
    with function(scheduled=True) as build:
        size = (n if operator.is_gate_up else pairs, operator.cols)
        x = left_args(build, size, operator.in_dtype, is_int8)
        ids = build.arg("ids", (n, top_k), "int32")
        weights = WeightReader(build, operator.layout)
        wide = (pairs, operator.outputs)
        previous = build.arg("previous", wide, "float32") if operator.accumulate else None
        results = matmul_results(build, "out", wide, packs)
        items = operator.cols // GROUP if is_int8 else weights.units
        shape = _shape_of(operator, items, spec)
        tile, lanes, slots = shape.tile, shape.lanes, shape.slots
        parts = PACKED_ROWS // tile if packs else 1
        with launch(shape.threads, -(-rows // (tile * parts)), pairs) as (index, pair, thread):
            block, count = Block(thread, shape.threads, spec.simd_width), bind(i32(n))
            expert = bind(ids[tirx.floordiv(pair, top_k), tirx.floormod(pair, top_k)])
            mine, is_first = _pairs_of(operator, ids, expert, pair, count)
            slot, base = bind(tirx.floordiv(thread, lanes)), bind(operator.first_row(expert))
            number, sums = bind(tirx.floormod(thread, lanes)), RowSums(shape, block)
            values = shared((most_of(operator.rows) * GROUP,)) if packs else None
            with each_part(parts) as part:
                first = bind((index * parts + part) * tile)
                owned = [first + m * slots + slot for m in range(OWN_ROWS)]
                lane = _ExpertLane(
                    number,
                    lanes,
                    [bind(base + tirx.min(row, rows - 1)) for row in owned],
                    base,
                    count,
                    most_of(operator.rows),
                    pairs=mine,
                    reads_pairs=not operator.is_gate_up,
                    needed=is_first & operator.holds(expert),
                )
                totals = no_totals(most_of(operator.rows))
                if is_int8:
                    add_int8(lane, weights, x[0], x[1], totals)
                else:
                    add_floats(lane, weights, x[0], totals)
                step = 2 if operator.is_gate_up else 1
                for i in lane.each_row():
                    barrier()  # the row before may still be being read
                    put_row(sums, lane, totals, i, slot, slots)
                    sums.finish()
                    with strided(block, tile // step) as item:
                        row = bind(item * step)
                        added = [sums.total(row + other) for other in range(step)]
                        ((_, value),) = tailed(operator, added)
                        if values is not None:
                            store(values, value, i * GROUP + part * (tile // 2) + item)
                        else:
                            at, row_of = bind(tirx.floordiv(first, step) + item), mine[i]
                            with when(first + row < rows):
                                args = expert, value, previous, row_of, at
                                kept = kept_or_previous(operator, *args)
                                store(results[0], kept, row_of, at)
            if values is not None:
                pack_products(block, values, results, index, order, lambda i: _chosen(mine, i))
    return build.result


@contextmanager
def each_part(parts: int) -> Iterator[Index]:
    """A block's tiles, one after the other: their number."""
    if parts == 1:
        yield 0
        return
    with T.serial(0, parts) as part:
        barrier()  # sums of the tile before may still be being read
        yield part


def _shape_of(operator: ExpertLinear, items: int, spec: TargetSpec) -> Int8Shape:
    """The block, which all choices of a position fill the device with.

    Where rows are so short that a tile of as many threads would be too tall, fewer threads: not
    more lanes, of which some would be idle.
    """
    tuning = spec.tuning.few_rows
    threads = MIN_LANES * ROW_ALIGNMENT // OWN_ROWS
    if items <= MIN_LANES * tuning.items_per_lane and threads < tuning.threads:
        tuning = replace(tuning, threads=threads)
        spec = replace(spec, tuning=replace(spec.tuning, few_rows=tuning))
    return few_row_shape(operator.top_k * operator.expert_rows, items, 1, spec).block


def _chosen(pairs: Sequence[Expr], row: Expr) -> Expr:
    """The pair of a row that is not known before the kernel runs."""
    own = pairs[0]
    for i, pair in enumerate(pairs[1:], 1):
        own = tirx.Select(row == i, pair, own)
    return own


def _pairs_of(
    operator: ExpertLinear, ids: Buffer, expert: Expr, pair: Expr, count: Expr
) -> tuple[list[Expr], Expr]:
    """For each position the pair that chose an expert, and whether `pair` is the first of them.

    NONE for positions that did not, or that there are not, and for all if `pair` is not the first.
    """
    top_k, found = operator.top_k, []
    for i in range(most_of(operator.rows)):
        position = bind(tirx.min(i32(i), count - 1))
        own = i32(NONE)
        for k, is_own in slots_of(ids, position, top_k, expert):
            own = tirx.Select(is_own, i32(i * top_k + k), own)
        found.append(materialize(tirx.Select(i32(i) < count, own, i32(NONE))))
    lowest = reduce(tirx.min, [one.astype("uint32") for one in found])  # of NONE the largest
    is_first = materialize(tirx.Select(lowest == pair.astype("uint32"), i32(1), i32(0))) == 1
    return [materialize(tirx.Select(is_first, one, i32(NONE))) for one in found], is_first
