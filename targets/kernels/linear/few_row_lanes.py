"""A lane's part of a product of a few rows, and its sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from gemma4_compile.operators.tir import bind, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import local, zero
from gemma4_compile.targets.kernels.common.vectors import Vectors
from gemma4_compile.targets.kernels.linear.few_row_shape import OWN_ROWS
from gemma4_compile.targets.kernels.linear.int8_sums import RowSums

OWN = Vectors(OWN_ROWS)


@dataclass(frozen=True)
class Lane:
    """One lane's part of a block's product.

    Attributes
    ----------
    lane, lanes : its number among those that share a row, and their number
    rows : of the matrix, those of its group
    first : row of the block that is in the same split as all of them
    count : rows of x that the block has
    most : rows of x that it may have
    begin : the first of them
    """

    lane: Expr
    lanes: int
    rows: Sequence[Expr]
    first: Expr
    count: Expr
    most: int
    begin: Index = 0

    def has(self, i: int) -> Expr | None:
        """The condition for row i, the same in all threads; None where there always is one."""
        return self.count > i if i else None

    def place(self, i: int) -> Index:
        """Where row i is in x."""
        return self.begin + i

    def steps(self, items: int) -> Index:
        """Iterations over the items of a row of the matrix."""
        return -(-items // self.lanes)

    def each_row(self) -> Iterator[int]:
        """The rows of x, each as the text that it needs, under its condition."""
        for i in range(self.most):
            condition = self.has(i)
            with nullcontext() if condition is None else when(condition):
                yield i


def no_totals(most: int) -> Buffer:
    """A lane's sums, none yet: OWN_ROWS for each row of x that there may be."""
    totals = local((most * OWN_ROWS,))
    for i in range(most):
        store(totals, OWN.splat(zero()), OWN.at(i))
    return totals


def put_row(sums: RowSums, lane: Lane, totals: Buffer, i: int, first: Expr, slots: int) -> None:
    """Set the lane's sums of row i of x: OWN_ROWS rows of the tile, `slots` apart, from `first`."""
    for m, part in enumerate(OWN.lanes(bind(totals[OWN.at(i)]))):
        sums.put(first + m * slots, lane.lane, part)
