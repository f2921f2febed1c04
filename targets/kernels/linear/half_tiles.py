"""The product of a tile with float16 operands: groups of 8-bit weights, summed in float16.

A group's integers are exact as halves; their products with x are summed in float16 within the group
and then, scaled, in float32. No sum overflows, whatever the operands: x is held as x / 32 and an
integer as one of at most 127 / 128, so that 32 products are at most 65,504 * 127 / 128 together,
and what their rounding adds (half a unit of at most 32 each) leaves them within float16.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.bounded_linear import LARGEST_F16, BoundedLinear
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.tir import bind, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import local, shared
from gemma4_compile.targets.kernels.common.tile_loaders import (
    VECTOR,
    Loader,
    RowOf,
    Tile,
    lane_of,
    put,
    read_vector,
    splat,
    transposed,
    vector,
)
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.linear.tiles import Finish, TileProduct, TileShape, fit_shape
from gemma4_compile.targets.spec import TargetSpec

BITS, GROUP = 8, 32  # of the layouts that this is for
HALF = "float16"
X_SHARE, WEIGHT_SHARE = 1 / 32, 1 / 128  # of an operand in shared memory
LARGE = 1024  # as a half its last ten bits are ones: 0x6400


def fits_halves(operator: BoundedLinear) -> bool:
    """Return whether the operands are halves and groups of bytes."""
    layout = operator.layout
    groups = (layout.bits, layout.group_size) == (BITS, GROUP)
    return operator.in_dtype == layout.dtype == HALF and groups


def half_shape(spec: TargetSpec) -> TileShape:
    """The tile: a step is a group, and every thread covers a part of its own."""
    size = spec.tuning.half_gemm
    shape = TileShape(
        *(size.tile_m, size.tile_n, GROUP, size.thread_m, size.thread_n),
        threads=size.tile_m // size.thread_m * (size.tile_n // size.thread_n),
        item_bytes=2,
    )
    shape = fit_shape(shape, spec)
    assert (shape.depth, shape.slices) == (GROUP, 1), "a group a step"
    return shape


class _HalfTile(Tile):
    """Halves: 16 vectors fill the banks."""

    def twist(self, vec4: Expr) -> Expr:
        """See `Tile`."""
        return vec4 * VECTOR


class _RowsLoader(Loader):
    """Rows of x, within bounds and scaled."""

    def __init__(
        self,
        tile: Tile,
        thread: Expr,
        threads: int,
        row_of: RowOf,
        source: Buffer,
        bounds: Sequence[Expr],
    ) -> None:
        super().__init__(tile, thread, threads, 0, row_of)
        self._source = source
        self._bounds = [splat(materialize(_half(bound), HALF)) for bound in bounds[:2]]
        self._raw = local((self._iterations * VECTOR * VECTOR,), HALF)

    def read_block(self, iteration: int, rows: Sequence[Expr], vec4: Expr) -> None:
        """See `Loader`."""
        for i, row in enumerate(rows):
            put(self._raw, iteration * VECTOR + i, read_vector(self._source, row, vec4))

    def decode_block(self, iteration: int, item: Expr) -> list[Expr]:
        """See `Loader`."""
        return transposed([self._value(iteration * VECTOR + i) for i in range(VECTOR)])

    def _value(self, index: int) -> Expr:
        value = vector(self._raw, index)
        if self._bounds:
            low, high = self._bounds
            value = tirx.max(tirx.min(value, high), low)
        return value * splat(tirx.const(X_SHARE, HALF))


class _IntegersLoader(Loader):
    """A group of the weights' rows as integers, scaled."""

    def __init__(
        self,
        tile: Tile,
        thread: Expr,
        threads: int,
        skipped: int,
        row_of: RowOf,
        weights: WeightReader,
    ) -> None:
        super().__init__(tile, thread, threads, skipped, row_of)
        self._weights = weights
        self._words = local((self._iterations * VECTOR,), "uint32")

    def read_block(self, iteration: int, rows: Sequence[Expr], vec4: Expr) -> None:
        """See `Loader`."""

        def read(part: Sequence[Buffer], begin: int) -> None:
            for i, row in enumerate(rows):
                store(self._words, part[0][row - begin, vec4], iteration * VECTOR + i)

        self._weights.in_part(rows[0], read)

    def decode_block(self, iteration: int, item: Expr) -> list[Expr]:
        """See `Loader`."""
        words = [self._words[iteration * VECTOR + i] for i in range(VECTOR)]
        even, odd = (bind(tirx.Shuffle(words[first::2], [0, 1])) for first in range(2))
        return [self._halves(even, odd, j) for j in range(VECTOR)]

    def _halves(self, even: Expr, odd: Expr, byte: int) -> Expr:
        """A byte of four words, two a word, as the last bits of `LARGE`; then its integer."""

        def both(value: int) -> Expr:
            return T.Broadcast(tirx.const(value, "uint32"), 2)

        low = tirx.bitwise_and(tirx.shift_right(even, both(8 * byte)) if byte else even, both(255))
        at_16 = 16 - 8 * byte
        shift = tirx.shift_left if at_16 > 0 else tirx.shift_right
        high = shift(odd, both(abs(at_16))) if at_16 else odd
        high = tirx.bitwise_and(high, both(255 << 16))
        bits = tirx.bitwise_or(tirx.bitwise_or(low, high), both(0x64006400))
        value = tirx.reinterpret(f"{HALF}x{VECTOR}", bits)
        zero = (LARGE + self._weights.layout.zero_point) * WEIGHT_SHARE
        return value * splat(tirx.const(WEIGHT_SHARE, HALF)) - splat(tirx.const(zero, HALF))


class HalfTileProduct(TileProduct):
    """Both tiles as halves, and the scales of the weights' rows in float32.

    Parameters
    ----------
    x : (any, cols) float16
    row_of_x, row_of_w : rows of the tensors by rows of the tile; clamped, so that all exist
    bounds : of x, lowest and highest first, or none
    """

    tile_type = _HalfTile

    def __init__(
        self,
        shape: TileShape,
        x: Buffer,
        weights: WeightReader,
        thread: Expr,
        row_of_x: RowOf,
        row_of_w: RowOf,
        bounds: Sequence[Expr],
    ) -> None:
        super().__init__(shape, thread, HALF)
        self._thread, self._weights = thread, weights
        self._loaders = (
            _RowsLoader(self._x, thread, shape.threads, row_of_x, x, bounds),
            _IntegersLoader(
                *(self._w, thread, shape.threads, self._x.blocks, row_of_w, weights),
            ),
        )
        self._runs = local((shape.vectors * VECTOR,), HALF)
        self._scales = shared((shape.columns,))
        self._scaled = range(0, shape.columns, shape.threads)
        self._next_scales = local((len(self._scaled),), HALF)
        self._rows_of_w = [bind(row_of_w(self._scaled_row(first))) for first in self._scaled]

    def _scaled_row(self, first: int) -> Expr:
        """The row of the tile whose scale this thread moves."""
        return tirx.min(self._thread + first, self._shape.columns - 1)

    def _read(self, step: Expr) -> None:
        super()._read(step)
        for index, row in enumerate(self._rows_of_w):

            def read(
                part: Sequence[Buffer], begin: int, index: int = index, row: Expr = row
            ) -> None:
                store(self._next_scales, part[1][row - begin, step], index)

            self._weights.in_part(row, read)

    def _write(self, step: Expr) -> None:
        super()._write(step)
        for index, first in enumerate(self._scaled):
            factor = f32(1 / (X_SHARE * WEIGHT_SHARE))
            value = self._next_scales[index].astype("float32") * factor
            store(self._scales, value, self._scaled_row(first))

    def _multiply(self) -> None:
        shape, runs, sums = self._shape, self._runs, self._sums
        for index in range(shape.vectors):
            put(runs, index, splat(tirx.const(0.0, HALF)))
        with T.serial(0, shape.vec4s) as vec4:
            left, right = self._rows_of(vec4)
            self._each_item(vec4, lambda channel: self._add_channel(channel, left, right))
        parts = shape.thread_n // VECTOR
        lanes = shape.columns // shape.thread_n
        scales = [bind(vector(self._scales, self._n + part * lanes)) for part in range(parts)]
        for index in range(shape.vectors):
            total = vector(runs, index).astype(f"float32x{VECTOR}") * scales[index % parts]
            put(sums, index, vector(sums, index) + total)

    def _add_channel(self, channel: Expr, left: Sequence[Expr], right: Sequence[Expr]) -> None:
        runs = self._runs
        a = [bind(vector(self._memory, self._x.place(channel, at))) for at in left]
        b = [bind(vector(self._memory, self._w.place(channel, at))) for at in right]
        for i in range(self._shape.thread_m):
            value = splat(lane_of(a[i // VECTOR], i % VECTOR))
            for j, item in enumerate(b):
                index = i * len(b) + j
                put(runs, index, vector(runs, index) + value * item)

    def finish(self, body: Finish) -> None:
        """Run ``body(row, first column, 4 sums)`` for the thread's own sums."""
        value = local((VECTOR,))
        with T.serial(0, self._shape.vectors) as index:
            for number in range(self._shape.vectors):  # registers have no variable index
                with when(index == number):
                    put(value, 0, vector(self._sums, number))
            row, column = self._position(index)
            sums = bind(vector(value, 0))
            body(row, column, [bind(lane_of(sums, lane)) for lane in range(VECTOR)])


def _half(bound: Expr) -> Expr:
    """A bound as a half: what lies beyond bounds nothing, for x is a half itself."""
    return tirx.max(tirx.min(bound, f32(LARGEST_F16)), f32(-LARGEST_F16)).astype(HALF)
