"""A matrix with minima in products with up to 32 packed rows (short_products.py).

Blocks' words are decoded as for a few rows (minima_products.py), codes meet x as they are stored,
and a group's minima are taken from its sums once for all 16 rows of x of a product.
"""

from __future__ import annotations

from typing import ClassVar

from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.tir import bind
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.tiles.loaders import RowOf
from gemma4_compile.targets.kernels.tiles.minima_products import (
    PIECE_GROUPS,
    ROW_PIECES,
    TERMS,
    MinimaWeights,
)
from gemma4_compile.targets.kernels.tiles.short_products import PAIR, ShortWeights
from gemma4_compile.targets.kernels.tiles.tensor_cores import BYTE_ROWS, address, copy_piece
from gemma4_compile.targets.kernels.tiles.warps import Warp


class ShortMinimaWeights(MinimaWeights, ShortWeights):
    """As `ShortWeights`; a lane has both terms of two rows."""

    has_minima: ClassVar[bool] = True

    def _load_scales(self, begin: int) -> None:
        warp = self._warp
        for tile in range(warp.shape.tiles):
            for k in range(PAIR):
                row = warp.number * warp.shape.warp_rows + tile * BYTE_ROWS
                row = row + (warp.quarter * PAIR + k)
                first = bind(row * ROW_PIECES + begin // PIECE_GROUPS)
                for at in range(0, self._loaded, PIECE_GROUPS):
                    to = address(self._scales, ((tile * PAIR + k) * self._loaded + at) * TERMS)
                    copy_piece(to, address(self._terms, first + at // PIECE_GROUPS))

    @property
    def is_exact(self) -> bool:
        """Whether 3 * 2**22 times a scale is a float32: they have 14 bits."""
        return True

    def words(self, tile: int, index: int) -> list[Expr]:
        """A loaded group's bytes of the lane's row, from 0 to 15."""
        return self.halves(tile, index)

    def scales(self, tile: int, index: int) -> list[Expr]:
        """See `ShortWeights`."""
        return [self._term(tile * PAIR + k, index, 0) for k in range(PAIR)]

    def minima(self, tile: int, index: int) -> list[Expr]:
        """See `ShortWeights`."""
        return [self._term(tile * PAIR + k, index, 1) for k in range(PAIR)]


def short_weights_of(warp: Warp, reader: WeightReader, first: Expr, row_of: RowOf) -> ShortWeights:
    """What a warp reads of a matrix, in its layout."""
    has_minima = isinstance(reader.layout, MinimaLayout)
    return (ShortMinimaWeights if has_minima else ShortWeights)(warp, reader, first, row_of)
