"""The patch projection of 12B, which has no tower.

LayerNorm, dense, LayerNorm, positions, LayerNorm, then the norm and projection of any embedder.
"""

from __future__ import annotations

from tvm.relax.frontend import nn

from gemma4_compile.model_spec.config.vision import CHANNELS, UnifiedVisionConfig
from gemma4_compile.model_spec.layers.norm import NormStack
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.vision.parameters import EMBEDDER
from gemma4_compile.model_spec.vision.projection import Projection
from gemma4_compile.operators.base import emit
from gemma4_compile.operators.vision_unified import VECTORS, PixelNorm


class PatchProjection(nn.Module):
    """Two projections' worth of norms around one dense layer, whose bias the second norm adds."""

    def __init__(self, config: UnifiedVisionConfig, matrices: Matrices, dtype: str) -> None:
        self.config, self.dtype = config, dtype
        self.pixel_vectors = NormStack(2, config.block_size**2 * CHANNELS)
        self.patch_dense = matrices.matrix(f"{EMBEDDER}.patch_dense")
        self.position_vectors = NormStack(VECTORS, config.embed_dim)
        self.pos_embedding = matrices.matrix(f"{EMBEDDER}.pos_embedding")

    def forward(self, pixels: nn.Tensor, positions: nn.Tensor) -> nn.Tensor:
        """A normed row for each block: (blocks, embed_dim) activation dtype."""
        norm = PixelNorm(int(pixels.shape[1]), self.dtype)
        args = [pixels, self.pixel_vectors.weight]
        (normed,) = emit(norm, args, [(tuple(pixels.shape), self.dtype)])
        x = self.patch_dense.bounded(normed, None)
        vectors, eps = self.position_vectors.weight, self.config.rms_norm_eps
        return self.pos_embedding.position_norms(x, positions, vectors, eps, self.dtype)


class UnifiedEmbedder(nn.Module):
    """The patch projection and that into the decoder. `embed` is the exported function."""

    def __init__(self, config: UnifiedVisionConfig, matrices: Matrices, dtype: str) -> None:
        self.vision_embedder = PatchProjection(config, matrices, dtype)
        self.embed_vision = Projection(matrices)

    def embed(self, pixels: nn.Tensor, positions: nn.Tensor) -> nn.Tensor:
        """Rows that stand for a picture: (blocks, hidden_size of the decoder) float32."""
        return self.embed_vision.forward(self.vision_embedder.forward(pixels, positions))
