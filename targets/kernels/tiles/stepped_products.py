"""The product of a tile of x in words by a checkpoint's step with a tile of W: sums of integers.

Both tiles lie in shared memory as words of four signed bytes, in the order of the weights' words. A
row's sum is one integer (`WeightLayout.takes_steps`), which is scaled once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import WORD
from gemma4_compile.operators.math import as_f32
from gemma4_compile.operators.step_packings import StepPacking
from gemma4_compile.operators.tir import bind, store
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import local
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.tiles.int8_products import (
    IntegerTileProduct,
    IntegerWeightLoader,
)
from gemma4_compile.targets.kernels.tiles.loaders import (
    VECTOR,
    DenseLoader,
    Move,
    RowOf,
    put,
    splat_word,
    transposed,
    vector,
)
from gemma4_compile.targets.kernels.tiles.products import TileShape


class SteppedLoader(DenseLoader):
    """Rows of x in words; words beyond the last are 0."""

    def __init__(self, move: Move, source: Buffer, packing: StepPacking) -> None:
        super().__init__(move, source)
        self._packing = packing

    def decode_block(self, iteration: int, item: Expr) -> list[Expr]:
        """See `Loader`."""
        words = transposed([vector(self._raw, iteration * VECTOR + i) for i in range(VECTOR)])
        if self._cols % self._tile.depth:
            words = [
                bind(tirx.Select(item + j < self._cols, value, splat_word(0)))
                for j, value in enumerate(words)
            ]
        return self._packing.arranged(words, splat_word)


class LevelLoader(IntegerWeightLoader):
    """Rows of W as their levels, which are the integers' negatives; beyond the last some others."""

    def decode_block(self, iteration: int, item: Expr) -> list[Expr]:
        """See `Loader`."""
        packing = self._weights.layout.levels
        return [
            part
            for stored in self._stored_words(iteration)
            for part in packing.levels(stored, splat_word)
        ]


class SteppedTileProduct(IntegerTileProduct):
    """Both tiles as words of signed bytes.

    Parameters
    ----------
    x : words (any, cols / 4) uint32
    row_of_x, row_of_w : rows of the tensors by rows of the tile; clamped, so that all exist
    """

    def __init__(
        self,
        shape: TileShape,
        x: Sequence[Buffer],
        weights: WeightReader,
        thread: Expr,
        row_of_x: RowOf,
        row_of_w: RowOf,
    ) -> None:
        super().__init__(shape, thread, "uint32")
        self._integers = local((shape.vectors * VECTOR,), "int32")
        self._clear_integers()
        move_x = Move(self._x, thread, shape.threads, 0, row_of_x)
        move_w = Move(self._w, thread, shape.threads, self._x.blocks, row_of_w)
        packing = weights.layout.levels
        self._loaders = SteppedLoader(move_x, x[0], packing), LevelLoader(move_w, weights)

    def run(self, steps: Expr) -> None:
        """See `TileProduct`."""
        super().run(steps)
        for index in range(self._shape.vectors):
            value = vector(self._integers, index).astype(f"float32x{VECTOR}")
            put(self._sums, index, value)

    def _multiply(self) -> None:
        shape = self._shape
        with T.serial(0, shape.iterations // shape.slices) as iteration:
            vec4 = bind(iteration * shape.slices + self._slice)
            left, right = self._rows_of(vec4)
            self._each_item(vec4, lambda word: self._add_word(word, left, right))


def scaled_levels(
    weights: WeightReader, sums: Sequence[Expr], first: Expr, last: Index, step: Expr
) -> list[Expr]:
    """Sums of levels of neighbouring rows of W from `first` on, times their scales and the step.

    Parameters
    ----------
    last : row of the matrix: those beyond it have its scale
    """
    scales = local((len(sums),))

    def read(split: Sequence[Buffer], begin: int) -> None:
        for index in range(len(sums)):
            row = tirx.min(first + index, last)
            store(scales, as_f32(split[1][row - begin, 0]), index)

    weights.in_split(first, read)
    return [bind(total * (scales[index] * -step)) for index, total in enumerate(sums)]


assert WORD == VECTOR, "a block of four words a row is a run of 16 channels"
