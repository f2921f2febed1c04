"""A few packed positions with their experts on tensor cores.

A block takes some rows of the expert of one (position, slot) pair, and multiplies them with up to
eight positions at a time, of which those that chose the expert count. So that this happens once,
the blocks of an expert's other pairs among those positions have nothing to do: only the first of
them has. Which they are the block looks up in the ids.

Definitions: gemma4_compile/operators/expert_linear.py. The product: linear/byte_products.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from gemma4_compile.operators.activation_quantization import GROUP, PACKED_ROWS
from gemma4_compile.operators.activations import packed_of
from gemma4_compile.operators.base import symbolic_rows
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import Block, barrier, launch, resident, shared
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.moe.expert_tiles import kept_or_previous, tailed
from gemma4_compile.targets.kernels.moe.router import slots_of
from gemma4_compile.targets.kernels.prologues.packed_products import NONE, pack_products
from gemma4_compile.targets.kernels.prologues.packed_rows import left_args, matmul_results
from gemma4_compile.targets.kernels.tiles.byte_products import (
    begin_reading,
    multiply,
    store_sums,
)
from gemma4_compile.targets.kernels.tiles.byte_rows import Rows
from gemma4_compile.targets.kernels.tiles.few_row_shape import (
    TensorCoreShape,
    takes_tensor_cores,
    tensor_core_shape,
)
from gemma4_compile.targets.kernels.tiles.minima_products import weights_of
from gemma4_compile.targets.kernels.tiles.tensor_cores import BYTE_ROWS
from gemma4_compile.targets.kernels.tiles.warps import Warp
from gemma4_compile.targets.spec import TargetSpec

USUAL_POSITIONS = 2  # whose experts are different ones


def fits_tensor_cores(operator: ExpertLinear, spec: TargetSpec) -> bool:
    """Return whether the target has them and both sides are bytes."""
    is_int8 = operator.is_int8
    return spec.tensor_cores and is_int8 and takes_tensor_cores(operator.layout)


def make_few_row_expert_tensor_cores(operator: ExpertLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """Some of one expert's rows, for those of eight positions that chose it.

    Grid: expert rows / those of a block x pairs. Shared: what lanes hand on, the warps' sums, each
    position's pair, and products that are packed. Definition: the operator's `definition`.
    """
    n, rows, top_k = symbolic_rows(None), operator.expert_rows, operator.top_k
    pairs, packs, gated = n * top_k, operator.packs, operator.is_gate_up
    shape = _shape_of(operator, spec)
    with function(scheduled=True) as build:
        x = left_args(build, (n if gated else pairs, operator.cols), operator.in_dtype, True)
        ids = build.arg("ids", (n, top_k), "int32")
        reader = WeightReader(build, operator.layout)
        wide = (pairs, operator.outputs)
        previous = build.arg("previous", wide, "float32") if operator.accumulate else None
        results = matmul_results(build, "out", wide, packs)
        grid = -(-rows // shape.rows), pairs
        with launch(shape.threads, *grid) as numbers, resident(shape.resident):
            index, block_pair, thread = numbers
            pair, block = bind(i32(block_pair)), Block(thread, shape.threads, spec.simd_width)
            position = bind(tirx.floordiv(pair, top_k))
            expert = bind(ids[position, tirx.floormod(pair, top_k)])
            begin = bind(tirx.floordiv(position, BYTE_ROWS) * BYTE_ROWS)
            count = bind(tirx.min(i32(n) - begin, BYTE_ROWS))
            first, base = bind(index * shape.rows), bind(operator.first_row(expert))
            warp = Warp(shape, thread)
            weights = weights_of(
                warp, reader, base, lambda row: base + tirx.min(first + row, rows - 1)
            )
            begin_reading(warp, weights)  # under way while the block looks for its pairs
            chosen = _pairs_of(ids, expert, begin, count, thread)
            values = shared((BYTE_ROWS * GROUP,)) if packs else None
            with when(_first_of(chosen) == pair):

                def row_of(i: Expr) -> Expr:
                    if gated:
                        return begin + tirx.min(i, count - 1)
                    own = bind(chosen[i])
                    return tirx.Select(own >= 0, own, pair)

                left = Rows(warp, x, row_of, operator.layout)
                sums = multiply(warp, weights, left, has_begun=True)

                def finish(i: Expr, row: Expr, added: Sequence[Expr]) -> None:
                    ((_, value),) = tailed(operator, added)
                    if values is not None:
                        store(values, value, i * GROUP + tirx.floordiv(row, 2))
                        return
                    at, own = bind(tirx.floordiv(first + row, len(added))), bind(chosen[i])
                    with when(first + row < rows):
                        kept = kept_or_previous(operator, expert, value, previous, own, at)
                        store(results[0], kept, own, at)

                store_sums(
                    warp, block, sums, lambda i: bind(chosen[i]) >= 0, 2 if gated else 1, finish
                )
                if values is not None:
                    order = packed_of(operator.output).interleaved
                    pack_products(block, values, results, index, order, lambda i: chosen[i])
    return build.result


def _shape_of(operator: ExpertLinear, spec: TargetSpec) -> TensorCoreShape:
    """The block, with which all choices fill the device; a group if it is packed."""
    block_rows = operator.packs * PACKED_ROWS
    rows, copies = operator.expert_rows, USUAL_POSITIONS * operator.top_k
    return tensor_core_shape(operator.layout, rows, spec, block_rows, copies)


def _pairs_of(ids: Buffer, expert: Expr, begin: Expr, count: Expr, thread: Expr) -> Buffer:
    """For each of eight positions the pair that chose an expert, or NONE; ends with a barrier."""
    chosen, top_k = shared((BYTE_ROWS,), "int32"), int(ids.shape[1])
    with when(thread < BYTE_ROWS):
        position = bind(begin + tirx.min(thread, count - 1))
        own = LocalVar("int32", i32(NONE))
        for k, is_own in slots_of(ids, position, top_k, expert):
            own.set(tirx.Select(is_own, position * top_k + k, own.value))
        store(chosen, tirx.Select(thread < count, own.value, i32(NONE)), thread)
    barrier()
    return chosen


def _first_of(chosen: Buffer) -> Expr:
    """The first pair that there is."""
    first = LocalVar("int32", chosen[BYTE_ROWS - 1])
    for i in reversed(range(BYTE_ROWS - 1)):
        own = bind(chosen[i])
        first.set(tirx.Select(own >= 0, own, first.value))
    return first.value
