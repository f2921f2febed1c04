"""Arguments of a matmul between clips, and what follows its sums: the clip, epilogue and store.

Definition: `BoundedLinear` in operators/bounded_linear.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.bounded_linear import CLIPS, BoundedLinear
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.math import gelu_tanh
from gemma4_compile.operators.tir import FunctionBuilder, bind, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.tiles.loaders import VECTOR, joined, lane_of


@dataclass(frozen=True)
class BoundedOperands:
    """The arguments of one kernel.

    Attributes
    ----------
    rows : of x and y
    bounds : of x and of the sums, None where nothing is clipped
    partner : what the epilogue's gate multiplies, if it has one
    """

    operator: BoundedLinear
    rows: Index
    bounds: Buffer | None
    x: Buffer
    weights: WeightReader
    partner: Buffer | None
    y: Buffer

    @classmethod
    def declare(cls, build: FunctionBuilder, operator: BoundedLinear) -> BoundedOperands:
        """Declare the arguments, in the definition's order, of a function that has none yet."""
        rows = operator.rows.extent()
        result = (rows, operator.outputs)
        return cls(
            operator,
            rows,
            build.arg("bounds", (CLIPS,), "float32") if operator.clipped else None,
            build.arg("x", (rows, operator.cols), operator.in_dtype),
            WeightReader(build, operator.layout),
            build.arg("partner", result, "float32") if operator.is_gate else None,
            build.arg("y", result, operator.out_dtype),
        )

    def limits(self) -> list[Expr]:
        """Read the bounds into registers; none where nothing is clipped."""
        bounds = self.bounds
        return [] if bounds is None else [materialize(bounds[i], "float32") for i in range(CLIPS)]

    def store_sums(
        self, row: Expr, first: Expr, sums: Sequence[Expr], limits: Sequence[Expr], last: Expr
    ) -> None:
        """Store the epilogue of neighbouring sums of a row, from weight row `first` on.

        Rows beyond `last` and weight rows beyond the last are left.
        """
        cut = [bind(self.operator.clip(total, limits, 2)) for total in sums]
        with when(row <= last):
            self._store_epilogue(row, first, cut)

    @property
    def stores_vectors(self) -> bool:
        """Return whether four neighbouring results of a row lie in one vector."""
        return self.operator.outputs % VECTOR == 0

    @property
    def vectors_at_once(self) -> int:
        """Vectors of sums that make one of results."""
        return 2 if self.operator.epilogue == Epilogue.GELU_PAIRS.value else 1

    def store_vectors(
        self, row: Expr, first: Expr, sums: Sequence[Expr], limits: Sequence[Expr], last: Expr
    ) -> None:
        """`store_sums` of `vectors_at_once` vectors, where `stores_vectors`."""
        operator = self.operator
        cut = [bind(operator.clip(total, limits, 2)) for total in sums]
        with when((row <= last) & (first < operator.layout.rows)):
            if len(cut) == 2:
                gate, up = (
                    bind(joined([lane_of(cut[i // 2], i % 2 * 2 + odd) for i in range(VECTOR)]))
                    for odd in range(2)
                )
                at = T.ramp(tirx.floordiv(first, 2), 1, VECTOR)
                self._store_vector(gelu_tanh(gate) * up, row, at)
                return
            at = T.ramp(first, 1, VECTOR)
            partner = self.partner
            value = cut[0] if partner is None else gelu_tanh(cut[0]) * partner[row, at]
            self._store_vector(value, row, at)

    def _store_vector(self, value: Expr, row: Expr, at: Expr) -> None:
        four = materialize(value, f"float32x{VECTOR}")
        results = [self.operator.converted(lane_of(four, i)) for i in range(VECTOR)]
        store(self.y, joined(results), row, at)

    def _store_epilogue(self, row: Expr, first: Expr, sums: Sequence[Expr]) -> None:
        operator, rows = self.operator, self.operator.layout.rows
        if operator.epilogue == Epilogue.GELU_PAIRS.value:
            for r in range(0, len(sums), 2):
                with when(first + r < rows):
                    product = gelu_tanh(sums[r]) * sums[r + 1]
                    store(self.y, operator.converted(product), row, (first + r) // 2)
            return
        for r, total in enumerate(sums):
            column = bind(first + r)
            with when(column < rows):
                partner = self.partner
                value = total if partner is None else gelu_tanh(total) * partner[row, column]
                store(self.y, operator.converted(value), row, column)
