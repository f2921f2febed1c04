"""A matrix with minima as the left side of products of bytes (byte_products.py).

A step of a row is a block of its groups, whose four words take the place of the scales. They are
decoded once for a warp: a lane makes scale and minimum of two groups of a row, and writes them
where all lanes of the row read them. Weights meet x as they are stored, from 0 to 15; minima meet
sums of x, which byte_rows.py makes.
"""

from __future__ import annotations

from gemma4_compile.operators.minima import BLOCK_WORDS, GROUPS, MinimaLayout, terms
from gemma4_compile.operators.tir import bind, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import local
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.tiles.byte_products import Weights
from gemma4_compile.targets.kernels.tiles.few_row_shape import ROW_LANES
from gemma4_compile.targets.kernels.tiles.loaders import RowOf
from gemma4_compile.targets.kernels.tiles.tensor_cores import (
    BYTE_ROWS,
    PIECE_WORDS,
    address,
    copy_piece,
    shared_pieces,
    warp_barrier,
)
from gemma4_compile.targets.kernels.tiles.warps import Warp

TERMS = 2  # of a group: scale and minimum
PIECE_GROUPS = PIECE_WORDS // TERMS
ROW_PIECES = GROUPS // PIECE_GROUPS  # of terms of a block: one for each lane of a row
assert (ROW_PIECES, PIECE_WORDS) == (ROW_LANES, BLOCK_WORDS)


class MinimaWeights(Weights):
    """What a warp reads of the matrix: pieces of 16 bytes, and blocks' words."""

    def __init__(self, warp: Warp, reader: WeightReader, first: Expr, row_of: RowOf) -> None:
        assert warp.shape.groups == GROUPS, "a step is a block"
        super().__init__(warp, reader, first, row_of)
        rows = warp.shape.bands * warp.shape.warps * warp.shape.warp_rows
        self._terms = shared_pieces(rows * ROW_PIECES, "float32")
        self._piece_of_terms = local((PIECE_WORDS,))
        self._block = local((BLOCK_WORDS,), "uint32")

    def _shared_scales(self, rows: int) -> Buffer:
        return shared_pieces(rows)

    def _own_scales(self, groups: int) -> Buffer:
        return local((groups * TERMS,))

    @property
    def _scale_count(self) -> int:
        return BLOCK_WORDS

    def _read_scales(self, scales: Buffer, row: Expr, step: Expr) -> None:
        copy_piece(address(self._next_scales, 0), address(scales, row, step * BLOCK_WORDS))

    def _take_scales(self) -> None:
        warp, rows = self._warp, self._warp.shape.warp_rows
        with when(warp.lane < rows):
            own = bind(warp.number * rows + self._own_row)
            copy_piece(address(self._scale_memory, own), address(self._next_scales, 0))

    def load(self, part: int) -> int:
        """See `Weights`: before the first part all lanes decode the step's words."""
        if part == 0:
            self._decode()
        return super().load(part)

    def _decode(self) -> None:
        for tile in range(self._warp.shape.tiles):
            row = self._own_row_of(tile)
            copy_piece(address(self._block, 0), address(self._scale_memory, row))
            words = [bind(self._block[at]) for at in range(BLOCK_WORDS)]
            for k in range(PIECE_GROUPS):
                group = bind(self._warp.quarter * PIECE_GROUPS + k)
                for which, term in enumerate(terms(words.__getitem__, group)):
                    store(self._piece_of_terms, term, k * TERMS + which)
            to = address(self._terms, row * ROW_PIECES + self._warp.quarter)
            copy_piece(to, address(self._piece_of_terms, 0))
        warp_barrier()

    def _load_scales(self, begin: int) -> None:
        for tile in range(self._warp.shape.tiles):
            first = bind(self._own_row_of(tile) * ROW_PIECES + begin // PIECE_GROUPS)
            for at in range(0, self._loaded, PIECE_GROUPS):
                to = address(self._scales, (tile * self._loaded + at) * TERMS)
                copy_piece(to, address(self._terms, first + at // PIECE_GROUPS))

    def _own_row_of(self, tile: int) -> Expr:
        """The lane's row of a tile, among those of all warps."""
        warp = self._warp
        return bind(warp.number * warp.shape.warp_rows + tile * BYTE_ROWS + warp.row)

    def _term(self, tile: int, index: int, which: int) -> Expr:
        at = (self._part * self._groups_at_once + index) % self._loaded
        return self._scales[(tile * self._loaded + at) * TERMS + which]

    def scale(self, tile: int, index: int) -> Expr:
        """See `Weights`."""
        return self._term(tile, index, 0)

    def minimum(self, tile: int, index: int) -> Expr | None:
        """See `Weights`."""
        return bind(self._term(tile, index, 1))


def weights_of(warp: Warp, reader: WeightReader, first: Expr, row_of: RowOf) -> Weights:
    """What a warp reads of a matrix, in its layout."""
    has_minima = isinstance(reader.layout, MinimaLayout)
    return (MinimaWeights if has_minima else Weights)(warp, reader, first, row_of)
