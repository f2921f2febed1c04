"""The product of a tile of packed x with a tile of W by warpgroups: both as float16.

Weights are the rows of the product: a thread reads a group of each of two neighbouring rows of W
and turns it into halves in registers. Rows of x become halves on their way to shared memory, in
the order of channels that the weights' words have. A step is 128 channels: thread t of four has
those of group t. While a step is multiplied, the next one's x is written to the other stage. x is
scaled by its scales over a power of two, a row's own (row_powers.py), which its sums take at the
end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.activation_quantization import GROUP, WORD
from gemma4_compile.operators.linear import INTEGERS, WeightLayout
from gemma4_compile.operators.math import f32
from gemma4_compile.operators.minima import BLOCK_WORDS, GROUPS, MinimaLayout, terms
from gemma4_compile.operators.packing import TOP_BITS, word
from gemma4_compile.operators.packings import BYTES, NIBBLES, SIXES
from gemma4_compile.operators.row_powers import as_float, inverse_of, power_bits
from gemma4_compile.operators.tir import LocalVar, bind, i32, materialize, store, when
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.targets.kernels.common.blocks import (
    barrier,
    local,
    max_over_neighbours,
    shared,
)
from gemma4_compile.targets.kernels.common.weights import WeightReader
from gemma4_compile.targets.kernels.tiles.loaders import RowOf
from gemma4_compile.targets.kernels.tiles.products import Finish
from gemma4_compile.targets.kernels.tiles.tensor_cores import (
    PIECE_WORDS,
    WARP,
    WORD_HALVES,
    address,
    copy_half_piece,
    copy_piece,
    decode_bytes,
)
from gemma4_compile.targets.kernels.tiles.warpgroups import (
    LINE_PIECES,
    begin_products,
    commit_products,
    decode_nibbles,
    decode_offset_nibbles,
    decode_sixes,
    multiply,
    show_to_warpgroups,
    wait_for_products,
)
from gemma4_compile.targets.spec import TargetSpec

STEP_GROUPS = 4  # of a step: one of each thread of four
STEP = STEP_GROUPS * GROUP
PARTS = 4  # of a step's products: eight channels of each group
PIECES = 4  # of 16 bytes of x's halves, of those channels of a row
LINES = 2  # of a row of x: the first two of those pieces, and the others
ALIGNMENT = 1024  # of lines: places of pieces go by an address, not by a row
OWN = 2  # rows of W of a thread
SLOTS = 2  # rows of x that wait in registers
TOP_NIBBLE, LEAST_SCALE = 15, 1e-30  # of a weight with a minimum; that something is divided by
EVEN_BYTES, ODD_BYTES = 0x00FF00FF, 0xFF00FF00


@dataclass(frozen=True)
class WarpgroupShape:
    """Division of a block's work.

    Attributes
    ----------
    rows : of x that a block multiplies, a multiple of 8
    scope : of shared memory: where it is what a launch says, there is more of it
    """

    rows: int
    scope: str = "shared.dyn"
    columns: ClassVar[int] = 128  # of W, of two warpgroups
    threads: ClassVar[int] = 256
    stages: ClassVar[int] = 2
    depth: ClassVar[int] = STEP // WORD
    group: ClassVar[int] = GROUP // WORD

    def __post_init__(self) -> None:
        assert self.rows % 8 == 0, "rows of B come in eights"
        assert SLOTS <= self.turns <= PARTS, "one row of a thread in each part, and two ahead"

    @property
    def turns(self) -> int:
        """Rows of x that a thread brings, with three others, in a step."""
        return -(-self.rows // (self.threads // STEP_GROUPS))

    @property
    def line_pieces(self) -> int:
        """Pieces of one line of each row."""
        return self.rows * LINE_PIECES

    @property
    def stage_pieces(self) -> int:
        """Pieces of a step."""
        return LINES * self.line_pieces


def takes_warpgroups(layout: WeightLayout, spec: TargetSpec) -> bool:
    """Return whether a matrix is large and has what tiles take: whole steps, scales in float16."""
    if layout.rows < spec.tuning.warpgroups.matrix_rows:
        return False
    integers = layout.form == INTEGERS and layout.packing in (NIBBLES, SIXES, BYTES)
    stored = isinstance(layout, MinimaLayout) or (integers and layout.dtype == "float16")
    pairs = all(rows % OWN == 0 for rows in layout.split_rows)
    return stored and layout.group_size == GROUP and layout.cols % STEP == 0 and pairs


class _Rows:
    """Brings rows of x into shared memory."""

    def __init__(
        self, shape: WarpgroupShape, x: Sequence[Buffer], nibbles: bool, thread: Expr, row_of: RowOf
    ) -> None:
        self._shape, self._nibbles = shape, nibbles
        self._words, self._scales = x
        self.stage = T.alloc_buffer(
            (shape.stages * shape.stage_pieces,),
            f"uint32x{PIECE_WORDS}",
            scope=shape.scope,
            align=ALIGNMENT,
        )
        self._quarter = bind(tirx.floormod(thread, STEP_GROUPS))
        first = bind(tirx.floordiv(thread, STEP_GROUPS))
        apart = shape.threads // STEP_GROUPS
        self._tile_rows = [bind(first + turn * apart) for turn in range(shape.turns)]
        last = shape.rows - 1
        self._rows = [materialize(row_of(tirx.min(row, last))) for row in self._tile_rows]
        self._raw = local((SLOTS * STEP_GROUPS * 2,), "uint32")
        self._raw_scales = local((SLOTS * STEP_GROUPS,))
        self._inverse = local((shape.turns,))
        self.powers = shared((shape.rows,))
        for turn in range(shape.turns):
            self._find_power(turn)

    def _find_power(self, turn: int) -> None:
        """Keep the power of two below the largest scale of a row: all four threads do."""
        count = int(self._scales.shape[1]) // STEP_GROUPS
        largest, four = LocalVar("float32", f32(0.0)), local((STEP_GROUPS,))
        with T.serial(0, -(-count // STEP_GROUPS)) as index:
            at = bind(tirx.min(index * STEP_GROUPS + self._quarter, count - 1) * STEP_GROUPS)
            copy_piece(address(four, 0), address(self._scales, self._rows[turn], at))
            for k in range(STEP_GROUPS):
                largest.set(tirx.max(largest.value, tirx.abs(four[k])))
        most = max_over_neighbours(largest.value, STEP_GROUPS)
        power = bind(power_bits(most))
        store(self._inverse, inverse_of(power), turn)
        row = self._tile_rows[turn]
        with when((self._quarter == 0) & (row < self._shape.rows)):
            store(self.powers, as_float(power), row)

    def read(self, step: Expr, turn: int) -> None:
        """Read a turn's row: eight channels of each group of a step, and the scales."""
        slot = turn % SLOTS * STEP_GROUPS
        for k in range(STEP_GROUPS):
            at = step * (STEP // WORD) + k * (GROUP // WORD) + self._quarter * 2
            source = address(self._words, self._rows[turn], at)
            copy_half_piece(address(self._raw, (slot + k) * 2), source)
        scales = address(self._scales, self._rows[turn], step * STEP_GROUPS)
        copy_piece(address(self._raw_scales, slot), scales)

    def write(self, number: Expr, turn: int) -> None:
        """Write what was read for a turn into a stage."""
        row = self._tile_rows[turn]
        if (turn + 1) * (self._shape.threads // STEP_GROUPS) <= self._shape.rows:
            self._write(number, turn, row)
        else:
            with when(row < self._shape.rows):
                self._write(number, turn, row)

    def _write(self, number: Expr, turn: int, row: Expr) -> None:
        slot = turn % SLOTS * STEP_GROUPS
        pieces, two = local((PIECES * PIECE_WORDS,), "uint32"), local((2,), "uint32")
        for k in range(STEP_GROUPS):
            near, far = (bind(self._raw[(slot + k) * 2 + part]) for part in range(2))
            scale = bind((self._raw_scales[slot + k] * self._inverse[turn]).astype("float16"))
            for pair, octets in enumerate(self._octets(near, far)):
                flipped = tirx.bitwise_xor(octets, word(TOP_BITS))
                decode_bytes(address(two, 0), flipped, f32(128.0), scale)
                for part in range(2):
                    store(pieces, two[part], (pair * 2 + part) * PIECE_WORDS + k)
        shape = self._shape
        twist = bind(tirx.bitwise_and(row, i32(LINE_PIECES - 1)))
        first = bind(number * shape.stage_pieces + row * LINE_PIECES)
        for index in range(PIECES):
            line, own = divmod(index, PIECES // LINES)
            place = tirx.bitwise_xor(self._quarter * 2 + own, twist)
            to = address(self.stage, first + line * shape.line_pieces + place)
            copy_piece(to, address(pieces, index * PIECE_WORDS))

    def _octets(self, near: Expr, far: Expr) -> tuple[Expr, Expr]:
        """Eight channels' bytes in the order of the weights' pairs."""
        if not self._nibbles:
            return near, far
        # Channels 0, 2, 1, 3 and 4, 6, 5, 7 become 0, 4, 1, 5 and 2, 6, 3, 7.
        low, high, octet = word(EVEN_BYTES), word(ODD_BYTES), word(8)
        even = tirx.bitwise_or(
            tirx.bitwise_and(near, low), tirx.shift_left(tirx.bitwise_and(far, low), octet)
        )
        odd = tirx.bitwise_or(
            tirx.bitwise_and(tirx.shift_right(near, octet), low), tirx.bitwise_and(far, high)
        )
        return even, odd


class _Weights:
    """A thread's two rows of W, a group of each at a time."""

    def __init__(self, weights: WeightReader, thread: Expr, row_of: RowOf) -> None:
        self._weights, layout = weights, weights.layout
        self._packing, self._has_minima = layout.packing, isinstance(layout, MinimaLayout)
        self._count = layout.packing.words(GROUP)
        self._quarter = bind(tirx.floormod(thread, STEP_GROUPS))
        self.first = bind(tirx.floordiv(thread, WARP) * 16 + tirx.floormod(thread, WARP) // 4 * OWN)
        self._rows = [materialize(row_of(self.first + own)) for own in range(OWN)]
        self._words = local((OWN * self._count,), "uint32")
        self._next = local((OWN * self._count,), "uint32")
        self._scales = local((OWN,), "float16")
        if self._has_minima:
            self._zeros, self._offsets = local((OWN,), "float16"), local((OWN,), "float16")
            self._sizes = local((OWN * BLOCK_WORDS,), "uint32")
        else:
            self._next_scales = local((OWN,), "float16")
        self._a = local((2 * 2 * PIECES,), "uint32")

    def read(self, step: Expr) -> None:
        """Read a step's groups, to be taken later."""
        group = bind(step * STEP_GROUPS + self._quarter)
        whole = self._count % PIECE_WORDS == 0
        size, copy = (PIECE_WORDS, copy_piece) if whole else (WORD_HALVES, copy_half_piece)

        def read(split: Sequence[Buffer], begin: int) -> None:
            for own, row in enumerate(self._rows):
                within = bind(row - begin)
                for at in range(0, self._count, size):
                    source = address(split[0], within, group * self._count + at)
                    copy(address(self._next, own * self._count + at), source)
                if self._has_minima:
                    block = tirx.floordiv(group, GROUPS) * BLOCK_WORDS
                    to = address(self._sizes, own * BLOCK_WORDS)
                    copy_piece(to, address(split[1], within, block))
                else:
                    store(self._next_scales, split[1][within, group], own)

        self._weights.in_split(self._rows[0], read)

    def take(self, step: Expr) -> None:
        """What was read, of a step, is what is decoded from now on."""
        for index in range(OWN * self._count):
            store(self._words, self._next[index], index)
        for own in range(OWN):
            if self._has_minima:
                self._find_terms(own, step)
            else:
                store(self._scales, self._next_scales[own], own)

    def _find_terms(self, own: int, step: Expr) -> None:
        """Keep a group's scale, the code next to its 0, and the weight there, in float16.

        That weight is half a scale or less, and so is what its rounding takes away: of the weight
        of code 0, the minimum, it would be as much as of the largest.
        """
        place = tirx.bitwise_and(step * STEP_GROUPS + self._quarter, i32(GROUPS - 1))
        sizes, place = self._sizes, bind(place.astype("uint32"))
        scale, minimum = terms(lambda at: sizes[own * BLOCK_WORDS + at], place)
        scale, minimum = bind(scale), bind(minimum)
        nearest = tirx.floor(minimum / tirx.max(scale, f32(LEAST_SCALE)) + f32(0.5))
        zero = bind(tirx.min(nearest, f32(TOP_NIBBLE)))
        for to, value in (
            (self._scales, scale),
            (self._zeros, zero),
            (self._offsets, zero * scale - minimum),
        ):
            store(to, value.astype("float16"), own)

    def decode(self, part: int) -> None:
        """Turn eight channels of the groups into operands of two products."""
        four = local((4,), "uint32")
        for own in range(OWN):
            self._decode(four, own, part)
            for pair in range(4):
                store(self._a, four[pair], part % 2 * 2 * PIECES + pair * OWN + own)

    def _decode(self, four: Buffer, own: int, part: int) -> None:
        packing, scale, first = self._packing, self._scales[own], own * self._count
        zero, to = f32(packing.zero_point), address(four, 0)
        if self._has_minima:
            group = self._zeros[own], scale, self._offsets[own]
            decode_offset_nibbles(to, self._words[first + part], *group)
        elif packing == NIBBLES:
            decode_nibbles(to, self._words[first + part], zero, scale)
        elif packing == SIXES:
            run, eight = divmod(part, 2)
            own_word, upper = (first + run * packing.run_words + at for at in (eight, 2))
            decode_sixes(to, self._words[own_word], self._words[upper], eight, zero, scale)
        else:
            for half in range(2):
                packed = self._words[first + part * 2 + half]
                decode_bytes(address(four, half * 2), packed, zero, scale)

    def operand(self, part: int, line: int) -> Expr:
        """Where the operand of one of them is."""
        return address(self._a, part % 2 * 2 * PIECES + line * PIECES)


class WarpgroupTileProduct:
    """The sums of one tile of ``x W^T``; `TileProduct` by warpgroups.

    Parameters
    ----------
    x : words (any, cols / 4) uint32 and scales (any, cols / GROUP) float32
    row_of_x, row_of_w : rows of the tensors by rows of the tile; clamped, so that all exist
    """

    def __init__(
        self,
        shape: WarpgroupShape,
        x: Sequence[Buffer],
        weights: WeightReader,
        thread: Expr,
        row_of_x: RowOf,
        row_of_w: RowOf,
    ) -> None:
        self._shape, self._thread = shape, thread
        nibbles = weights.layout.products.interleaved
        self._right = _Rows(shape, x, nibbles, thread, row_of_x)
        self._left = _Weights(weights, thread, row_of_w)
        self._sums = local((shape.rows // 2,))
        for index in range(shape.rows // 2):
            store(self._sums, f32(0.0), index)

    def run(self, steps: Expr) -> None:
        """Add the products of all steps; the number is the same in the whole block."""
        left, right, turns = self._left, self._right, self._shape.turns
        left.read(i32(0))
        left.take(i32(0))
        for turn in range(turns):
            right.read(i32(0), turn)
            right.write(i32(0), turn)
        second = bind(tirx.min(steps - 1, 1))
        for turn in range(SLOTS):
            right.read(second, turn)
        left.decode(0)
        show_to_warpgroups()
        barrier()
        with T.serial(0, steps) as step:
            following = bind(tirx.min(step + 1, steps - 1))
            after = bind(tirx.min(step + 2, steps - 1))
            number = bind(tirx.bitwise_and(step, i32(1)))
            other = bind(i32(1) - number)
            left.read(following)
            for part in range(PARTS):
                if part:
                    left.decode(part)
                self._multiply(number, part)
                if part < turns:
                    right.write(other, part)
                    if part + SLOTS < turns:
                        right.read(following, part + SLOTS)
                    else:
                        right.read(after, part % SLOTS)
                wait_for_products(but_one=True)
            left.take(following)
            left.decode(0)
            wait_for_products()
            show_to_warpgroups()
            barrier()

    def _multiply(self, number: Expr, part: int) -> None:
        shape = self._shape
        begin_products()
        for line in range(LINES):
            place = number * shape.stage_pieces + line * shape.line_pieces
            at = address(self._right.stage, place)
            multiply(shape.rows, address(self._sums, 0), self._left.operand(part, line), at, part)
        commit_products()

    def finish(self, body: Finish) -> None:
        """Run ``body(row, first column, 2 sums)`` all over the tile; places are within it."""
        row = bind(tirx.floormod(self._thread, 4) * 2)
        for eight in range(self._shape.rows // 8):
            for k in range(2):
                own = bind(row + (eight * 8 + k))
                power = bind(self._right.powers[own])
                sums = [bind(self._sums[eight * 4 + half * 2 + k] * power) for half in range(OWN)]
                body(own, self._left.first, sums)
