"""Storage schemes of matrices: what the rest of the compiler asks of one.

Each scheme is a file (`dense`, `groups`); `schemes` lists them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from gemma4_compile.errors import QuantizationError
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.quantization.quality import Thresholds
from gemma4_compile.types import Array

Float32Array = npt.NDArray[np.float32]

DTYPE_BYTES = {"float16": 2, "float32": 4, "uint32": 4}
HALF_STEP = {"float16": 2.0**-11, "float32": 2.0**-24}
"""Largest relative error of a number that is rounded to a dtype."""
SMALLEST_F16 = 2.0**-24
EVEN_ERROR = 12**-0.5  # deviation of an error that is spread evenly over a step


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of the package.

    Name, shape and dtype as `_metadata` and the tensor cache list it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


class Scheme(ABC):
    """Storage of one matrix. Subclasses are frozen dataclasses, so that they can be compared.

    Attributes
    ----------
    group_size : neighbouring input channels that share a scale, 0 where none do
    """

    group_size: int = 0

    @property
    def takes_int8(self) -> bool:
        """Return whether kernels multiply its integers with vectors of int8."""
        return False

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in the metadata, MLC's spelling."""

    @property
    @abstractmethod
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of what it stores."""

    @abstractmethod
    def tensors(self, stem: str, suffix: str, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        """The stored tensors of a parameter (or part of one) of this shape.

        Raises
        ------
        QuantizationError
            If the scheme cannot hold the shape.
        """

    @abstractmethod
    def layout(self, cols: int, split_rows: tuple[int, ...]) -> WeightLayout:
        """The same tensors as operators read them."""

    @abstractmethod
    def store(self, rows: Float32Array, *, name: str, first_row: int) -> tuple[Array, ...]:
        """The arrays of some rows, one a tensor.

        Parameters
        ----------
        name, first_row : what errors call the matrix, and its first row

        Raises
        ------
        QuantizationError
            If a weight is not finite, or too large for the scheme.
        """

    @abstractmethod
    def load(self, arrays: Sequence[Array]) -> Float32Array:
        """The float32 rows that stored arrays stand for."""

    @property
    @abstractmethod
    def dense(self) -> Scheme:
        """The scheme of what this one does not fit: narrow matrices of the media's towers."""

    @property
    @abstractmethod
    def mean_error(self) -> float:
        """Relative error of a stored weight, in the mean."""

    @property
    @abstractmethod
    def row_bound(self) -> tuple[float, float]:
        """Largest error of a stored row: relative to its length, and of each weight on top."""

    @property
    @abstractmethod
    def thresholds(self) -> Thresholds:
        """Bounds of a model in this scheme next to its checkpoint."""


def stored_matrix(
    stem: str, suffix: str, rows: int, layout: WeightLayout
) -> tuple[StoredTensor, ...]:
    """The tensors that hold so many rows of a matrix in a layout."""
    return tuple(
        StoredTensor(f"{stem}.{name}{suffix}", shape, dtype)
        for name, shape, dtype in layout.split_shapes(rows)
    )


def refuse_rows(bad: npt.NDArray[np.bool_], name: str, first_row: int, what: str) -> None:
    """Raise QuantizationError with the first row of a matrix that has a `bad` value."""
    if bad.any():
        row = first_row + int(np.argmax(bad.reshape(bad.shape[0], -1).any(axis=1)))
        raise QuantizationError(
            f"`{name}`: row {row} {what}",
            hint="the checkpoint is damaged, or needs --quant f32",
        )
