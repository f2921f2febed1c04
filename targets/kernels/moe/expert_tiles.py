"""A chunk's matmul with experts: arguments, tiles of one expert's rows, and what is stored.

Definition: `ExpertLinear` in gemma4_compile/operators/expert_linear.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from gemma4_compile.operators.expert_linear import ExpertLinear
from gemma4_compile.operators.math import gelu_tanh
from gemma4_compile.operators.tir import FunctionBuilder, bind, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import zero
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.prologues.packed_rows import left_args


@dataclass(frozen=True)
class ExpertTiles:
    """Arguments of a chunk's matmul, whose blocks have tiles of `PermuteByExpert`.

    Attributes
    ----------
    x : rows, or words and scales of packed ones
    previous : what an earlier call left for other experts
    """

    operator: ExpertLinear
    x: Sequence[Buffer]
    order: Buffer
    tiles: Buffer
    weights: WeightReader
    previous: Buffer | None
    out: Buffer

    @classmethod
    def declared(cls, build: FunctionBuilder, operator: ExpertLinear) -> ExpertTiles:
        """Declare the function's arguments."""
        rows, pairs = operator.row_counts()
        x = left_args(build, (rows, operator.cols), operator.in_dtype, operator.is_int8)
        order = build.arg("order", (pairs,), "int32")
        tiles = build.arg("tiles", (operator.tile_count(pairs), 3), "int32")
        weights = WeightReader(build, operator.layout)
        out_shape = (pairs, operator.outputs)
        previous = build.arg("previous", out_shape, "float32") if operator.accumulate else None
        out = build.arg("out", out_shape, "float32")
        return cls(operator, x, order, tiles, weights, previous, out)

    def tile(self, number: Expr, first_column: Expr) -> ExpertTile:
        """One of them, by columns of the result before the epilogue."""
        expert = bind(self.tiles[number, 0])
        base = bind(self.operator.first_row(expert))
        begin, end = bind(self.tiles[number, 1]), bind(self.tiles[number, 2])
        return ExpertTile(self, expert, base, begin, end, bind(first_column))


@dataclass(frozen=True)
class ExpertTile:
    """A block's tile: some rows of one expert, from `begin` to `end`, and columns."""

    of: ExpertTiles
    expert: Expr
    base: Expr
    begin: Expr
    end: Expr
    first_column: Expr

    @property
    def is_needed(self) -> Expr:
        """Whether there are rows whose expert is here."""
        return (self.begin < self.end) & self.of.operator.holds(self.expert)

    def row_of_x(self, i: Expr) -> Expr:
        """A row of x by one of the tile; some that exists where there is none."""
        operator = self.of.operator
        row = tirx.max(tirx.min(self.begin + i, self.end - 1), 0)
        return tirx.floordiv(self.of.order[row], operator.top_k) if operator.is_gate_up else row

    def row_of_w(self, r: Expr) -> Expr:
        """A row of the matrix by a column of the tile."""
        return self.base + tirx.min(self.first_column + r, self.of.operator.expert_rows - 1)

    def finish(self, i: Expr, r: Expr, sums: Sequence[Expr]) -> None:
        """Store neighbouring sums, if there are such rows and columns."""
        of, operator = self.of, self.of.operator
        row, column = bind(self.begin + i), bind(self.first_column + r)
        with when(row < self.end):
            target = bind(row if operator.is_gate_up else of.order[row])
            for j, value in tailed(operator, sums):
                with when(column + j < operator.expert_rows):
                    at = bind(tirx.floordiv(column + j, 2 if operator.is_gate_up else 1))
                    kept = kept_or_previous(operator, self.expert, value, of.previous, target, at)
                    store(of.out, kept, target, at)


def tailed(operator: ExpertLinear, values: Sequence[Expr]) -> list[tuple[int, Expr]]:
    """Sums of neighbouring weight rows after the epilogue: (offset of the weight row, result)."""
    if not operator.is_gate_up:
        return list(enumerate(values))
    return [(j, gelu_tanh(bind(values[j])) * values[j + 1]) for j in range(0, len(values), 2)]


def kept_or_previous(
    operator: ExpertLinear,
    expert: Expr,
    value: Expr,
    previous: Buffer | None,
    i: Expr,
    j: Expr,
) -> Expr:
    """The result, or what an earlier call left there if the splits do not hold the expert."""
    other = zero() if previous is None else previous[i, j]
    return tirx.Select(operator.holds(expert), value, other)
