"""The product of a tile of x with a tile of W in subgroup matrices: both as float16.

The tiles are those of subgroup_products.py; loaders turn bytes into halves on their way there. A
group's integers are exact as halves, and are scaled as such: those of x by their scale over a power
of two, a row's own (row_powers.py). Packed x: operators/activation_quantization.py; the product:
`Linear.definition`, of activations that are `in_halves`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import GROUP, WORD
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.minima import MinimaLayout
from gemma4_compile.operators.packing import TOP_BITS, word
from gemma4_compile.operators.row_powers import (
    as_float,
    bits_of,
    inverse_of,
    power_bits,
)
from gemma4_compile.operators.tir import bind, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.operators.weight_layout import WeightLayout
from gemma4_compile.targets.kernels.common.blocks import barrier, local, shared
from gemma4_compile.targets.kernels.common.weights import WeightReader, group_terms
from gemma4_compile.targets.kernels.tiles.loaders import (
    VECTOR,
    RowOf,
    joined,
    lane_of,
)
from gemma4_compile.targets.kernels.tiles.products import Finish
from gemma4_compile.targets.kernels.tiles.subgroup_products import (
    COUNTED,
    COUNTING,
    WEIGHTS,
    HalvesLoader,
    PieceLoader,
    SubgroupSums,
    tile_pieces,
)
from gemma4_compile.targets.kernels.tiles.tensor_cores import PIECE, shared_pieces
from gemma4_compile.targets.spec import TargetSpec
from gemma4_compile.targets.tuning import TensorCoreTuning

PIECE_BYTES = PIECE // WORD  # words of bytes that become a piece
EVEN_BYTES = 0x00FF00FF


def takes_halves(layout: WeightLayout, spec: TargetSpec) -> bool:
    """Return whether there are loaders of a stored matrix, and it has rows for enough tiles."""
    is_scaled = layout.dtype == "float16" or isinstance(layout, MinimaLayout)
    is_large = layout.rows > spec.tuning.subgroup_matrices.integers_to
    return layout.takes_int8 and is_scaled and is_large


class _RowPowers:
    """Of each row of the tile the power of two below the largest scale of its groups.

    0 for a row of zeros, and for one whose scales are below float32's normal ones.
    """

    def __init__(self, size: TensorCoreTuning, scales: Buffer, thread: Expr, row_of: RowOf) -> None:
        groups = int(scales.shape[1])
        self._powers = shared((size.rows,))
        for begin in range(0, size.rows, size.threads):
            row = bind(thread + begin)
            if begin + size.threads > size.rows:
                with when(row < size.rows):
                    self._find(scales, row, bind(row_of(row)), groups)
            else:
                self._find(scales, row, bind(row_of(row)), groups)
        barrier()

    def _find(self, scales: Buffer, row: Expr, source: Expr, groups: int) -> None:
        largest = local((1,))
        store(largest, f32(0.0), 0)
        with T.serial(0, groups) as group:
            store(largest, tirx.max(largest[0], tirx.abs(scales[source, group])), 0)
        store(self._powers, as_float(power_bits(largest[0])), row)

    def of(self, row: Expr) -> Expr:
        """What a row's sums are multiplied by."""
        return self._powers[row]

    def inverse(self, row: Expr) -> Expr:
        """What a row's scales are multiplied by; something finite for a row of zeros."""
        return inverse_of(bind(bits_of(self._powers[row])))


class _RowsLoader(PieceLoader):
    """Rows of packed x; 0 beyond the last group."""

    def __init__(
        self,
        size: TensorCoreTuning,
        x: Sequence[Buffer],
        memory: Buffer,
        thread: Expr,
        row_of: RowOf,
    ) -> None:
        words, scales = x
        cols = int(words.shape[1]) * WORD
        super().__init__(size, PIECE, cols, memory, 0, size.rows, thread, row_of)
        self._words, self._scales = words, scales
        self._raw = local((self.count * PIECE_BYTES,), "uint32")
        self._raw_scales = local((self.count,))
        self.powers = _RowPowers(size, scales, thread, row_of)
        self._inverse = local((self.count,))
        for index, row in enumerate(self.tile_rows):
            store(self._inverse, self.powers.inverse(row), index)

    def read(self, step: Expr) -> None:
        """Read a step's units, and their scales."""
        at = self.at(step)
        group = bind(tirx.floordiv(at, GROUP // PIECE))
        for index, row in enumerate(self.rows):
            _read_words(self._words, row, at, PIECE_BYTES, self._raw, index)
            store(self._raw_scales, self._scales[row, group], index)

    def write(self, step: Expr) -> None:
        """Write the units that were read for a step."""
        inside = self.inside(step) if self.cols % self.size.depth else None
        for index in range(self.count):
            scale = self._raw_scales[index] * self._inverse[index]
            if inside is not None:
                scale = tirx.Select(inside, scale, f32(0.0))
            scale = bind(scale.astype("float16"))
            found = []
            for part in range(PIECE_BYTES):
                packed = self._raw[index * PIECE_BYTES + part]
                found += [_bits_of(two * _twice(scale)) for two in _integers(packed, 0)]
            self.put(index, 0, joined(found))


class _ScaledRowsLoader(HalvesLoader):
    """Rows that come as halves over powers of two."""

    def __init__(
        self,
        size: TensorCoreTuning,
        x: Sequence[Buffer],
        memory: Buffer,
        thread: Expr,
        row_of: RowOf,
    ) -> None:
        halves, powers = x
        super().__init__(size, halves, memory, thread, row_of)
        self.powers = _StoredPowers(powers, row_of)


class _StoredPowers:
    """Powers that the rows of the tile come with."""

    def __init__(self, powers: Buffer, row_of: RowOf) -> None:
        self._powers, self._row_of = powers, row_of

    def of(self, row: Expr) -> Expr:
        """What a row's sums are multiplied by."""
        return self._powers[self._row_of(row), 0]


class _WeightsLoader(PieceLoader):
    """Rows of a stored matrix; beyond the last channel some of its values."""

    def __init__(
        self,
        size: TensorCoreTuning,
        weights: WeightReader,
        memory: Buffer,
        thread: Expr,
        row_of: RowOf,
    ) -> None:
        layout = weights.layout
        first, unit = size.rows * size.row_pieces, _weights_at_once(size, layout.group_size)
        super().__init__(size, unit, layout.cols, memory, first, size.columns, thread, row_of)
        self._weights, self._has_minima = weights, isinstance(layout, MinimaLayout)
        self._stored = layout.packing.words(unit)
        self._words = local((self.count * self._stored,), "uint32")
        self._scales = local((self.count,), "float32" if self._has_minima else layout.dtype)
        self._offsets = local((self.count,)) if self._has_minima else None

    def read(self, step: Expr) -> None:
        """Read a step's units, and their scales."""
        layout, at = self._weights.layout, self.at(step)
        group = bind(tirx.floordiv(at, layout.group_size // self.unit))
        for index, row in enumerate(self.rows):

            def read(
                split: Sequence[Buffer], begin: int, index: int = index, row: Expr = row
            ) -> None:
                own = bind(row - begin)
                _read_words(split[0], own, at, self._stored, self._words, index)
                if self._offsets is None:
                    store(self._scales, split[1][own, group], index)
                    return
                scale, minimum = group_terms(layout, split, own, group)
                assert minimum is not None, "the layout has minima"
                named = bind(scale)
                store(self._scales, named, index)
                store(self._offsets, named * f32(layout.packing.zero_point) - minimum, index)

            self._weights.in_split(row, read)

    def write(self) -> None:
        """Write the units that were read for a step."""
        packing = self._weights.layout.products
        for index in range(self.count):
            first = index * self._stored
            stored = [bind(self._words[first + part]) for part in range(self._stored)]
            octets = [octet for run in packing.runs(stored) for octet in packing.in_order(run)]
            halves = [
                self._scaled(two, index)
                for octet in octets
                for two in _integers(octet, packing.byte_zero)
            ]
            for piece in range(self.unit // PIECE):
                self.put(index, piece, joined(halves[piece * VECTOR : (piece + 1) * VECTOR]))

    def _scaled(self, two: Expr, index: int) -> Expr:
        """Two of a row's integers as weights: the bits of two halves."""
        scale = _twice(self._scales[index])
        if self._offsets is None:
            return _bits_of(two * scale)
        value = two.astype("float32x2") * scale + _twice(self._offsets[index])
        return _bits_of(value.astype("float16x2"))


class SubgroupTileProduct:
    """The sums of one tile of ``x W^T``; `TileProduct` in subgroup matrices.

    Parameters
    ----------
    x : words (any, cols / 4) uint32 and scales (any, cols / GROUP) float32, or halves (any, cols)
        and powers (any, 1) float32 (operators/halved_rows.py)
    row_of_x, row_of_w : rows of the tensors by rows of the tile; clamped, so that all exist
    """

    def __init__(
        self,
        size: TensorCoreTuning,
        x: Sequence[Buffer],
        weights: WeightReader,
        thread: Expr,
        row_of_x: RowOf,
        row_of_w: RowOf,
    ) -> None:
        self._memory = shared_pieces(tile_pieces(size))
        rows = _ScaledRowsLoader if str(x[0].dtype) == "float16" else _RowsLoader
        self._left = rows(size, x, self._memory, thread, row_of_x)
        self._right = _WeightsLoader(size, weights, self._memory, thread, row_of_w)
        self._sums = SubgroupSums(size, thread)

    def run(self, steps: Expr) -> None:
        """Add the products of all steps; the number is the same in the whole block."""
        self._read(i32(0))
        with T.serial(0, steps) as step:
            barrier()  # the tiles of the step before may still be being read
            self._left.write(step)
            self._right.write()
            barrier()
            self._read(tirx.min(step + 1, steps - 1))
            self._sums.multiply(self._memory)

    def _read(self, step: Expr) -> None:
        following = bind(step)
        self._left.read(following)
        self._right.read(following)

    def finish(self, body: Finish) -> None:
        """Run ``body(row, first column, 4 sums)`` all over the tile; places are within it."""

        def scaled(row: Expr, column: Expr, vectors: Sequence[Expr]) -> None:
            power = bind(self._left.powers.of(row))
            (four,) = vectors
            body(row, column, [bind(lane_of(four, i) * power) for i in range(VECTOR)])

        self._sums.finish(self._memory, (i32(0), i32(0)), 1, scaled)


def _read_words(
    source: Buffer, row: Expr, at: Expr, count: int, registers: Buffer, index: int
) -> None:
    """A thread's unit of words, `at` of the row's, in vectors; rows are whole units."""
    lanes = next(lanes for lanes in (4, 2, 1) if count % lanes == 0)
    for first in range(0, count, lanes):
        place, own = at * count + first, index * count + first
        if lanes == 1:
            store(registers, source[row, place], own)
        else:
            store(registers, source[row, T.ramp(place, 1, lanes)], T.ramp(own, 1, lanes))


def _weights_at_once(size: TensorCoreTuning, group: int) -> int:
    """Channels of a row of W that a thread takes at a time: a group, if no thread is idle then."""
    are_groups = group == GROUP and size.depth % GROUP == 0
    is_even = size.columns * size.depth % (GROUP * size.threads) == 0
    return GROUP if are_groups and is_even else WEIGHTS


def halves_of_word(octets: Expr, scale: Expr) -> Expr:
    """The four scaled channels of a word of packed x: bytes 0, 2, 1, 3 as float16x4."""
    pairs = [bind(two * _twice(scale)) for two in _integers(octets, 0)]
    lanes = [lane_of(two, lane) for two in pairs for lane in range(2)]
    return tirx.Shuffle(lanes, list(range(VECTOR)))


def _integers(octets: Expr, zero: int) -> list[Expr]:
    """Signed bytes of a word minus `zero` as halves: bytes 0 and 2, 1 and 3."""
    found = []
    for low in (0, 8):
        own = tirx.shift_right(octets, word(low)) if low else octets
        # With its top bit flipped a byte counts from -128.
        flipped = COUNTING ^ (TOP_BITS & EVEN_BYTES)
        bits = tirx.bitwise_xor(tirx.bitwise_and(own, word(EVEN_BYTES)), word(flipped))
        counting = tirx.reinterpret("float16x2", bits)
        found.append(counting - _twice(tirx.const(COUNTED + 128 + zero, "float16")))
    return found


def _twice(value: Expr) -> Expr:
    return T.Broadcast(value, 2)


def _bits_of(halves: Expr) -> Expr:
    return tirx.reinterpret("uint32", halves)
