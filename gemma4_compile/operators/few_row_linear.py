"""Matmuls of a few rows, as a step has that checks guesses: `Linear` and `Int8Linear` by meaning.

They are operators of their own because their kernels are: as few rows as these wait for the
weights, like one row, and are too few for the tiles of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from tvm import te

from gemma4_compile.operators.activation_quantization import pack, packed_placeholders
from gemma4_compile.operators.base import Operator, symbolic_rows
from gemma4_compile.operators.examples import Sizes
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
    """`Int8Linear` of at most `most_rows` rows, which come packed or are rounded by each block.

    Attributes
    ----------
    tiled, tiled_out : the words of a packed x, and of a packed result, are in tiles
    """

    kind: ClassVar[str] = "int8_few_row_linear"
    most_rows: int = 1
    tiled: bool = False
    tiled_out: bool = False

    @property
    def name(self) -> str:
        return f"few_row_{super().name}"

    def packed_x(self) -> list[te.Tensor]:
        return packed_placeholders(self.cols, symbolic_rows(self.rows), self.tiled)

    def stored(self, y: te.Tensor) -> list[te.Tensor]:
        return pack(y, self.interleaved_out, self.tiled_out) if self.packed_out else [y]
