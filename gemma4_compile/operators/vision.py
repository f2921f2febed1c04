"""Operators of a vision tower around its layers: patches, positions, rotation, pooling.

A picture is `n` blocks of ``pooling x pooling`` patches. The patches of a block are neighbouring
rows, row-major within the block: patch ``s`` of block ``i`` is row ``i * pooling**2 + s``.
`positions` (n, 2) int32 are the blocks' cells (x, y) in the picture's grid; (-1, -1) marks padding,
which no other patch attends to and whose results mean nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx

from gemma4_compile.operators.base import Operator, symbolic_rows, te_prim_func
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.norms import inverse_rms
from gemma4_compile.operators.types import Expr, Index
from gemma4_compile.types import Array

CHANNELS = 3
X, Y = 0, 1  # axes of a position
PIXEL_SCALE = 1.0 / 255.0  # transformers' rescale_factor
EXAMPLE_GRID = 9  # cells of an example picture's side


def example_positions(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Cells of a picture, the last of them padding."""
    positions = rng.integers(0, EXAMPLE_GRID, shape)
    positions[-2:] = -1
    return positions


def patch_coordinate(position: Expr, within: Index, pooling: int) -> Expr:
    """Column or row of a patch in the picture, from its block's and its own in the block."""
    return tirx.max(position, 0) * pooling + within


def patch_of(row: Expr, pooling: int) -> tuple[Expr, Expr, Expr]:
    """Block of a patch's row, and its column and row in the block."""
    # No row is negative; of a floor division that is not seen, and costs an offset beyond int32.
    block = tirx.truncdiv(row, pooling * pooling)
    inside = tirx.truncmod(row, pooling * pooling)
    return block, tirx.truncmod(inside, pooling), tirx.truncdiv(inside, pooling)


@dataclass(frozen=True)
class PixelPatches(Operator):
    """Patches of pixel blocks: pixels 0..255 to -1..1.

    Argument: pixels (n, block * block * 3) f32, a block row-major, HWC, with ``block = patch *
    pooling``. Result: (n * pooling^2, patch * patch * 3) out_dtype, each patch row-major, HWC.

    References
    ----------
    transformers 5.24.0: `Gemma4ImageProcessor` divides by 255, `Gemma4VisionPatchEmbedder.forward`
    is the 2 (x - 0.5).
    """

    kind: ClassVar[str] = "pixel_patches"
    patch: int
    pooling: int
    out_dtype: str

    @property
    def block(self) -> int:
        """Pixels of a block's side."""
        return self.patch * self.pooling

    def source(self, row: Expr, channel: Expr) -> tuple[Expr, Expr]:
        """Block, and channel of it, that a patch's channel is."""
        block, column, line = patch_of(row, self.pooling)
        width = self.patch * CHANNELS
        y = line * self.patch + channel // width
        x = column * self.patch * CHANNELS + channel % width
        return block, y * (self.block * CHANNELS) + x

    def value(self, pixel: Expr) -> Expr:
        """A pixel's value as the tower takes it."""
        return f32(2.0) * (pixel * f32(PIXEL_SCALE) - f32(0.5))

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        return rng.integers(0, 256, shape) if name == "pixels" else None

    def definition(self) -> tirx.PrimFunc:
        n = symbolic_rows(None)
        pixels = te.placeholder((n, self.block**2 * CHANNELS), "float32", name="pixels")
        patches = te.compute(
            (n * self.pooling**2, self.patch**2 * CHANNELS),
            lambda r, c: self.value(pixels[self.source(r, c)]).astype(self.out_dtype),
            name="patches",
        )
        return te_prim_func([pixels, patches])


@dataclass(frozen=True)
class AddPatchPositions(Operator):
    """Position embeddings of patches: ``out = x + table[px] + table[size + py]``.

    Arguments: positions (n, 2) int32; x (n * pooling^2, width) f32; the table's tensors, `size`
    rows of the x axis and then those of y. Result: as x. A position beyond the table reads its last
    row: callers refuse such pictures.
    """

    kind: ClassVar[str] = "add_patch_positions"
    pooling: int
    layout: WeightLayout

    @property
    def size(self) -> int:
        """Rows of an axis."""
        return self.layout.rows // 2

    def table_rows(self, positions: te.Tensor, row: Expr) -> tuple[Expr, Expr]:
        """Rows of the table that a patch adds."""
        block, column, line = patch_of(row, self.pooling)
        last = self.size - 1
        x = tirx.min(patch_coordinate(positions[block, X], column, self.pooling), last)
        y = tirx.min(patch_coordinate(positions[block, Y], line, self.pooling), last)
        return x, y + self.size

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name == "positions":
            return example_positions(shape, rng)
        return self.layout.example_input(name, shape, rng)

    def definition(self) -> tirx.PrimFunc:
        n = symbolic_rows(None)
        positions = te.placeholder((n, 2), "int32", name="positions")
        shape = (n * self.pooling**2, self.layout.cols)
        x = te.placeholder(shape, "float32", name="x")
        table = self.layout.placeholders()

        def embedded(r: Expr, c: Expr) -> Expr:
            from_x, from_y = self.table_rows(positions, r)
            value = self.layout.value
            return x[r, c] + (value(table, from_x, c) + value(table, from_y, c))

        return te_prim_func([positions, x, *table, te.compute(shape, embedded, name="out")])


@dataclass(frozen=True)
class PatchRotary(Operator):
    """Cosines and sines of the two-dimensional RoPE of a picture's patches.

    Argument: positions (n, 2) int32. Result: (n * pooling^2, head_dim / 2, 2) f32; the first half
    of the pairs turns with x, the second with y; pair j of a half by ``theta^(-2j / (head_dim /
    2))`` radians a patch.

    References
    ----------
    transformers 5.24.0, `Gemma4VisionRotaryEmbedding`.
    """

    kind: ClassVar[str] = "patch_rotary"
    head_dim: int
    theta: float
    pooling: int

    @property
    def axis_pairs(self) -> int:
        """Pairs that turn with one axis."""
        return self.head_dim // 4

    def frequencies(self) -> list[float]:
        """Radians a patch, of the pairs of an axis."""
        spatial = self.head_dim // 2
        pairs = np.arange(0, spatial, 2, dtype=np.float64)
        values = (self.theta ** -(pairs / spatial)).astype(np.float32)
        return [float(value) for value in values]

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        # Some far out: a picture may be one block high.
        return example_positions(shape, rng) * 120 if name == "positions" else None

    def definition(self) -> tirx.PrimFunc:
        n, count = symbolic_rows(None), self.axis_pairs
        positions = te.placeholder((n, 2), "int32", name="positions")

        def angle(r: Expr, pair: Expr) -> Expr:
            block, column, line = patch_of(r, self.pooling)
            x = patch_coordinate(positions[block, X], column, self.pooling)
            y = patch_coordinate(positions[block, Y], line, self.pooling)
            place = as_f32(tirx.if_then_else(pair < count, x, y))
            frequency = f32(self.frequencies()[-1])
            for j, value in enumerate(self.frequencies()[:-1]):
                frequency = tirx.Select(pair % count == j, f32(value), frequency)
            return place * frequency

        out = te.compute(
            (n * self.pooling**2, 2 * count, 2),
            lambda r, p, k: tirx.if_then_else(k == 0, tirx.cos(angle(r, p)), tirx.sin(angle(r, p))),
            name="rotary",
        )
        return te_prim_func([positions, out])


@dataclass(frozen=True)
class PoolPatches(Operator):
    """End of a tower: blocks' means, scaled and standardised, under the embedder's norm.

    ``y = mean of a block's patches * sqrt(width)``, with `standardize` ``y = (y - vectors[0]) *
    vectors[1]``, and ``out = y / sqrt(mean(y^2) + eps)``; float32 up to the result, which the
    scale would take beyond float16. Arguments: positions (n, 2) int32; x (n * pooling^2, width)
    f32; with `standardize` vectors (2, width) f32. Result: (n, width) out_dtype.

    References
    ----------
    transformers 5.24.0, `Gemma4VisionPooler`, `Gemma4VisionModel`, `Gemma4MultimodalEmbedder`.
    """

    kind: ClassVar[str] = "pool_patches"
    width: int
    pooling: int
    eps: float
    standardize: bool
    out_dtype: str

    @property
    def scale(self) -> float:
        """Factor of the sum of a block's patches."""
        return math.sqrt(self.width) / self.pooling**2

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        return example_positions(shape, rng) if name == "positions" else None

    def definition(self) -> tirx.PrimFunc:
        n, width, count = symbolic_rows(None), self.width, self.pooling**2
        positions = te.placeholder((n, 2), "int32", name="positions")
        x = te.placeholder((n * count, width), "float32", name="x")
        s = te.reduce_axis((0, count), name="s")
        sums = te.compute((n, width), lambda i, j: te.sum(x[i * count + s, j], axis=s), name="sums")
        args = [positions, x]
        if self.standardize:
            vectors = te.placeholder((2, width), "float32", name="vectors")
            args.append(vectors)

        def scaled(i: Expr, j: Expr) -> Expr:
            value = sums[i, j] * f32(self.scale)
            return (value - vectors[0, j]) * vectors[1, j] if self.standardize else value

        y = te.compute((n, width), scaled, name="y")
        inverse = inverse_rms(y, n, width, self.eps, "y")
        out = te.compute(
            (n, width), lambda i, j: (y[i, j] * inverse[i]).astype(self.out_dtype), name="out"
        )
        return te_prim_func([*args, out])
