"""Matrix times the rows of a prefill chunk: tiled dequantise-then-multiply in shared memory.

A block computes TILE_M rows of x by TILE_N rows of W, in steps of TILE_K channels. Weights are
decoded once a tile, into shared memory only. Plain form: `Linear.plain` in
quantization/operators.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.model_spec.operators.base import symbolic_rows
from gemma4_compile.model_spec.operators.linear import Tail
from gemma4_compile.model_spec.operators.math import as_f32
from gemma4_compile.model_spec.operators.tir import function, i32, let, store, when
from gemma4_compile.quantization.operators import Linear
from gemma4_compile.targets.kernels.blocks import barrier, launch, local, shared, zero
from gemma4_compile.targets.kernels.tails import apply_tail
from gemma4_compile.targets.kernels.weights import WeightReader
from gemma4_compile.targets.spec import TargetSpec

TILE_M, TILE_N, TILE_K = (
    32,
    64,
    32,
)  # TILE_N is quantization.recipe.ROW_ALIGNMENT: a tile lies in one part
THREAD_M, THREAD_N = 4, 4
THREADS_N = TILE_N // THREAD_N
THREADS = TILE_M // THREAD_M * THREADS_N
RowOf = Callable[[Any], Any]  # row within a tile -> row of the tensor
PITCH = TILE_K + 1  # one more, so that rows start in different banks


def make_gemm(operator: Linear, _spec: TargetSpec) -> tirx.PrimFunc:
    """``y[i, r] = tail(sum_k x[i, k] W[r, k])``.

    Grid: W's rows / TILE_N x chunk rows / TILE_M. Shared: (TILE_M + TILE_N) * PITCH float32, 12.4
    KiB. Reference: `Linear.plain`.
    """
    n, rows, cols = symbolic_rows(operator.rows), operator.layout.rows, operator.cols
    ple = operator.tail == Tail.GELU_GATE.value
    with function(scheduled=True) as build:
        x = build.arg("x", (n, cols), operator.in_dtype)
        weights = WeightReader(build, operator.layout)
        gate = build.arg("ple", (n, operator.ple_width), "float32") if ple else None
        layer = build.scalar_arg("layer") if ple else None
        y = build.arg("y", (n, operator.outputs), "float32")
        grid_m = tirx.floordiv(n + (TILE_M - 1), TILE_M)
        with launch(THREADS, -(-rows // TILE_N), grid_m) as (block_n, block_m, thread):
            x_tile, w_tile = shared((TILE_M, PITCH)), shared((TILE_N, PITCH))
            sums = local((THREAD_M * THREAD_N,))
            for index in range(THREAD_M * THREAD_N):
                store(sums, zero(), index)
            first_n = let(tirx.floormod(thread, THREADS_N) * THREAD_N)
            first_m = let(tirx.floordiv(thread, THREADS_N) * THREAD_M)
            last = let(i32(n) - 1)
            rows_of_x = _clamped(lambda i: block_m * TILE_M + i, last)
            rows_of_w = _clamped(lambda r: block_n * TILE_N + r, rows - 1)
            with T.serial(0, -(-cols // TILE_K)) as step:
                barrier()  # the tiles of the step before may still be being read
                load_x(x, x_tile, thread, rows_of_x, step, cols)
                load_w(weights, w_tile, thread, rows_of_w, block_n * TILE_N, step)
                barrier()
                multiply(x_tile, w_tile, sums, first_m, first_n)
            for i in range(THREAD_M):
                row = let(block_m * TILE_M + first_m + i)
                values = [sums[i * THREAD_N + j] for j in range(THREAD_N)]
                with when(row <= last):
                    apply_tail(
                        operator, y, row, block_n * TILE_N + first_n, values, gate, layer, rows
                    )
    return build.result


def _clamped(row: RowOf, last: Any) -> RowOf:
    """Rows beyond the last repeat it; they are never stored."""
    return lambda i: tirx.min(row(i), last)


def load_x(x: Any, tile: Any, thread: Any, row_of: RowOf, step: Any, cols: int) -> None:
    """Fill the tile of x, float32; neighbouring threads read neighbouring channels."""
    with T.serial(0, TILE_M * TILE_K // THREADS) as turn:
        item = let(turn * THREADS + thread)
        i, k = let(tirx.floordiv(item, TILE_K)), let(tirx.floormod(item, TILE_K))
        column = let(step * TILE_K + k)
        value = as_f32(x[row_of(i), tirx.min(column, cols - 1)])
        whole = cols % TILE_K == 0
        store(tile, value if whole else tirx.Select(column < cols, value, zero()), i, k)


def load_w(
    weights: WeightReader, tile: Any, thread: Any, row_of: RowOf, first_row: Any, step: Any
) -> None:
    """Decode the tile of W, float32; all its rows lie in the part that holds `first_row`."""
    size = weights.unit
    per_row = TILE_K // size
    whole = weights.units % per_row == 0

    def load(part: Sequence[Any], begin: int) -> None:
        with T.serial(0, -(-TILE_N * per_row // THREADS)) as turn:
            item = let(turn * THREADS + thread)
            r, u = let(tirx.floordiv(item, per_row)), let(tirx.floormod(item, per_row))
            unit = let(step * per_row + u)
            row = let(row_of(r) - begin)
            values, scale = weights.read_unit(part, row, tirx.min(unit, weights.units - 1))
            for j, value in enumerate(values):
                scaled = value * scale
                inside = scaled if whole else tirx.Select(unit < weights.units, scaled, zero())
                store(tile, inside, r, u * size + j)

    weights.in_part(first_row, load)


def multiply(x_tile: Any, w_tile: Any, sums: Any, first_m: Any, first_n: Any) -> None:
    """Add the product of both tiles to the thread's sums."""
    with T.serial(0, TILE_K) as k:
        left = [let(x_tile[first_m + i, k]) for i in range(THREAD_M)]
        right = [let(w_tile[first_n + j, k]) for j in range(THREAD_N)]
        for i, a in enumerate(left):
            for j, b in enumerate(right):
                index = i * THREAD_N + j
                store(sums, sums[index] + a * b, index)
