"""Matmuls of one position with the chosen experts, on int8 vectors.

The parts are those of int8_gemv.py. Plain forms: quantization/int8_operators.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import tirx

from gemma4_compile.model_spec.operators.int8 import GROUP, WORD, packed_specs
from gemma4_compile.model_spec.operators.tir import Cell, function, let, store, when
from gemma4_compile.quantization.int8_operators import Int8ExpertDown, Int8ExpertGateUp
from gemma4_compile.targets.kernels.blocks import barrier, launch, strided, zero
from gemma4_compile.targets.kernels.int8_gemv import (
    Int8Shape,
    RowSums,
    find_shape,
    store_packed,
    vector_bytes,
)
from gemma4_compile.targets.kernels.int8_lanes import (
    LaneShare,
    PackedVector,
    RowStream,
    StagedRows,
    StagedVector,
)
from gemma4_compile.targets.kernels.int8_vectors import float_quads
from gemma4_compile.targets.kernels.weights import WeightReader
from gemma4_compile.targets.spec import TargetSpec


def gate_up_shape(operator: Int8ExpertGateUp, spec: TargetSpec) -> Int8Shape:
    """All chosen experts' rows count: they run side by side."""
    rows, groups = operator.top_k * operator.expert_rows, operator.cols // GROUP
    return find_shape(rows, groups, lambda threads: vector_bytes(groups, threads), spec, packs=True)


def make_int8_expert_gate_up(operator: Int8ExpertGateUp, spec: TargetSpec) -> tirx.PrimFunc:
    """Round the vector, multiply, leave packed products.

    Grid: expert rows / tile x top_k. Reference: `Int8ExpertGateUp.plain`.
    """
    rows, cols, top_k = operator.expert_rows, operator.cols, operator.top_k
    shape = gate_up_shape(operator, spec)
    threads = shape.threads
    with function(scheduled=True) as build:
        x = build.arg("x", (1, cols), operator.in_dtype)
        ids = build.arg("ids", (1, top_k), "int32")
        weights = WeightReader(build, operator.layout)
        specs = packed_specs(operator.outputs, top_k)
        results = [
            build.arg(name, *described)
            for name, described in zip(("words", "scales"), specs, strict=True)
        ]
        with launch(threads, rows // shape.tile, top_k) as (block, k, thread):
            lane = let(tirx.floormod(thread, shape.lanes))
            slot = let(tirx.floordiv(thread, shape.lanes))
            base = let(operator.first_row(ids[0, k]))
            first = let(base + block * shape.tile + slot)
            share = LaneShare(operator.layout, shape.lanes, lane)
            rows_of = RowStream(
                weights, share, shape.rows, lambda turn: (first + turn * shape.slots, base)
            )
            staged = StagedVector(cols)
            quads = float_quads(x, cols, thread, threads)
            staged.fill(quads, thread, threads, operator.bits == 4, spec.simd_width)
            share.load(staged.read)
            sums = RowSums(shape, thread)
            rows_of.run(
                lambda turn, *row: sums.put(turn * shape.slots + slot, lane, share.dot(*row))
            )
            sums.finish()
            order = operator.interleaved_out
            store_packed(shape, sums, block, thread, results, k, order, spec.simd_width)
    return build.result


def make_int8_expert_down(operator: Int8ExpertDown, spec: TargetSpec) -> tirx.PrimFunc:
    """A group of lanes takes one row of all chosen experts, one expert after the other.

    Grid: expert rows / tile. Reference: `Int8ExpertDown.plain`.
    """
    rows, cols, top_k = operator.expert_rows, operator.cols, operator.top_k
    staged = 4 * top_k * (cols // WORD + cols // GROUP)
    found = find_shape(rows, cols // GROUP, lambda threads: staged, spec)
    shape = replace(found, rows=1)
    with function(scheduled=True) as build:
        packed = PackedVector(build, cols, top_k)
        ids = build.arg("ids", (1, top_k), "int32")
        chosen = build.arg("chosen", (1, top_k), "float32")
        weights = WeightReader(build, operator.layout)
        y = build.arg("y", (1, rows), "float32")
        with launch(shape.threads, -(-rows // shape.tile)) as (block, _, thread):
            lane = let(tirx.floormod(thread, shape.lanes))
            slot = let(tirx.floordiv(thread, shape.lanes))
            row = let(tirx.min(block * shape.tile + slot, rows - 1))
            share = LaneShare(operator.layout, shape.lanes, lane)

            def row_of(k: Any) -> tuple[Any, Any]:
                base = let(operator.first_row(ids[0, k]))
                return base + row, base

            rows_of = RowStream(weights, share, top_k, row_of, 2 - top_k % 2)
            vectors = StagedRows(packed, thread, shape.threads)
            barrier()
            total = Cell("float32", zero())

            def add_expert(k: Any, *present: Any) -> None:
                share.load(lambda group: vectors.read(group, k))
                total.add(chosen[0, k] * share.dot(*present))

            rows_of.run(add_expert)
            sums = RowSums(shape, thread)
            sums.put(slot, lane, total.value)
            sums.finish()
            with strided(thread, shape.threads, shape.tile) as item:
                result = sums.total(item)
                with when(block * shape.tile + item < rows):
                    store(y, result, 0, block * shape.tile + item)
    return build.result
