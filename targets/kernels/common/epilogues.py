"""The epilogues of a matmul: what happens to sums before they are stored.

Meaning: `Epilogue` in operators/epilogue.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.math import gelu_tanh
from gemma4_compile.operators.tir import FunctionBuilder, bind, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index


def gate_args(
    build: FunctionBuilder, operator: Linear, rows: Index
) -> tuple[Buffer | None, Expr | None]:
    """Declare the per-layer inputs and the layer index, None unless the epilogue needs them."""
    if operator.epilogue != Epilogue.GELU_GATE.value:
        return None, None
    ple = build.arg("ple", (rows, operator.ple_width), "float32")
    return ple, build.scalar_arg("layer")


def apply_epilogue(
    operator: Linear,
    y: Buffer,
    i: Index,
    first: Expr,
    sums: Sequence[Expr],
    ple: Buffer | None,
    layer: Expr | None,
    rows: int,
) -> None:
    """Store the sums of consecutive weight rows from `first` on, as row i of y.

    Rows beyond `rows` are dropped.

    Parameters
    ----------
    sums : float32 expressions; an even number, from an even row on, where the epilogue pairs rows
    ple, layer : the per-layer inputs and the layer index, None unless the epilogue needs them
    """
    if operator.epilogue == Epilogue.GELU_PAIRS.value:
        for r in range(0, len(sums), 2):
            with when(first + r < rows):
                store(y, gelu_tanh(bind(sums[r])) * sums[r + 1], i, (first + r) // 2)
        return
    for r, total in enumerate(sums):
        column = bind(first + r)
        with when(column < rows):
            if operator.epilogue == Epilogue.GELU_GATE.value:
                assert ple is not None, "an argument of this epilogue"
                assert layer is not None, "an argument of this epilogue"
                store(y, gelu_tanh(bind(total)) * ple[i, i32(layer) * rows + column], i, column)
            else:
                store(y, operator.logit(total, column), i, column)
