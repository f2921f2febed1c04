"""Matmuls of one position with the chosen experts, on int8 vectors.

The parts are those of int8_gemv.py. Definitions: gemma4_compile/operators/expert_linear.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from tvm import tirx

from gemma4_compile.operators.activation_quantization import GROUP, WORD, quantized_specs
from gemma4_compile.operators.activations import packed_of
from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.moe import routed_begin, routed_width
from gemma4_compile.operators.tir import LocalVar, bind, function, store, when
from gemma4_compile.operators.types import Expr, Index
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    barrier,
    launch,
    shared,
    strided,
    zero,
)
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.int8_block import find_shape, vector_bytes
from gemma4_compile.targets.kernels.linear.int8_gemv import store_packed
from gemma4_compile.targets.kernels.moe.expert_choice import choose, weight_of
from gemma4_compile.targets.kernels.prologues.vectors import float_vec4s
from gemma4_compile.targets.kernels.weights.int8_lanes import (
    GroupTerms,
    LaneSlice,
    QuantizedVector,
    RowStream,
    StagedQuantizedVector,
    StagedRows,
)
from gemma4_compile.targets.kernels.weights.int8_sums import Int8Shape, RowSums
from gemma4_compile.targets.spec import TargetSpec


def gate_up_shape(operator: ExpertLinear, spec: TargetSpec) -> Int8Shape:
    """All chosen experts' rows count: they run side by side."""
    rows, groups = operator.top_k * operator.expert_rows, operator.cols // GROUP
    choice = 4 * operator.top_k
    return find_shape(
        rows, groups, lambda threads: choice + vector_bytes(groups, threads), spec, packs=True
    )


def make_int8_expert_gate_up(operator: ExpertLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """Every block chooses, rounds the vector, multiplies, and leaves packed products.

    Grid: expert rows / tile x top_k. Shared: the vector and the partial sums of a tile. The first
    block of each expert writes its id. Reference: `ExpertLinear.definition`.
    """
    rows, cols, top_k = operator.expert_rows, operator.cols, operator.top_k
    shape = gate_up_shape(operator, spec)
    threads = shape.threads
    with function(scheduled=True) as build:
        begin = routed_begin(operator.experts)
        routed = build.arg("routed", (1, begin + cols), operator.in_dtype)
        weights = WeightReader(build, operator.layout)
        specs = quantized_specs(operator.outputs, top_k)
        results = [
            build.arg(name, *described)
            for name, described in zip(("words", "scales"), specs, strict=True)
        ]
        ids = build.arg("ids", (1, top_k), "int32")
        with launch(threads, rows // shape.tile, top_k) as (tile, k, thread):
            block = Block(thread, threads, spec.simd_width)
            # Under way while the block chooses.
            vec4s = float_vec4s(block, routed, cols, begin)
            own = bind(choose(block, routed, operator.experts, top_k)[k])
            with when((tile == 0) & (thread == 0)):
                store(ids, own, 0, k)
            lane = bind(tirx.floormod(thread, shape.lanes))
            slot = bind(tirx.floordiv(thread, shape.lanes))
            base = bind(operator.first_row(own))
            first = bind(base + tile * shape.tile + slot)
            lane_slice = LaneSlice(operator.layout, shape.lanes, lane)
            rows_of = RowStream(
                weights,
                lane_slice,
                shape.rows,
                lambda iteration: (first + iteration * shape.slots, base),
                gcd(shape.rows, spec.tuning.int8_gemv.expert_rows_ahead),
            )
            staged = StagedQuantizedVector(cols)
            staged.fill(block, vec4s, operator.layout.products.interleaved)
            lane_slice.load(staged.read)
            sums = RowSums(shape, block)
            rows_of.run(
                lambda iteration, *row: sums.put(
                    iteration * shape.slots + slot, lane, lane_slice.dot(*row)
                )
            )
            sums.finish()
            order = packed_of(operator.output).interleaved
            store_packed(shape, sums, tile, block, results, k, order)
    return build.result


def make_int8_expert_down(operator: ExpertLinear, spec: TargetSpec) -> tirx.PrimFunc:
    """A group of lanes takes one row of all chosen experts, one expert after the other.

    Every block weighs the experts. Grid: expert rows / tile. Definition: `ExpertLinear`.
    """
    rows, cols, top_k = operator.expert_rows, operator.cols, operator.top_k
    staged = 4 * top_k * (cols // WORD + cols // GROUP + 1)
    found = find_shape(rows, cols // GROUP, lambda threads: staged, spec)
    shape = replace(found, rows=1)
    with function(scheduled=True) as build:
        packed = QuantizedVector(build, cols, top_k)
        ids = build.arg("ids", (1, top_k), "int32")
        scores = build.arg("scores", (1, routed_width(operator.experts, rows)), "float32")
        expert_scale = build.arg("expert_scale", (operator.experts,), "float32")
        weights = WeightReader(build, operator.layout)
        y = build.arg("y", (1, rows), "float32")
        with launch(shape.threads, -(-rows // shape.tile)) as (tile, _, thread):
            block = Block(thread, shape.threads, spec.simd_width)
            lane = bind(tirx.floormod(thread, shape.lanes))
            slot = bind(tirx.floordiv(thread, shape.lanes))
            row = bind(tirx.min(tile * shape.tile + slot, rows - 1))
            lane_slice = LaneSlice(operator.layout, shape.lanes, lane)

            def row_of(k: Index) -> tuple[Expr, Expr]:
                base = bind(operator.first_row(ids[0, k]))
                return base + row, base

            rows_of = RowStream(weights, lane_slice, top_k, row_of, 2 - top_k % 2)
            vectors = StagedRows(packed, block)
            chosen = shared((top_k,))
            with strided(block, top_k) as k:
                every = [bind(ids[0, other]) for other in range(top_k)]
                own = bind(ids[0, k])
                store(chosen, weight_of(own, every, lambda e: scores[0, e], expert_scale), k)
            barrier()
            total = LocalVar("float32", zero())

            def add_expert(
                k: Expr, words: Sequence[Sequence[Expr]], terms: Sequence[GroupTerms]
            ) -> None:
                lane_slice.load(lambda group: vectors.read(group, k))
                total.add(chosen[k] * lane_slice.dot(words, terms))

            rows_of.run(add_expert)
            sums = RowSums(shape, block)
            sums.put(slot, lane, total.value)
            sums.finish()
            with strided(block, shape.tile) as item:
                result = sums.total(item)
                with when(tile * shape.tile + item < rows):
                    store(y, result, 0, tile * shape.tile + item)
    return build.result
