"""Up to 8 packed rows as the right side of products of bytes (byte_products.py)."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.packing import ONES
from gemma4_compile.operators.tir import bind, store
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import local
from gemma4_compile.targets.kernels.common.vectors import Vectors
from gemma4_compile.targets.kernels.prologues.packed_rows import words_at
from gemma4_compile.targets.kernels.tiles.few_row_shape import ROW_LANES
from gemma4_compile.targets.kernels.tiles.loaders import RowOf
from gemma4_compile.targets.kernels.tiles.tensor_cores import (
    BYTE_SUMS,
    address,
    copy_half_piece,
    multiply_add_bytes,
)
from gemma4_compile.targets.kernels.tiles.warps import Warp, bits

HALVES = 2  # words of a lane's row and group, one for each product


class Rows:
    """What a lane reads of x: words of one row, and scales of its sums' rows.

    Parameters
    ----------
    x : words and scales
    row_of : from a row of the product, 0 to 7, to one of x; some that exists where there is none
    layout : of the weights: the order of their channels, and their zero point
    """

    def __init__(
        self, warp: Warp, x: Sequence[Buffer], row_of: RowOf, layout: WeightLayout
    ) -> None:
        self._warp, self._layout = warp, layout
        self._words_of_x, self._scales_of_x = x
        self._row = bind(row_of(warp.row))
        self._scale_rows = [bind(row_of(warp.quarter * BYTE_SUMS + k)) for k in range(BYTE_SUMS)]
        most = warp.shape.groups
        self._words, self._scales = local((most * HALVES,), "uint32"), local((BYTE_SUMS * most,))
        self._count = most
        # Of a group with a minimum, scaled.
        self._sums = local((BYTE_SUMS,)) if isinstance(layout, MinimaLayout) else None

    def load(self, first: Expr, count: int) -> None:
        """Read neighbouring groups."""
        shape = self._warp.shape
        self._count = count
        for index in range(count):
            group = first + index
            if shape.is_ragged:
                group = tirx.min(group, shape.all_groups - 1)
            self._load_words(bind(group), index)
        vectors = Vectors.dividing(shape.all_groups, count)
        for k, row in enumerate(self._scale_rows):
            for at in range(0, count, vectors.size):
                group = bind(first + at)
                if not shape.is_ragged:
                    own = self._scales_of_x[row, vectors.from_channel(group)]
                else:
                    inside = group < shape.all_groups
                    last = bind(tirx.min(group, shape.all_groups - vectors.size))
                    own = self._scales_of_x[row, vectors.from_channel(last)]
                    own = tirx.Select(inside, own, vectors.splat(f32(0.0)))
                store(self._scales, own, vectors.from_channel(k * count + at))

    def _load_words(self, group: Expr, index: int) -> None:
        quarter = self._warp.quarter
        if self._layout.products.interleaved:  # eight neighbouring channels, of one word of weights
            place = words_at(self._words_of_x, self._row, group, quarter * HALVES)
            to = address(self._words, index * HALVES)
            copy_half_piece(to, address(self._words_of_x, *place))
            return
        for half in range(HALVES):
            place = words_at(self._words_of_x, self._row, group, half * ROW_LANES + quarter)
            store(self._words, self._words_of_x[place], index * HALVES + half)

    def begin(self, index: int, sums: Buffer) -> tuple[list[Expr], list[Expr]]:
        """A loaded group's bytes of the lane's row, for a product each, and scales of its sums.

        `sums` becomes what the group's products are added to: what zero points add is taken back.
        With minima they add nothing, and the sums of the rows' groups are kept for `sum_of`.
        """
        pair = [bind(self._words[index * HALVES + half]) for half in range(HALVES)]
        right = in_order(*pair) if self._layout.products.interleaved else pair
        factor = -self._layout.products.byte_zero if self._sums is None else 1
        minus = bits(factor % 256 * ONES)
        for half, source in ((0, self._warp.magic), (1, sums)):
            multiply_add_bytes(address(sums, 0), address(source, 0), minus, right[half])
        scales = [bind(self._scales[k * self._count + index]) for k in range(BYTE_SUMS)]
        if self._sums is not None:
            for k, scale in enumerate(scales):
                whole = tirx.reinterpret("float32", sums[k]) - self._warp.none
                store(self._sums, whole * scale, k)
                store(sums, self._warp.magic[k], k)
        return right, scales

    def sum_of(self, k: int) -> Expr:
        """The scaled sum of the group's channels of a row, of which the lane has sums."""
        assert self._sums is not None, "the layout has minima"
        return self._sums[k]


def in_order(near: Expr, far: Expr) -> list[Expr]:
    """Eight neighbouring bytes in the order of the halves of a word of 4-bit weights."""
    low, high, half = bits(0xFFFF), bits(0xFFFF0000), bits(16)
    even = tirx.bitwise_or(tirx.bitwise_and(near, low), tirx.shift_left(far, half))
    odd = tirx.bitwise_or(tirx.shift_right(near, half), tirx.bitwise_and(far, high))
    return [bind(even), bind(odd)]
