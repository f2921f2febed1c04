"""What follows the sums of a matmul between clips: the epilogue, and the store.

Definition: `BoundedLinear` in operators/bounded_linear.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.math import gelu_tanh
from gemma4_compile.operators.tir import bind, store, when
from gemma4_compile.operators.types import Buffer, Expr


def store_sums(
    operator: BoundedLinear,
    y: Buffer,
    row: Expr,
    first: Expr,
    sums: Sequence[Expr],
    partner: Buffer | None,
) -> None:
    """Store the epilogue of neighbouring sums from weight row `first` on; rows beyond are left."""
    rows = operator.layout.rows
    if operator.epilogue == Epilogue.GELU_PAIRS.value:
        for r in range(0, len(sums), 2):
            with when(first + r < rows):
                product = gelu_tanh(sums[r]) * sums[r + 1]
                store(y, operator.result(product), row, (first + r) // 2)
        return
    for r, total in enumerate(sums):
        column = bind(first + r)
        with when(column < rows):
            value = total if partner is None else gelu_tanh(total) * partner[row, column]
            store(y, operator.result(value), row, column)
