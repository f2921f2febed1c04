"""The projection of a picture's rows into the decoder."""

from __future__ import annotations

from tvm.relax.frontend import nn

from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.vision.parameters import EMBED


class Projection(nn.Module):
    """The linear layer behind the embedder's weightless norm."""

    def __init__(self, matrices: Matrices) -> None:
        self.embedding_projection = matrices.matrix(f"{EMBED}.embedding_projection")

    def forward(self, normed: nn.Tensor) -> nn.Tensor:
        """(blocks, width) -> (blocks, hidden_size of the decoder) float32."""
        return self.embedding_projection.bounded(normed, None)
