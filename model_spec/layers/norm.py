"""RMSNorm, and weights of one dimension.

Norms and additions are plain here; `passes/fuse_residual_norm.py` puts them together.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.relax.frontend import nn

from gemma4_compile.operators.base import emit
from gemma4_compile.operators.norms import RmsNorm, TakeLastRow
from gemma4_compile.operators.rows import rows_of_extent


class Vector(nn.Module):
    """A weight that a kernel reads, or a layer scalar: (size,) float32."""

    def __init__(self, size: int) -> None:
        self.weight = nn.Parameter((size,), "float32")


class Norm(nn.Module):
    """``x / rms(x) * w``, in `dtype`.

    Parameters
    ----------
    dtype : that of activations before a matmul, which the norm bounds; float32 before an addition
    """

    def __init__(self, size: int, eps: float, dtype: str = "float32") -> None:
        self.weight = nn.Parameter((size,), "float32")
        self.eps, self.dtype = eps, dtype

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        """(rows, size) float32 to the same in `dtype`."""
        return rms_norm(x, self.weight, self.eps, self.dtype)


class NormStack(nn.Module):
    """Norm weights that a kernel reads together: (count, size) float32."""

    def __init__(self, count: int, size: int) -> None:
        self.weight = nn.Parameter((count, size), "float32")


@dataclass(frozen=True)
class StackedNorm:
    """`Norm` whose weight is a row of a `NormStack`."""

    stack: NormStack
    row: int
    eps: float
    dtype: str = "float32"

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        """(rows, size) float32 to the same in `dtype`."""
        index = nn.Tensor.from_scalar(self.row, "int32")
        return rms_norm(x, nn.op.take(self.stack.weight, index, axis=0), self.eps, self.dtype)


def rms_norm(x: nn.Tensor, weight: nn.Tensor, eps: float, dtype: str) -> nn.Tensor:
    """``x / rms(x) * weight``: (rows, width) float32 -> (rows, width) dtype."""
    operator = RmsNorm(rows_of_extent(x.shape[0]), int(x.shape[1]), eps, dtype)
    return emit(operator, [x, weight], [(tuple(x.shape), dtype)])[0]


def take_last_row(x: nn.Tensor) -> nn.Tensor:
    """The last position of a chunk: (n, width) -> (1, width)."""
    width = int(x.shape[1])
    return emit(TakeLastRow(width, x.dtype), [x], [((1, width), x.dtype)])[0]


def rows_like(x: nn.Tensor, other: nn.Tensor) -> nn.Tensor:
    """x, or its last position where `other` has no more."""
    return take_last_row(x) if x.shape[0] != 1 and other.shape[0] == 1 else x
