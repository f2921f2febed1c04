"""Operators whose results are values of their own, each made from a few elements of the arguments.

One description, one formula: the definition and every target's kernel evaluate `value`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import te, tirx

from gemma4_compile.operators.base import Operator, TensorSpec, symbolic_rows, te_prim_func
from gemma4_compile.operators.types import Buffer, Expr, Index


@dataclass(frozen=True)
class Pointwise(Operator):
    """``y[i, j] = value(arguments, i, j)``: (rows, width), of a symbolic row count."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Columns of the result."""

    @property
    def result_dtype(self) -> str:
        """Type of the result."""
        return "float32"

    @abstractmethod
    def arguments(self, rows: Index) -> list[tuple[str, TensorSpec]]:
        """Names, shapes and dtypes of the arguments."""

    @abstractmethod
    def value(self, args: Sequence[Buffer], i: Expr, j: Expr) -> Expr:
        """An element of the result, before it is cast."""

    def definition(self) -> tirx.PrimFunc:
        rows = symbolic_rows(None)
        args = [te.placeholder(*spec, name=name) for name, spec in self.arguments(rows)]
        y = te.compute(
            (rows, self.outputs),
            lambda i, j: self.value(args, i, j).astype(self.result_dtype),
            name="y",
        )
        return te_prim_func([*args, y])


@dataclass(frozen=True)
class Columns(Pointwise):
    """Such an operator whose first field is the width of its result."""

    width: int

    @property
    def outputs(self) -> int:
        return self.width
