"""Matrix times one vector: the decode form of `Linear`.

A block of threads is divided into groups of lanes. A group owns some consecutive rows; its lanes
stride over the row's units of 8 channels, keep that slice of x in registers and use it for all of
the group's rows. Sums are float32, the group's scale is applied once a unit. Definition:
`Linear.definition` in gemma4_compile/operators/linear.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.math import as_f32
from gemma4_compile.operators.tir import LocalVar, bind, function, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.quantization.recipe import ROW_ALIGNMENT
from gemma4_compile.targets.kernels.common.blocks import (
    Block,
    launch,
    power_of_two_at_most,
    sum_over_lanes,
    zero,
)
from gemma4_compile.targets.kernels.common.epilogues import apply_epilogue, gate_args
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.spec import TargetSpec
from gemma4_compile.targets.tuning import GemvTuning

MIN_LANES = 8


@dataclass(frozen=True)
class GemvShape:
    """Threads of a block, lanes of it that share a row, and rows that a group of lanes owns."""

    threads: int
    lanes: int
    rows: int

    @property
    def tile(self) -> int:
        """Rows of a block; it divides ROW_ALIGNMENT, so that they lie in one split."""
        return self.threads // self.lanes * self.rows

    def blocks(self, rows: int) -> int:
        """Blocks for a matrix of so many rows."""
        return -(-rows // self.tile)


def gemv_shape(rows: int, units: int, paired: bool, tuning: GemvTuning) -> GemvShape:
    """Long slices and many rows where the matrix is large; many blocks where it is small.

    Parameters
    ----------
    rows, units : of the matrix; a unit is what a lane decodes at a time
    paired : gate and up rows, which stay together, are neighbours
    """
    threads, few = tuning.threads, 2 if paired else 1
    wanted = max(MIN_LANES, threads // ROW_ALIGNMENT, min(threads, units // tuning.units_per_lane))
    shape = GemvShape(threads, power_of_two_at_most(wanted), tuning.rows)
    while shape.rows > few and (
        shape.tile > ROW_ALIGNMENT or shape.blocks(rows) < tuning.min_blocks
    ):
        shape = replace(shape, rows=shape.rows // 2)
    while shape.lanes < threads and (
        shape.tile > ROW_ALIGNMENT
        or (
            shape.blocks(rows) < tuning.min_blocks
            and units // (2 * shape.lanes) >= tuning.min_units_per_lane
        )
    ):
        shape = replace(shape, lanes=2 * shape.lanes)
    return shape


def make_gemv(operator: Linear, spec: TargetSpec) -> tirx.PrimFunc:
    """``y[r] = epilogue(sum_k x[k] W[r, k])``.

    Grid: rows / tile. Shared: one float32 a thread and owned row. Reference: `Linear.definition`.
    """
    rows = operator.layout.rows
    with function(scheduled=True) as build:
        x = build.arg("x", (1, operator.cols), operator.in_dtype)
        weights = WeightReader(build, operator.layout)
        gate, layer = gate_args(build, operator, 1)
        y = build.arg("y", (1, operator.outputs), "float32")
        paired = operator.epilogue == Epilogue.GELU_PAIRS.value
        shape = gemv_shape(rows, weights.units, paired, spec.tuning.gemv)
        with launch(shape.threads, shape.blocks(rows)) as (index, _, thread):
            block = Block(thread, shape.threads, spec.simd_width)
            lane = bind(tirx.floormod(thread, shape.lanes))
            first = bind(index * shape.tile + tirx.floordiv(thread, shape.lanes) * shape.rows)
            sums = [LocalVar("float32", zero()) for _ in range(shape.rows)]
            owned = [tirx.min(first + r, rows - 1) for r in range(shape.rows)]

            def accumulate(split: Sequence[Buffer], begin: int) -> None:
                local = [row - begin for row in owned]
                accumulate_rows(
                    weights, split, local, lambda k: as_f32(x[0, k]), lane, shape.lanes, sums
                )

            weights.in_split(index * shape.tile, accumulate)
            totals = sum_over_lanes(block, [total.value for total in sums], shape.lanes)
            with when(lane == 0):
                apply_epilogue(operator, y, 0, first, totals, gate, layer, rows)
    return build.result


def accumulate_rows(
    weights: WeightReader,
    split: Sequence[Buffer],
    rows: Sequence[Expr],
    read_x: Callable[[Expr], Expr],
    lane: Expr,
    lanes: int,
    sums: Sequence[LocalVar],
) -> None:
    """Add a lane's slice of the dot products of x with some rows of one split.

    Parameters
    ----------
    rows : row numbers within the split
    read_x : channel of x, as float32
    sums : one for each row
    """
    with T.serial(0, -(-weights.units // lanes)) as iteration:
        unit = bind(iteration * lanes + lane)
        with when(unit < weights.units):
            inputs = [bind(read_x(unit * weights.unit + j)) for j in range(weights.unit)]
            for row, total in zip(rows, sums, strict=True):
                values, scale = weights.read_unit(split, bind(row), unit)
                dot = LocalVar("float32", zero())
                for value, item in zip(values, inputs, strict=True):
                    dot.add(value * item)
                total.add(dot.value * scale)
