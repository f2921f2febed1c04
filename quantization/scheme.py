"""Storage schemes of matrices.

Dense, or as integers in groups of input channels with one scale per group.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from gemma4_compile.errors import QuantizationError

DTYPE_BYTES = {"float16": 2, "float32": 4, "uint32": 4}


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


@dataclass(frozen=True)
class DenseScheme:
    """Plain values of one dtype, ``(rows, cols)``."""

    dtype: str

    @property
    def name(self) -> str:
        """Name in the metadata, MLC's spelling."""
        return {"float16": "q0f16", "float32": "q0f32"}[self.dtype]

    def tensors(self, stem: str, suffix: str, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        """The stored tensors of a parameter (or part of one) of this shape."""
        return (StoredTensor(f"{stem}.weight{suffix}", shape, self.dtype),)


@dataclass(frozen=True)
class GroupScheme:
    """Symmetric integers of `bits` bits, `group_size` input channels to a scale.

    ``value = (q - zero_point) * scale`` with ``zero_point = 2**(bits - 1) - 1`` and ``scale =
    max|w| / zero_point``. ``q_weight`` is ``(rows, cols * bits / 32)`` uint32, the lowest channel
    in the lowest bits; ``q_scale`` is ``(rows, cols / group_size)`` in `scale_dtype`. With 4 bits
    and float16 this is MLC-LLM's `q4f16_1`.
    """

    bits: int
    scale_dtype: str
    group_size: int = 32

    @property
    def name(self) -> str:
        """Name in the metadata, MLC's spelling."""
        return f"q{self.bits}{'f16' if self.scale_dtype == 'float16' else 'f32'}_1"

    @property
    def zero_point(self) -> int:
        """The stored integer that means 0."""
        return int(2 ** (self.bits - 1)) - 1

    @property
    def values_per_word(self) -> int:
        """Weights in one 32-bit word."""
        return 32 // self.bits

    def tensors(self, stem: str, suffix: str, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        """The stored tensors of a matrix (or part of one) of this shape.

        Raises
        ------
        QuantizationError
            If the shape is no matrix, or group_size does not divide its columns.
        """
        if len(shape) != 2 or shape[1] % self.group_size:
            raise QuantizationError(
                f"`{stem}` of shape {shape} cannot be stored as {self.name}: groups of "
                f"{self.group_size} must divide the number of columns",
                hint="use --quant f16 or f32",
            )
        rows, cols = shape
        return (
            StoredTensor(
                f"{stem}.q_weight{suffix}", (rows, cols // self.values_per_word), "uint32"
            ),
            StoredTensor(
                f"{stem}.q_scale{suffix}", (rows, cols // self.group_size), self.scale_dtype
            ),
        )


Scheme = DenseScheme | GroupScheme
