"""Operators of the patch projection without a tower (12B): norms of blocks and of their positions.

LayerNorms as PyTorch's: the mean is subtracted, the variance is that of all channels, and there is
a bias; float32 inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx

from gemma4_compile.operators.base import Operator, symbolic_rows, te_prim_func
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.norms import inverse_rms
from gemma4_compile.operators.types import Expr, Index
from gemma4_compile.operators.vision import PIXEL_SCALE, X, Y, example_positions
from gemma4_compile.types import Array

LAYER_NORM_EPS = 1e-5  # PyTorch's, which the config does not name
BIAS, NORM2, NORM2_BIAS, NORM3, NORM3_BIAS = range(5)
VECTORS = 5
"""Rows of the vectors that `PositionNorms` reads together."""


def _layer_norm(
    x: te.Tensor, rows: Index, vectors: te.Tensor, weight: int, bias: int, name: str
) -> te.Tensor:
    width = int(x.shape[1])
    k, m = (te.reduce_axis((0, width), name=axis) for axis in ("k", "m"))
    sums = te.compute((rows,), lambda i: te.sum(x[i, k], axis=k), name=f"{name}_sums")
    centred = te.compute(
        (rows, width), lambda i, j: x[i, j] - sums[i] / f32(width), name=f"{name}_centred"
    )
    squares = te.compute(
        (rows,), lambda i: te.sum(centred[i, m] * centred[i, m], axis=m), name=f"{name}_squares"
    )

    def normed(i: Expr, j: Expr) -> Expr:
        inverse = tirx.rsqrt(squares[i] / f32(width) + f32(LAYER_NORM_EPS))
        return centred[i, j] * inverse * vectors[weight, j] + vectors[bias, j]

    return te.compute((rows, width), normed, name=name)


@dataclass(frozen=True)
class PixelNorm(Operator):
    """LayerNorm of a block's pixels, 0..255 to 0..1 first.

    Arguments: pixels (n, width) f32; vectors (2, width) f32, weight and bias. Result: (n, width)
    out_dtype.
    """

    kind: ClassVar[str] = "pixel_norm"
    width: int
    out_dtype: str

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        return rng.integers(0, 256, shape) if name == "pixels" else None

    def definition(self) -> tirx.PrimFunc:
        n, shape = (rows := symbolic_rows(None)), (rows, self.width)
        pixels = te.placeholder(shape, "float32", name="pixels")
        vectors = te.placeholder((2, self.width), "float32", name="vectors")
        x = te.compute(shape, lambda i, j: pixels[i, j] * f32(PIXEL_SCALE), name="x")
        y = _layer_norm(x, n, vectors, 0, 1, "y")
        out = te.compute(shape, lambda i, j: y[i, j].astype(self.out_dtype), name="out")
        return te_prim_func([pixels, vectors, out])


@dataclass(frozen=True)
class PositionNorms(Operator):
    """Between the two projections of a block.

    ``y = LN2(x + bias)``, ``z = LN3(y + table[x, 0] + table[y, 1])``, ``out = z / sqrt(mean(z^2) +
    eps)``. Arguments: positions (n, 2) int32; x (n, width) f32; vectors (5, width) f32: bias, and
    weight and bias of both norms; the table's tensors, rows 2p of x and 2p + 1 of y. Result: (n,
    width) out_dtype. A position beyond the table reads its last row: callers refuse such pictures.
    Padding, (-1, -1), reads the first.

    References
    ----------
    transformers 5.24.0, `Gemma4UnifiedVisionEmbedder`.
    """

    kind: ClassVar[str] = "position_norms"
    layout: WeightLayout
    eps: float
    out_dtype: str

    @property
    def width(self) -> int:
        """Channels of a row."""
        return self.layout.cols

    def table_row(self, position: Expr, axis: int) -> Expr:
        """Row of the table for a position on an axis."""
        last = self.layout.rows // 2 - 1
        return tirx.max(tirx.min(position, last), 0) * 2 + axis

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name == "positions":
            return example_positions(shape, rng)
        return self.layout.example_input(name, shape, rng)

    def definition(self) -> tirx.PrimFunc:
        n, shape = (rows := symbolic_rows(None)), (rows, self.width)
        positions = te.placeholder((n, 2), "int32", name="positions")
        x = te.placeholder(shape, "float32", name="x")
        vectors = te.placeholder((VECTORS, self.width), "float32", name="vectors")
        table = self.layout.placeholders()
        biased = te.compute(shape, lambda i, j: x[i, j] + vectors[BIAS, j], name="biased")
        y = _layer_norm(biased, n, vectors, NORM2, NORM2_BIAS, "y")

        def placed(i: Expr, j: Expr) -> Expr:
            from_x, from_y = (self.table_row(positions[i, axis], axis) for axis in (X, Y))
            value = self.layout.value
            return y[i, j] + (value(table, from_x, j) + value(table, from_y, j))

        z = te.compute(shape, placed, name="placed")
        z = _layer_norm(z, n, vectors, NORM3, NORM3_BIAS, "z")
        inverse = inverse_rms(z, n, self.width, self.eps, "z")
        out = te.compute(
            shape, lambda i, j: (z[i, j] * inverse[i]).astype(self.out_dtype), name="out"
        )
        return te_prim_func([positions, x, vectors, *table, out])
