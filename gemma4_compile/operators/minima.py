"""4-bit integers in groups with a scale and a minimum, whose own sizes are integers of 6 bits.

A row is cut into blocks of 256 channels, a block into groups of 32; the last block of a row may be
shorter. ``value = q * scale - minimum`` with q from 0 to 15, ``scale = s * d`` and
``minimum = m * e``: s and m are a group's, from 0 to 63, d and e a block's, bfloat16 and not below
0. q lies in words as of any 4-bit form (`packings.Nibbles`). A block has four words besides:

- d in the upper half, e in the lower one: a float32 is a mask or a shift away, on devices without
  16-bit floats, too, and of small weights no device flushes it to 0;
- the lower four bits of s, those of group 0 lowest; the lower four bits of m;
- the upper two bits of s in the lower half, those of m in the upper one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm import te, tirx

from gemma4_compile.operators.math import as_f32
from gemma4_compile.operators.packing import shift_by, word
from gemma4_compile.operators.spreads import WORDS, Spread
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.operators.weight_layout import WeightLayout
from gemma4_compile.types import Array

GROUP, GROUPS = 32, 8
BLOCK = GROUP * GROUPS
BLOCK_WORDS = 4
TOP_SIZE = 63  # of a scale or a minimum in units of its block's

_UPPER = 0xFFFF0000
_SIZES = 0x39003A80  # d of 2^-13, e of 2^-10, so that weights lie on both sides of 0
_MANTISSAS = 0x007F007F


@dataclass(frozen=True)
class MinimaLayout(WeightLayout):
    """The layout: fields are those of groups of 4 bits."""

    form: str = "minima"

    @property
    def label(self) -> str:
        """See `WeightLayout`."""
        return "q4k"

    @property
    def takes_int8(self) -> bool:
        """See `WeightLayout`: products of the integers, and sums of the vector for the minima."""
        return True

    @property
    def blocks(self) -> int:
        """Blocks of a row, the shorter one included."""
        return -(-self.cols // BLOCK)

    def split_shapes(self, rows: int) -> list[tuple[str, tuple[int, int], str]]:
        """See `WeightLayout`."""
        return [
            ("q_weight", (rows, self.packing.words(self.cols)), "uint32"),
            ("q_scale", (rows, BLOCK_WORDS * self.blocks), "uint32"),
        ]

    def element(self, split: Sequence[te.Tensor | Buffer], row: Expr, col: Expr) -> Expr:
        """See `WeightLayout`."""
        first = col // BLOCK * BLOCK_WORDS
        scale, minimum = terms(lambda at: split[1][row, first + at], col % BLOCK // GROUP)
        return code(split[0][row, col // 8], col % 8) * scale - minimum

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator
    ) -> Array | None:
        """See `WeightLayout`: sizes of blocks that are numbers."""
        if not name.startswith("q_scale"):
            return None
        words = rng.integers(0, 2**32, shape, dtype=np.uint32)
        words[..., ::BLOCK_WORDS] = (words[..., ::BLOCK_WORDS] & np.uint32(_MANTISSAS)) + np.uint32(
            _SIZES
        )
        return words

    def known_spreads(self, name: str) -> tuple[Spread, ...]:
        """See `example_input`."""
        if not name.startswith("q_scale"):
            return ()
        return (Spread(32, _SIZES, 1, mask=_MANTISSAS), *(WORDS,) * (BLOCK_WORDS - 1))


def code(packed: Expr, channel: Index) -> Expr:
    """A word's integer at one of its eight channels, as float32."""
    return as_f32(tirx.bitwise_and(tirx.shift_right(packed, shift_by(channel * 4)), word(15)))


def terms(read: Callable[[int], Expr], group: Index) -> tuple[Expr, Expr]:
    """Scale and minimum of a group of a block, as float32.

    Parameters
    ----------
    read : one of the block's four words
    """
    sizes, upper = read(0), read(3)
    units = (
        tirx.bitwise_and(sizes, word(_UPPER)),
        tirx.shift_left(sizes, word(16)),
    )
    found = []
    for which, unit in enumerate(units):
        low = tirx.bitwise_and(tirx.shift_right(read(1 + which), shift_by(group * 4)), word(15))
        high = tirx.shift_right(upper, shift_by(group * 2 + 16 * which))
        size = tirx.bitwise_or(low, tirx.shift_left(tirx.bitwise_and(high, word(3)), word(4)))
        found.append(as_f32(size) * tirx.reinterpret("float32", unit))
    return found[0], found[1]


def pack_terms(
    units: npt.NDArray[np.float32], sizes: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint32]:
    """The words (rows, 4 blocks) of blocks.

    Parameters
    ----------
    units : (rows, blocks, 2), d and e, which bfloat16 holds
    sizes : (rows, blocks, GROUPS, 2), s and m of the groups
    """
    words = np.zeros((*units.shape[:2], BLOCK_WORDS), np.uint32)
    bits = np.ascontiguousarray(units, np.float32).view(np.uint32)
    words[:, :, 0] = bits[:, :, 0] | (bits[:, :, 1] >> np.uint32(16))
    for group in range(GROUPS):
        for which in range(2):
            size = sizes[:, :, group, which].astype(np.uint32)
            words[:, :, 1 + which] |= (size & np.uint32(15)) << np.uint32(4 * group)
            words[:, :, 3] |= (size >> np.uint32(4)) << np.uint32(2 * group + 16 * which)
    return words.reshape(len(units), -1)


def unpack_terms(
    words: npt.NDArray[np.uint32],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Undo `pack_terms`."""
    blocks = words.reshape(len(words), -1, BLOCK_WORDS)
    bits = np.stack([blocks[:, :, 0] & np.uint32(_UPPER), blocks[:, :, 0] << np.uint32(16)], axis=2)
    sizes = np.empty((*blocks.shape[:2], GROUPS, 2), np.uint8)
    for group in range(GROUPS):
        for which in range(2):
            low = (blocks[:, :, 1 + which] >> np.uint32(4 * group)) & np.uint32(15)
            high = (blocks[:, :, 3] >> np.uint32(2 * group + 16 * which)) & np.uint32(3)
            sizes[:, :, group, which] = low | (high << np.uint32(4))
    return bits.view(np.float32), sizes
