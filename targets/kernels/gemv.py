"""Matrix times one vector: the decode form of `Linear`.

A block of threads is divided into groups of lanes. A group owns `ROWS` consecutive rows; its lanes
stride over the row's units of 8 channels, keep that share of x in registers and use it for all of
the group's rows. Sums are float32, the group's scale is applied once a unit. Plain form:
`Linear.plain` in quantization/operators.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.model_spec.operators.linear import Tail
from gemma4_compile.model_spec.operators.math import as_f32
from gemma4_compile.model_spec.operators.tir import Cell, function, let, when
from gemma4_compile.quantization.operators import Linear
from gemma4_compile.targets.kernels.blocks import (
    launch,
    power_of_two_at_most,
    sum_over_lanes,
    zero,
)
from gemma4_compile.targets.kernels.tails import apply_tail
from gemma4_compile.targets.kernels.weights import WeightReader
from gemma4_compile.targets.spec import TargetSpec

THREADS = 128
ROWS = 4  # rows of a lane group; even, so that gate and up rows stay together
UNITS_PER_LANE = 4  # aim: enough work in a lane to hide its loads
MIN_LANES = 8  # so that a block's rows divide quantization.recipe.ROW_ALIGNMENT and lie in one part


def lanes_for(units: int) -> int:
    """Lanes that share a row of so many units."""
    return power_of_two_at_most(max(MIN_LANES, min(THREADS, units // UNITS_PER_LANE)))


def make_gemv(operator: Linear, _spec: TargetSpec) -> tirx.PrimFunc:
    """``y[r] = tail(sum_k x[k] W[r, k])``.

    Grid: rows / (THREADS / lanes * ROWS). Shared: ROWS float32 a thread. Reference: `Linear.plain`.
    """
    rows, ple = operator.layout.rows, operator.tail == Tail.GELU_GATE.value
    with function(scheduled=True) as build:
        x = build.arg("x", (1, operator.cols), operator.in_dtype)
        weights = WeightReader(build, operator.layout)
        gate = build.arg("ple", (1, operator.ple_width), "float32") if ple else None
        layer = build.scalar_arg("layer") if ple else None
        y = build.arg("y", (1, operator.outputs), "float32")
        lanes = lanes_for(weights.units)
        tile = tile_rows(lanes)
        with launch(THREADS, -(-rows // tile)) as (block, _, thread):
            lane = let(tirx.floormod(thread, lanes))
            first = let(block * tile + tirx.floordiv(thread, lanes) * ROWS)
            sums = [Cell("float32", zero()) for _ in range(ROWS)]
            owned = [tirx.min(first + r, rows - 1) for r in range(ROWS)]

            def accumulate(part: Sequence[Any], begin: int) -> None:
                local = [row - begin for row in owned]
                accumulate_rows(weights, part, local, lambda k: as_f32(x[0, k]), lane, lanes, sums)

            weights.in_part(block * tile, accumulate)
            totals = sum_over_lanes([total.value for total in sums], thread, THREADS, lanes)
            with when(lane == 0):
                apply_tail(operator, y, 0, first, totals, gate, layer, rows)
    return build.result


def tile_rows(lanes: int) -> int:
    """Rows of a block whose groups have so many lanes."""
    return THREADS // lanes * ROWS


def accumulate_rows(
    weights: WeightReader,
    part: Sequence[Any],
    rows: Sequence[Any],
    read_x: Callable[[Any], Any],
    lane: Any,
    lanes: int,
    sums: Sequence[Cell],
) -> None:
    """Add a lane's share of the dot products of x with some rows of one part.

    Parameters
    ----------
    rows : row numbers within the part
    read_x : channel of x, as float32
    sums : one for each row
    """
    with T.serial(0, -(-weights.units // lanes)) as turn:
        unit = let(turn * lanes + lane)
        with when(unit < weights.units):
            inputs = [let(read_x(unit * weights.unit + j)) for j in range(weights.unit)]
            for row, total in zip(rows, sums, strict=True):
                values, scale = weights.read_unit(part, let(row), unit)
                dot = Cell("float32", zero())
                for value, item in zip(values, inputs, strict=True):
                    dot.add(value * item)
                total.add(dot.value * scale)
