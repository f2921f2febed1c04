"""Operators of a few rows, as a step has that checks guesses, which only such functions have.

Their kernels are their own: as few rows as these wait for the weights, like one row, and are too
few for the tiles of a chunk.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gemma4_compile.operators.base import Operator
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.types import Array


class FewRows(Operator):
    """Operators of a symbolic number of rows, which is at most `most_rows`."""

    most_rows: int

    def example_inputs(self, rng: np.random.Generator, sizes: Sizes) -> tuple[Array | int, ...]:
        return super().example_inputs(rng, replace(sizes, rows=min(sizes.rows, self.most_rows)))
