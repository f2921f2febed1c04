"""Dense storage: plain values of one dtype."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.quantization.quality import EXACT, Thresholds
from gemma4_compile.quantization.scheme import (
    EVEN_ERROR,
    HALF_STEP,
    SMALLEST_F16,
    Float32Array,
    Scheme,
    StoredTensor,
    refuse_rows,
)
from gemma4_compile.types import Array


@dataclass(frozen=True)
class DenseScheme(Scheme):
    """Plain values of one dtype, ``(rows, cols)``."""

    dtype: str

    @property
    def name(self) -> str:
        """Name in the metadata, MLC's spelling."""
        return {"float16": "q0f16", "float32": "q0f32"}[self.dtype]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """See `Scheme`."""
        return (self.dtype,)

    def tensors(self, stem: str, suffix: str, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        """See `Scheme`; any shape fits."""
        return (StoredTensor(f"{stem}.weight{suffix}", shape, self.dtype),)

    def layout(self, cols: int, split_rows: tuple[int, ...]) -> WeightLayout:
        """See `Scheme`."""
        return WeightLayout(0, self.dtype, 0, cols, split_rows)

    def store(self, rows: Float32Array, *, name: str, first_row: int) -> tuple[Array, ...]:
        """See `Scheme`."""
        return (to_dense(rows, self.dtype, name=name, first_row=first_row),)

    def load(self, arrays: Sequence[Array]) -> Float32Array:
        """See `Scheme`."""
        (values,) = arrays
        return values.astype(np.float32)

    @property
    def dense(self) -> Scheme:
        """See `Scheme`."""
        return self

    @property
    def mean_error(self) -> float:
        """See `Scheme`."""
        return 2 * EVEN_ERROR * HALF_STEP[self.dtype]

    @property
    def row_bound(self) -> tuple[float, float]:
        """See `Scheme`."""
        return 2 * HALF_STEP[self.dtype], SMALLEST_F16 if self.dtype == "float16" else 0.0

    @property
    def thresholds(self) -> Thresholds:
        """See `Scheme`; those of the arithmetic in the same dtype cover its rounding."""
        return EXACT


def to_dense(
    values: Float32Array, dtype: str, *, name: str = "weight", first_row: int = 0
) -> Array:
    """Round a matrix or vector to `dtype` (nearest, ties to even).

    Raises
    ------
    QuantizationError
        If a value is not finite, or too large for `dtype`.
    """
    refuse_rows(~np.isfinite(values), name, first_row, "holds a weight that is not finite")
    with np.errstate(over="ignore"):
        dense = values.astype(np.dtype(dtype))
    refuse_rows(~np.isfinite(dense), name, first_row, f"holds a weight that {dtype} cannot hold")
    return dense
