"""Two matmuls of one position side by side in one launch: neither reads what the other one makes.

A launch that multiplies by a small matrix costs more than its product. Beside a larger matmul it is
some blocks more of a grid that runs anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import tirx

from gemma4_compile.operators.activations import FLOAT32
from gemma4_compile.operators.base import Operator, te_prim_func
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.examples import Sizes, random_values
from gemma4_compile.operators.linear import Linear, plain_product
from gemma4_compile.operators.rows import One
from gemma4_compile.operators.spreads import Spread
from gemma4_compile.types import Array

SECOND = "second_"
"""What the names of the second matmul's tensors begin with."""


def may_be_first(operator: Linear) -> bool:
    """Return whether a matmul of one position may have another one beside it.

    It has no scalar, which would stand among the tensors, and writes no residual.
    """
    is_gated = operator.epilogue == Epilogue.GELU_GATE.value
    return isinstance(operator.rows, One) and not (operator.prologue.branches or is_gated)


def may_be_second(operator: Linear) -> bool:
    """Return whether a matmul may stand beside another one: a plain product of a given vector."""
    return (
        isinstance(operator.rows, One)
        and operator.is_plain
        and operator.epilogue == Epilogue.NONE.value
        and not operator.suppressed
        and not operator.steps_in
        and operator.output == FLOAT32
    )


@dataclass(frozen=True)
class LinearPair(Operator):
    """`first` and `second`, each as it is alone.

    Arguments: those of the first without its results; those of the second likewise, without its
    vector where that is the first's (`shared`). Results: of the first, and of the second.
    """

    kind: ClassVar[str] = "linear_pair"
    first: Linear
    second: Linear
    shared: bool

    @property
    def name(self) -> str:
        return f"{self.first.name}_beside_{self.second.layout.label}"

    @property
    def packs(self) -> bool:
        return self.first.packs

    def moved_share(self) -> float:
        return self.first.moved_share()

    def tolerance(self, result: str) -> float:
        one, name = self._of(result)
        return one.tolerance(name)

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        one, own_name = self._of(name)
        values = one.example_input(own_name, shape, rng, sizes)
        if values is None and one is self.second:
            dtype = next(str(p.dtype) for p in self.prim_func().params if p.name == name)
            return random_values(own_name, shape, dtype, rng)
        return values

    def known_spreads(self, name: str, dtype: str) -> tuple[Spread, ...]:
        one, name = self._of(name)
        return one.known_spreads(name, dtype)

    def _of(self, name: str) -> tuple[Linear, str]:
        """The matmul that a tensor is of, and its name there."""
        is_second = name.startswith(SECOND)
        return (self.second if is_second else self.first), name.removeprefix(SECOND)

    def definition(self) -> tirx.PrimFunc:
        inputs, results = self.first.tensors(plain_product)
        second = self.second
        own, x = ([], second.vector_of(inputs)) if self.shared else second.left([], SECOND)
        weights = second.layout.placeholders(SECOND)
        sums = plain_product(x, second.layout, weights, f"{SECOND}sums")
        return te_prim_func([*inputs, *own, *weights, *results, sums])
