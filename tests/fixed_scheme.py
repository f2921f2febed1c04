"""A scheme of the tests: fixed-point bytes, without scales.

It is all that a scheme is: its class and its layout; the tests that use it register it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx

from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.quantization.dense import DenseScheme
from gemma4_compile.quantization.groups import EIGHT_BITS
from gemma4_compile.quantization.quality import Thresholds
from gemma4_compile.quantization.scheme import Float32Array, Scheme, StoredTensor, refuse_rows
from gemma4_compile.types import Array

STEP = 1 / 256
ZERO = 128


@dataclass(frozen=True)
class FixedLayout(WeightLayout):
    """Four bytes to a word."""

    form: str = "fixed"

    @property
    def label(self) -> str:
        return "fixed"

    def split_shapes(self, rows: int) -> list[tuple[str, tuple[int, int], str]]:
        return [("codes", (rows, self.cols // 4), "uint32")]

    def element(self, split: Sequence[te.Tensor | Buffer], row: Expr, col: Expr) -> Expr:
        shift = (col % 4 * 8).astype("uint32")
        code = tirx.bitwise_and(
            tirx.shift_right(split[0][row, col // 4], shift), tirx.const(255, "uint32")
        )
        return (as_f32(code) - f32(ZERO)) * f32(STEP)


@dataclass(frozen=True)
class FixedScheme(Scheme):
    """``value = (code - 128) / 256``."""

    @property
    def name(self) -> str:
        return "fixed8"

    @property
    def dtypes(self) -> tuple[str, ...]:
        return ("uint32",)

    def tensors(self, stem: str, suffix: str, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        rows, cols = shape
        return (StoredTensor(f"{stem}.codes{suffix}", (rows, cols // 4), "uint32"),)

    def layout(self, cols: int, split_rows: tuple[int, ...]) -> WeightLayout:
        return FixedLayout(0, "float32", 0, cols, split_rows)

    def store(self, rows: Float32Array, *, name: str, first_row: int) -> tuple[Array, ...]:
        refuse_rows(~np.isfinite(rows), name, first_row, "holds a weight that is not finite")
        codes = np.clip(np.rint(rows / STEP) + ZERO, 0, 255).astype(np.uint8)
        return (np.ascontiguousarray(codes).view("<u4"),)

    def load(self, arrays: Sequence[Array]) -> Float32Array:
        codes = np.ascontiguousarray(arrays[0]).view(np.uint8).astype(np.float32)
        return (codes - np.float32(ZERO)) * np.float32(STEP)

    @property
    def dense(self) -> Scheme:
        return DenseScheme("float32")

    @property
    def mean_error(self) -> float:
        return STEP

    @property
    def row_bound(self) -> tuple[float, float]:
        return 1.0, STEP

    @property
    def thresholds(self) -> Thresholds:
        return EIGHT_BITS
