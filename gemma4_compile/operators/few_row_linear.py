"""Matmuls of a few rows, as a step has that checks guesses: `Linear` and `Int8Linear` by meaning.

They are operators of their own because their kernels are: as few rows as these wait for the
weights, like one row, and are too few for the tiles of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from tvm import tirx

from gemma4_compile.operators.activation_quantization import rounded
from gemma4_compile.operators.attention_splits import (
    LOWEST,
    combined_rows,
    row_splits_placeholders,
)
from gemma4_compile.operators.base import Operator, symbolic_rows
from gemma4_compile.operators.examples import Sizes, example_lse
from gemma4_compile.operators.fused_linear import CombinedForm, NormedForm
from gemma4_compile.operators.int8_linear import Int8Linear
from gemma4_compile.operators.linear import Linear
from gemma4_compile.types import Array


class FewRows(Operator):
    """Operators of a symbolic number of rows, which is at most `most_rows`."""

    most_rows: int

    def example_inputs(self, rng: np.random.Generator, sizes: Sizes) -> tuple[Array | int, ...]:
        return super().example_inputs(rng, replace(sizes, rows=min(sizes.rows, self.most_rows)))


@dataclass(frozen=True)
class FewRowLinear(FewRows, Linear):
    """`Linear` of at most `most_rows` rows."""

    kind: ClassVar[str] = "few_row_linear"
    most_rows: int = 1

    @property
    def name(self) -> str:
        return f"few_row_{super().name}"


@dataclass(frozen=True)
class Int8FewRowLinear(FewRows, Int8Linear):
    """`Int8Linear` of at most `most_rows` rows, which come packed or are rounded by each block."""

    kind: ClassVar[str] = "int8_few_row_linear"
    most_rows: int = 1

    @property
    def name(self) -> str:
        return f"few_row_{super().name}"


@dataclass(frozen=True)
class Int8NormedFewRowLinear(NormedForm, Int8FewRowLinear):
    """`QuantizedFewRowNorm` and the `Int8FewRowLinear` that reads its result, in one.

    Arguments: of `NormVector`, of rows; then as `Int8FewRowLinear` from the weights on. Results: r'
    (rows, cols) f32 and those of `Int8FewRowLinear`.
    """

    kind: ClassVar[str] = "int8_normed_few_row_linear"

    def definition(self) -> tirx.PrimFunc:
        args, out, x = self.norm.definition(symbolic_rows(self.rows))
        return self.multiply(args, rounded(x), [out])


@dataclass(frozen=True)
class Int8CombinedFewRowLinear(CombinedForm, Int8FewRowLinear):
    """`QuantizedFewRowCombine` and the `Int8FewRowLinear` that reads its result, in one.

    Arguments: o_partial (rows, splits, heads, head_dim) in_dtype; split_lse (rows, splits, heads,
    2) f32; then as `Int8FewRowLinear` from the weights on.
    """

    kind: ClassVar[str] = "int8_combined_few_row_linear"

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name != "split_lse":
            return super().example_input(name, shape, rng, sizes)
        return np.stack([example_lse(shape[1:], LOWEST, rng) for _ in range(shape[0])])

    def definition(self) -> tirx.PrimFunc:
        args = row_splits_placeholders(self, self.in_dtype, symbolic_rows(self.rows))
        return self.multiply(args, rounded(combined_rows(*args)))
