"""RMSNorm: its weights, alone and with the residual addition before it."""

from __future__ import annotations

from tvm.relax.frontend import nn

from gemma4_compile.operators.base import TensorSpec, emit
from gemma4_compile.operators.norms import ResidualNorm, RmsNorm, TakeLastRow
from gemma4_compile.operators.rows import Rows


class Vector(nn.Module):
    """A norm weight or a layer scalar: (size,) float32."""

    def __init__(self, size: int) -> None:
        self.weight = nn.Parameter((size,), "float32")


class NormStack(nn.Module):
    """Norm weights that a kernel reads together: (count, size) float32."""

    def __init__(self, count: int, size: int) -> None:
        self.weight = nn.Parameter((count, size), "float32")


def rms_norm(x: nn.Tensor, norm: Vector, rows: Rows, eps: float, dtype: str) -> nn.Tensor:
    """``norm(x)``: (rows, width) float32 -> (rows, width) dtype."""
    operator = RmsNorm(rows, int(x.shape[1]), eps, dtype)
    return emit(operator, [x, norm.weight], [(tuple(x.shape), dtype)])[0]


def add_normed(
    residual: nn.Tensor, branch: nn.Tensor, norm: Vector, rows: Rows, eps: float
) -> nn.Tensor:
    """``residual + norm(branch)``: (rows, width) float32."""
    operator = ResidualNorm(rows, int(residual.shape[1]), eps, False, None)
    args = [branch, residual, norm.weight]
    return emit(operator, args, [(tuple(residual.shape), "float32")])[0]


def add_normed_and_norm(
    residual: nn.Tensor,
    branch: nn.Tensor,
    norm: Vector,
    next_norm: Vector,
    rows: Rows,
    eps: float,
    dtype: str,
    scalar: Vector | None = None,
) -> tuple[nn.Tensor, nn.Tensor]:
    """``r' = (residual + norm(branch)) * scalar`` and ``next_norm(r')``.

    Returns
    -------
    tuple[nn.Tensor, nn.Tensor]
        r' (rows, width) float32, and its norm in `dtype`.
    """
    shape = tuple(residual.shape)
    operator = ResidualNorm(rows, int(shape[1]), eps, scalar is not None, dtype)
    scale = [] if scalar is None else [scalar.weight]
    args = [branch, residual, norm.weight, *scale, next_norm.weight]
    specs: list[TensorSpec] = [(shape, "float32"), (shape, dtype)]
    new_residual, hidden = emit(operator, args, specs)
    return new_residual, hidden


def take_last_row(x: nn.Tensor) -> nn.Tensor:
    """The last position of a chunk: (n, width) -> (1, width)."""
    width = int(x.shape[1])
    return emit(TakeLastRow(width, x.dtype), [x], [((1, width), x.dtype)])[0]
