"""4 bits with minima, as a scheme: the words are documented in `operators/minima.py`.

`minima_search` finds scales, minima and codes. What 8 groups share is rounded for the largest of
them, so that weights on 16 levels of a step of their own are not held exactly: checkpoints that
were trained for 4 bits want groups with a scale (`groups`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemma4_compile.errors import QuantizationError
from gemma4_compile.operators.minima import (
    BLOCK,
    GROUP,
    GROUPS,
    TOP_SIZE,
    MinimaLayout,
    pack_terms,
    unpack_terms,
)
from gemma4_compile.operators.packings import NIBBLES
from gemma4_compile.operators.weight_layout import WeightLayout
from gemma4_compile.quantization.dense import DenseScheme
from gemma4_compile.quantization.groups import FOUR_BITS
from gemma4_compile.quantization.minima_search import LEAST, search_minima
from gemma4_compile.quantization.quality import Thresholds
from gemma4_compile.quantization.scheme import (
    Float32Array,
    Scheme,
    StoredTensor,
    refuse_rows,
    stored_matrix,
)
from gemma4_compile.types import Array

MEAN_ERROR = 0.0708  # of normal weights
_LARGEST = np.float32(2.0**60)


@dataclass(frozen=True)
class MinimaScheme(Scheme):
    """``value = q * scale - minimum`` in groups of 32: 4.5 bits where 256 divides a row."""

    group_size: int = GROUP

    @property
    def name(self) -> str:
        """llama.cpp's name of the idea; its words are others."""
        return "q4_k"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """See `Scheme`: no float16, which not every device has."""
        return ("uint32",)

    @property
    def takes_int8(self) -> bool:
        """See `Scheme`."""
        return True

    def tensors(self, stem: str, suffix: str, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        """See `Scheme`: of a matrix whose columns groups divide."""
        if len(shape) != 2 or shape[1] % GROUP:
            raise QuantizationError(
                f"`{stem}` of shape {shape} cannot be stored as {self.name}: groups of "
                f"{GROUP} must divide the number of columns",
                hint="use --quant f16 or f32",
            )
        rows, cols = shape
        return stored_matrix(stem, suffix, rows, self.layout(cols, (rows,)))

    def layout(self, cols: int, split_rows: tuple[int, ...]) -> WeightLayout:
        """See `Scheme`."""
        return MinimaLayout(NIBBLES.bits, "uint32", GROUP, cols, split_rows)

    def store(self, rows: Float32Array, *, name: str, first_row: int) -> tuple[Array, ...]:
        """See `Scheme`."""
        refuse_rows(~np.isfinite(rows), name, first_row, "holds a weight that is not finite")
        refuse_rows(np.abs(rows) >= _LARGEST, name, first_row, "holds a weight of 2^60 or more")
        count, cols = rows.shape
        padded = np.pad(rows, ((0, 0), (0, -cols % BLOCK)))
        found = search_minima(padded.reshape(-1, GROUP))
        words = found.words.reshape(count, -1)[:, : cols // 8]
        shape = (count, padded.shape[1] // BLOCK)
        return np.ascontiguousarray(words), pack_terms(
            found.units.reshape(*shape, 2), found.sizes.reshape(*shape, GROUPS, 2)
        )

    def load(self, arrays: Sequence[Array]) -> Float32Array:
        """See `Scheme`."""
        words, packed = arrays
        units, sizes = unpack_terms(packed)
        found = sizes.astype(np.float32) * units[:, :, None, :]
        codes = NIBBLES.unpack(words).astype(np.float32)
        groups = codes.reshape(len(codes), -1, GROUP)
        scale, minimum = (
            found[..., which].reshape(len(codes), -1)[:, : groups.shape[1], None]
            for which in range(2)
        )
        result: Float32Array = (groups * scale - minimum).reshape(codes.shape)
        return result

    @property
    def dense(self) -> Scheme:
        """See `Scheme`."""
        return DenseScheme("float16")

    @property
    def mean_error(self) -> float:
        """See `Scheme`."""
        return MEAN_ERROR

    @property
    def row_bound(self) -> tuple[float, float]:
        """See `Scheme`.

        A weight is off by half a step of its group, a fifteenth of the largest weight; besides, the
        scale and the minimum of each of a block's groups by half of a unit, a 63rd of those of the
        largest: 15 codes times half of d, and half of e, are at most 3/2 of the largest weight
        over 63.
        """
        group, block = math.sqrt(GROUP) / 15, math.sqrt(BLOCK) * 1.5 / TOP_SIZE
        return group + block, 2 * LEAST

    @property
    def thresholds(self) -> Thresholds:
        """See `Scheme`."""
        return FOUR_BITS
