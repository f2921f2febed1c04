"""`NormedLinear`: every block does the norm for itself, then its rows of the matrix.

The norm of a few thousand channels costs a block less than a launch. Its result stays in shared
memory, in the order in which neighbouring lanes read it: channel u * unit + j at j * units + u.
Plain form: `NormedLinear.plain` in quantization/fused_operators.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from gemma4_compile.model_spec.operators.linear import Tail
from gemma4_compile.model_spec.operators.math import as_f32, f32
from gemma4_compile.model_spec.operators.tir import Cell, function, let, store, when
from gemma4_compile.quantization.fused_operators import NormedLinear
from gemma4_compile.targets.kernels.blocks import (
    BlockReduction,
    barrier,
    launch,
    shared,
    strided,
    sum_over_lanes,
    zero,
)
from gemma4_compile.targets.kernels.gemv import (
    ROWS,
    THREADS,
    accumulate_rows,
    lanes_for,
    tile_rows,
)
from gemma4_compile.targets.kernels.tails import apply_tail
from gemma4_compile.targets.kernels.weights import WeightReader
from gemma4_compile.targets.spec import TargetSpec

OTHER_SHARED_BYTES = 4 * THREADS * (ROWS + 1)  # partial sums of the rows, and of the norms


def fused_width(spec: TargetSpec) -> int:
    """The longest vector whose norm fits into shared memory beside the partial sums."""
    return max(0, (spec.max_shared_memory_bytes - OTHER_SHARED_BYTES) // 4)


def make_normed_gemv(operator: NormedLinear, _spec: TargetSpec) -> tirx.PrimFunc:
    """Norm, residual addition, norm, then the dot products of `make_gemv`.

    Grid: rows / (THREADS / lanes * ROWS). Shared: the vector, ROWS + 1 float32 a thread. Block 0
    writes the new residual. Reference: `NormedLinear.plain`.
    """
    rows, width, ple = operator.layout.rows, operator.cols, operator.tail == Tail.GELU_GATE.value
    with function(scheduled=True) as build:
        branch = build.arg("branch", (1, width), "float32")
        residual = build.arg("residual", (1, width), "float32")
        w_branch = build.arg("w_branch", (width,), "float32")
        scalar: Any = build.arg("scalar", (1,), "float32") if operator.scaled else None
        w_next: Any = build.arg("w_next", (width,), "float32") if operator.normed else None
        weights = WeightReader(build, operator.layout)
        gate = build.arg("ple", (1, operator.ple_width), "float32") if ple else None
        layer = build.scalar_arg("layer") if ple else None
        out = build.arg("out", (1, width), "float32")
        y = build.arg("y", (1, operator.outputs), "float32")
        lanes = lanes_for(weights.units)
        tile = tile_rows(lanes)
        with launch(THREADS, -(-rows // tile)) as (block, _, thread):
            vector = shared((width,))
            reduce = BlockReduction(thread, THREADS)

            def place(k: Any) -> Any:
                unit = weights.unit
                return tirx.floormod(k, unit) * weights.units + tirx.floordiv(k, unit)

            def inverse(squares: Any) -> Any:
                return let(tirx.rsqrt(reduce(squares) / f32(width) + f32(operator.eps)))

            squares = Cell("float32", zero())
            with strided(thread, THREADS, width) as k:
                squares.add(branch[0, k] * branch[0, k])
            inverse_branch = inverse(squares.value)
            squares.set(zero())
            with strided(thread, THREADS, width) as k:
                value = residual[0, k] + branch[0, k] * inverse_branch * w_branch[k]
                value = let(value * scalar[0] if operator.scaled else value)
                squares.add(value * value)
                store(vector, value, place(k))
                with when(block == 0):
                    store(out, value, 0, k)
            if operator.normed:
                inverse_out = inverse(squares.value)
                with strided(thread, THREADS, width) as k:
                    normed = vector[place(k)] * inverse_out * w_next[k]
                    store(vector, as_f32(normed.astype(operator.in_dtype)), place(k))
            barrier()
            lane = let(tirx.floormod(thread, lanes))
            first = let(block * tile + tirx.floordiv(thread, lanes) * ROWS)
            sums = [Cell("float32", zero()) for _ in range(ROWS)]
            owned = [tirx.min(first + r, rows - 1) for r in range(ROWS)]

            def accumulate(part: Sequence[Any], begin: int) -> None:
                local = [row - begin for row in owned]
                accumulate_rows(weights, part, local, lambda k: vector[place(k)], lane, lanes, sums)

            weights.in_part(block * tile, accumulate)
            totals = sum_over_lanes([total.value for total in sums], thread, THREADS, lanes)
            with when(lane == 0):
                apply_tail(operator, y, 0, first, totals, gate, layer, rows)
    return build.result
