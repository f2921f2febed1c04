"""The picture that the stock client hands over: one size, as RGB values 0..255.

A picture is `across` x `down` blocks, 20 x 14 of 48 pixels for the released models: 960 x 672.
A plain client stretches any picture to that. A page of ours makes it a *container* instead, one
pixel row higher (673), whose blocks are those of a picture that was resized as transformers does,
with its own grid:

- Block i of the picture, row-major over the picture's grid, is at the container's cell
  ``(i % across, i // across)``. Cells beyond the last block are padding, of any colour.
- The row below the blocks holds 96 bits, a pixel each from x = 0 on: white (255, 255, 255) for 1,
  black for 0, and black up to the end of the row. Most significant bit first: the mark `MAGIC` (32
  bits), the grid's columns (16), its rows (16), and both once more with every bit inverted (16 and
  16). What is read is whether green is 128 or more.

A container must reach the adapter without loss: a PNG of exactly this size, drawn without colour
management. Where the mark, the inverted copies or the grid (1 to across x down blocks, no side
beyond the position table) do not hold, the row is ignored and the picture taken as stretched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx
from tvm.tirx.script import builder as T

from gemma4_compile.media.sizes import MARK_PIXELS
from gemma4_compile.operators.base import Operator, te_prim_func
from gemma4_compile.operators.examples import Sizes
from gemma4_compile.operators.math import as_f32
from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.operators.vision import CHANNELS, X, Y
from gemma4_compile.types import Array

MAGIC = 0x47344931  # "G4I1"
WORDS = MARK_PIXELS // 32
GREEN = 1
HALF = 128  # from which on a value is a 1
DTYPE = "uint32"  # of a value: WebGPU has no smaller integers


def mark_words(columns: int, rows: int) -> tuple[int, int, int]:
    """The three words of a container's last row."""
    grid = columns << 16 | rows
    return MAGIC, grid, grid ^ 0xFFFFFFFF


def mark_row(columns: int, rows: int, width: int) -> Array:
    """The last row of a container, (width, 3)."""
    words = np.array(mark_words(columns, rows), dtype=">u4")
    bits = np.unpackbits(words.view(np.uint8))
    row = np.zeros((width, CHANNELS), np.uint8)
    row[: bits.size] = 255 * bits[:, None]
    return row


@dataclass(frozen=True)
class PictureBlocks(Operator):
    """Blocks of a picture: (1, height, across * block, 3) uint32 -> (blocks, block^2 * 3) f32.

    `height` is ``down * block``, or one more; the row below the blocks is left out.
    """

    kind: ClassVar[str] = "picture_blocks"
    across: int
    down: int
    block: int
    height: int

    @property
    def width(self) -> int:
        """Pixels of a row."""
        return self.across * self.block

    def value(self, picture: Buffer, cell: Expr, channel: Expr) -> Expr:
        """A value of a block."""
        line = self.block * CHANNELS
        y = tirx.truncdiv(cell, self.across) * self.block + tirx.truncdiv(channel, line)
        within = tirx.truncdiv(tirx.truncmod(channel, line), CHANNELS)
        x = tirx.truncmod(cell, self.across) * self.block + within
        return as_f32(picture[0, y, x, tirx.truncmod(channel, CHANNELS)])

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        return rng.integers(0, 256, shape) if name == "picture" else None

    def definition(self) -> tirx.PrimFunc:
        shape = (1, self.height, self.width, CHANNELS)
        picture = te.placeholder(shape, DTYPE, name="picture")
        pixels = te.compute(
            (self.across * self.down, self.block**2 * CHANNELS),
            lambda i, c: self.value(picture, i, c),
            name="pixels",
        )
        return te_prim_func([picture, pixels])


@dataclass(frozen=True)
class PicturePositions(Operator):
    """Cells (x, y) of a container's blocks, (-1, -1) for its padding.

    Argument: picture (1, down * block + 1, across * block, 3) uint32. Result: (blocks, 2) int32;
    without a valid mark the cells of a stretched picture.

    Attributes
    ----------
    longest : columns or rows of a picture's grid, at most
    """

    kind: ClassVar[str] = "picture_positions"
    across: int
    down: int
    block: int
    longest: int

    @property
    def cells(self) -> int:
        """Blocks of the container."""
        return self.across * self.down

    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the picture."""
        return 1, self.down * self.block + 1, self.across * self.block, CHANNELS

    def grid(self, picture: Buffer) -> tuple[Expr, Expr]:
        """Columns of the picture's grid and its blocks; those of a stretched one without a mark."""
        words = []
        for index in range(WORDS):
            word = LocalVar("uint32", tirx.const(0, "uint32"))
            with T.serial(0, 32) as bit:
                value = picture[0, self.down * self.block, index * 32 + bit, GREEN]
                one = tirx.Select(value >= tirx.const(HALF, "uint32"), 1, 0).astype("uint32")
                word.set(tirx.bitwise_or(word.value * tirx.const(2, "uint32"), one))
            words.append(word.value)
        magic, grid, inverted = words
        columns = bind(tirx.shift_right(grid, tirx.const(16, "uint32")).astype("int32"))
        rows = bind(tirx.bitwise_and(grid, tirx.const(0xFFFF, "uint32")).astype("int32"))
        # Sides first: the product of two 16-bit numbers does not fit int32.
        fits = tirx.all(columns >= 1, rows >= 1, columns <= self.longest, rows <= self.longest)
        fits = tirx.all(fits, columns <= self.cells, rows <= self.cells)
        fits = tirx.all(fits, columns * rows <= self.cells)
        same = tirx.bitwise_xor(grid, inverted) == tirx.const(0xFFFFFFFF, "uint32")
        is_marked = bind(tirx.all(magic == tirx.const(MAGIC, "uint32"), same, fits))
        return (
            bind(tirx.Select(is_marked, columns, i32(self.across))),
            bind(tirx.Select(is_marked, columns * rows, i32(self.cells))),
        )

    def put(self, positions: Buffer, cell: Expr, columns: Expr, count: Expr) -> None:
        """Store the position of a cell of the container."""
        inside = bind(cell < count)
        x, y = tirx.truncmod(cell, columns), tirx.truncdiv(cell, columns)
        store(positions, tirx.Select(inside, x, i32(-1)), cell, X)
        store(positions, tirx.Select(inside, y, i32(-1)), cell, Y)

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        if name != "picture":
            return None
        picture = rng.integers(0, 256, shape)
        picture[0, -1] = mark_row(self.cells // 3, 2, shape[2])
        return picture

    def definition(self) -> tirx.PrimFunc:
        with function(scheduled=False) as build:
            picture = build.arg("picture", self.shape(), DTYPE)
            positions = build.arg("positions", (self.cells, 2), "int32")
            columns, count = self.grid(picture)
            with T.serial(0, self.cells) as cell:
                self.put(positions, i32(cell), columns, count)
        return build.result
