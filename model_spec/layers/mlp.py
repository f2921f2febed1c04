"""The gated MLP."""

from __future__ import annotations

from tvm.relax.frontend import nn

from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.rows import rows_of_extent


class FeedForward(nn.Module):
    """``Wdown (gelu(Wgate h) * (Wup h))``; gate and up are one interleaved matrix.

    The product has no bound, so it stays float32 (docs/adr/0002-precision.md).

    Parameters
    ----------
    prefix : of the parameters, ``layers.0.mlp``
    """

    def __init__(self, prefix: str, matrices: Matrices) -> None:
        self.gate_up_proj = matrices.matrix(f"{prefix}.gate_up_proj")
        self.down_proj = matrices.matrix(f"{prefix}.down_proj")

    def __call__(self, hidden: nn.Tensor) -> nn.Tensor:
        """(rows, hidden_size) -> (rows, hidden_size) float32."""
        rows = rows_of_extent(hidden.shape[0])
        gated = self.gate_up_proj.matmul(hidden, rows, Epilogue.GELU_PAIRS)
        return self.down_proj.matmul(gated, rows)
