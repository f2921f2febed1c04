"""Matrix times one vector: the decode form of `Linear`.

A block of threads is divided into groups of lanes. A group owns some consecutive rows; its lanes
stride over the row's units of 8 channels, keep that share of x in registers and use it for all of
the group's rows. Sums are float32, the group's scale is applied once a unit. Plain form:
`Linear.plain` in quantization/operators.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
MAX_ROWS = 4  # rows of a lane group
UNITS_PER_LANE = 4  # aim: enough work in a lane to hide its loads
MIN_UNITS_PER_LANE = 2
MIN_LANES = 8  # so that a block's rows divide quantization.recipe.ROW_ALIGNMENT and lie in one part
MIN_BLOCKS = 256  # aim: fewer leave much of a large GPU idle


@dataclass(frozen=True)
class GemvShape:
    """Lanes that share a row, and rows that a group of lanes owns."""

    lanes: int
    rows: int

    @property
    def tile(self) -> int:
        """Rows of a block."""
        return THREADS // self.lanes * self.rows

    def blocks(self, rows: int) -> int:
        """Blocks for a matrix of so many rows."""
        return -(-rows // self.tile)


def gemv_shape(rows: int, units: int, paired: bool) -> GemvShape:
    """Long shares and many rows where the matrix is large; many blocks where it is small.

    Parameters
    ----------
    rows, units : of the matrix; a unit is what a lane decodes at a time
    paired : gate and up rows, which stay together, are neighbours
    """
    lanes = power_of_two_at_most(max(MIN_LANES, min(THREADS, units // UNITS_PER_LANE)))
    shape = GemvShape(lanes, MAX_ROWS)
    while shape.blocks(rows) < MIN_BLOCKS and shape.rows > (2 if paired else 1):
        shape = GemvShape(lanes, shape.rows // 2)
    while shape.blocks(rows) < MIN_BLOCKS and units // (2 * shape.lanes) >= MIN_UNITS_PER_LANE:
        if shape.lanes == THREADS:
            break
        shape = GemvShape(2 * shape.lanes, shape.rows)
    return shape


def make_gemv(operator: Linear, _spec: TargetSpec) -> tirx.PrimFunc:
    """``y[r] = tail(sum_k x[k] W[r, k])``.

    Grid: rows / tile. Shared: one float32 a thread and owned row. Reference: `Linear.plain`.
    """
    rows, ple = operator.layout.rows, operator.tail == Tail.GELU_GATE.value
    with function(scheduled=True) as build:
        x = build.arg("x", (1, operator.cols), operator.in_dtype)
        weights = WeightReader(build, operator.layout)
        gate = build.arg("ple", (1, operator.ple_width), "float32") if ple else None
        layer = build.scalar_arg("layer") if ple else None
        y = build.arg("y", (1, operator.outputs), "float32")
        shape = gemv_shape(rows, weights.units, operator.tail == Tail.GELU_PAIRS.value)
        with launch(THREADS, shape.blocks(rows)) as (block, _, thread):
            lane = let(tirx.floormod(thread, shape.lanes))
            first = let(block * shape.tile + tirx.floordiv(thread, shape.lanes) * shape.rows)
            sums = [Cell("float32", zero()) for _ in range(shape.rows)]
            owned = [tirx.min(first + r, rows - 1) for r in range(shape.rows)]

            def accumulate(part: Sequence[Any], begin: int) -> None:
                local = [row - begin for row in owned]
                accumulate_rows(
                    weights, part, local, lambda k: as_f32(x[0, k]), lane, shape.lanes, sums
                )

            weights.in_part(block * shape.tile, accumulate)
            totals = sum_over_lanes([total.value for total in sums], thread, THREADS, shape.lanes)
            with when(lane == 0):
                apply_tail(operator, y, 0, first, totals, gate, layer, rows)
    return build.result


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
