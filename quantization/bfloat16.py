"""bfloat16 to the last bit, in the 16 bits that a checkpoint has of it; the form, once.

No GPU of the targets needs to know the type: two of them are a word, and a float32's upper half is
one. Nothing is rounded: a weight that is none is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemma4_compile.errors import QuantizationError
from gemma4_compile.operators.weight_layout import BFloat16Layout, WeightLayout
from gemma4_compile.quantization.dense import DenseScheme
from gemma4_compile.quantization.quality import EXACT, Thresholds
from gemma4_compile.quantization.scheme import (
    EVEN_ERROR,
    HALF_STEP,
    Float32Array,
    Scheme,
    StoredTensor,
    refuse_rows,
    stored_matrix,
)
from gemma4_compile.types import Array

_LOWER = np.uint32(0xFFFF)


@dataclass(frozen=True)
class BFloat16Scheme(Scheme):
    """Matrices of bfloat16, two to a word."""

    @property
    def name(self) -> str:
        """As plain values are called."""
        return "q0bf16"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """See `Scheme`."""
        return ("uint32",)

    def tensors(self, stem: str, suffix: str, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        """See `Scheme`: of a matrix with an even number of columns."""
        if len(shape) != 2 or shape[1] % 2:
            raise QuantizationError(
                f"`{stem}` of shape {shape} cannot be stored as {self.name}: its columns must be "
                "an even number",
                hint="use --quant f32",
            )
        return stored_matrix(stem, suffix, shape[0], self.layout(shape[1], (shape[0],)))

    def layout(self, cols: int, split_rows: tuple[int, ...]) -> WeightLayout:
        """See `Scheme`."""
        return BFloat16Layout(0, "float32", 0, cols, split_rows)

    def store(self, rows: Float32Array, *, name: str, first_row: int) -> tuple[Array, ...]:
        """See `Scheme`."""
        refuse_rows(~np.isfinite(rows), name, first_row, "holds a weight that is not finite")
        bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
        refuse_rows(bits & _LOWER != 0, name, first_row, "holds a weight that is no bfloat16")
        halves = (bits >> np.uint32(16)).astype("<u2")
        return (halves.view("<u4").astype(np.uint32, copy=False),)

    def load(self, arrays: Sequence[Array]) -> Float32Array:
        """See `Scheme`."""
        halves = np.ascontiguousarray(arrays[0]).astype("<u4", copy=False).view("<u2")
        return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)

    @property
    def dense(self) -> Scheme:
        """See `Scheme`."""
        return DenseScheme("float32")

    @property
    def mean_error(self) -> float:
        """See `Scheme`: nothing is rounded."""
        return 2 * EVEN_ERROR * HALF_STEP["float32"]

    @property
    def row_bound(self) -> tuple[float, float]:
        """See `Scheme`."""
        return 2 * HALF_STEP["float32"], 0.0

    @property
    def thresholds(self) -> Thresholds:
        """See `Scheme`."""
        return EXACT
