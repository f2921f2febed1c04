"""The shape of a block that multiplies int8 vectors, and its sums over lanes in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from gemma4_compile.operators.math import as_f32
from gemma4_compile.operators.tir import bind, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import Block, add, barrier, shared, strided, tree

RUN = 16  # sums that one thread adds up


@dataclass(frozen=True)
class Int8Shape:
    """A block's threads, the lanes that share a row, and the rows of a group of lanes."""

    threads: int
    lanes: int
    rows: int

    @property
    def slots(self) -> int:
        """Rows that a block multiplies at a time."""
        return self.threads // self.lanes

    @property
    def tile(self) -> int:
        """Rows of a block."""
        return self.slots * self.rows

    @property
    def runs(self) -> int:
        """Runs of a row's partial sums."""
        return -(-self.lanes // RUN)

    @property
    def pitch(self) -> int:
        """Places of a row's partial sums, so that neighbouring rows lie in different banks."""
        return self.lanes + self.runs

    @property
    def sum_bytes(self) -> int:
        """Shared memory of the partial sums."""
        return 4 * self.tile * (self.pitch + (self.runs + 1 if self.runs > 1 else 0))


class RowSums:
    """The lanes' partial sums of a block's rows, and their totals."""

    def __init__(self, shape: Int8Shape, block: Block, dtype: str = "float32") -> None:
        self._shape, self._block = shape, block
        self._memory = shared((shape.tile * shape.pitch,), dtype)
        runs = shape.tile * (shape.runs + 1)
        self._runs = shared((runs,), dtype) if shape.runs > 1 else None

    def put(self, row: Expr, lane: Expr, value: Expr) -> None:
        """Set a lane's sum of a row of the tile."""
        store(self._memory, value, row * self._shape.pitch + lane)

    def beside(self, row: Expr) -> Expr:
        """What was put for the lane behind the last one, which is no part of the sums."""
        return self._memory[row * self._shape.pitch + self._shape.lanes]

    def finish(self) -> None:
        """Add up; afterwards every thread may ask for totals."""
        shape, runs = self._shape, self._shape.runs
        barrier()
        if self._runs is None:
            return
        with strided(self._block, shape.tile * runs) as item:
            row, run = bind(tirx.floordiv(item, runs)), bind(tirx.floormod(item, runs))
            store(
                self._runs,
                self._add(self._memory, row * shape.pitch + run, RUN, runs),
                row * (runs + 1) + run,
            )
        barrier()

    def total(self, row: Expr) -> Expr:
        """The sum of a row of the tile."""
        shape = self._shape
        if self._runs is None:
            return self._add(self._memory, row * shape.pitch, shape.lanes, 1)
        return self._add(self._runs, row * (shape.runs + 1), shape.runs, 1)

    @staticmethod
    def _add(memory: Buffer, first: Expr, count: int, step: int) -> Expr:
        first = bind(first)
        return bind(tree([memory[first + index * step] for index in range(count)], add))


class ScaledSums:
    """The lanes' partial sums of integers, which are exact, and their totals, scaled once.

    So a row's total has the same bits for any number of lanes, and of rows of x.
    """

    def __init__(self, shape: Int8Shape, block: Block) -> None:
        self._integers, self._lanes = RowSums(shape, block, "int32"), shape.lanes

    def put(self, row: Expr, lane: Expr, value: Expr, scale: Expr) -> None:
        """Set a lane's sum of a row of the tile, and the row's scale."""
        self._integers.put(row, lane, value)
        with when(lane == 0):
            self._integers.put(row, i32(self._lanes), tirx.reinterpret("int32", scale))

    def finish(self) -> None:
        """See `RowSums`."""
        self._integers.finish()

    def total(self, row: Expr) -> Expr:
        """See `RowSums`."""
        scale = tirx.reinterpret("float32", self._integers.beside(row))
        return as_f32(self._integers.total(row)) * scale
