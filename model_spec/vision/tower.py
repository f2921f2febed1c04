"""The vision tower of E2B, E4B, 26B-A4B and 31B as Relax modules.

What differs from the decoder: every patch sees every other; RoPE in two dimensions; linear layers
that clip what they take and what they give (E2B, E4B); position embeddings besides RoPE. The
residual stream is float32 in every recipe; what a norm or the attention bounds is in the recipe's
activation dtype, and so is the gated product, held within its range.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.relax.frontend import nn

from gemma4_compile.model_spec.config.vision import CHANNELS, VisionConfig
from gemma4_compile.model_spec.layers.norm import (
    Norm,
    NormStack,
    Vector,
)
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.vision.parameters import TOWER
from gemma4_compile.model_spec.vision.projection import Projection
from gemma4_compile.operators.base import emit
from gemma4_compile.operators.bounded_linear import CLIPS
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.vision import PatchRotary, PixelPatches, PoolPatches
from gemma4_compile.operators.vision_attention import PatchAttention, PatchQkNormRope


@dataclass(frozen=True)
class Picture:
    """The cells of a picture's blocks, and the cosines and sines of its patches."""

    positions: nn.Tensor
    rotary: nn.Tensor


class ClippedLinear(nn.Module):
    """A linear layer and, where the tower clips, its bounds."""

    def __init__(self, name: str, config: VisionConfig, matrices: Matrices) -> None:
        self.linear = matrices.matrix(f"{name}.linear")
        if config.use_clipped_linears:
            self.bounds = Vector(CLIPS)

    def forward(
        self,
        x: nn.Tensor,
        epilogue: Epilogue = Epilogue.NONE,
        *,
        partner: nn.Tensor | None = None,
        out_dtype: str = "float32",
    ) -> nn.Tensor:
        """(rows, columns of the layer) -> (rows, rows of the layer) in `out_dtype`."""
        bounds = self.bounds.weight if hasattr(self, "bounds") else None
        return self.linear.bounded(x, bounds, epilogue, partner=partner, out_dtype=out_dtype)


class PatchAttentionLayer(nn.Module):
    """Attention of a picture's patches to each other."""

    def __init__(self, prefix: str, config: VisionConfig, matrices: Matrices, dtype: str) -> None:
        self.config, self.dtype = config, dtype
        self.q_proj, self.k_proj, self.v_proj = (
            ClippedLinear(f"{prefix}.{name}_proj", config, matrices) for name in "qkv"
        )
        self.q_norm, self.k_norm = Vector(config.head_dim), Vector(config.head_dim)
        self.o_proj = ClippedLinear(f"{prefix}.o_proj", config, matrices)

    def __call__(self, hidden: nn.Tensor, picture: Picture) -> nn.Tensor:
        """(patches, hidden_size) -> (patches, hidden_size) float32."""
        config, rows, dtype = self.config, hidden.shape[0], self.dtype
        heads, dim = config.num_attention_heads, config.head_dim
        projected = [proj.forward(hidden) for proj in (self.q_proj, self.k_proj, self.v_proj)]
        prepare = PatchQkNormRope(heads, dim, config.rms_norm_eps, dtype)
        args = [*projected, self.q_norm.weight, self.k_norm.weight, picture.rotary]
        shape, flat = (rows, heads, dim), (rows, heads * dim)
        q, k, v = emit(prepare, args, [(flat, "float32"), (shape, dtype), (shape, dtype)])
        attend = PatchAttention(heads, dim, config.pooling_kernel_size, dtype, dtype)
        (attended,) = emit(attend, [picture.positions, q, k, v], [(flat, dtype)])
        return self.o_proj.forward(attended)


class PatchFeedForward(nn.Module):
    """``Wdown (gelu(Wgate h) * (Wup h))``; with clips gate and up have bounds of their own."""

    def __init__(self, prefix: str, config: VisionConfig, matrices: Matrices, dtype: str) -> None:
        self.clipped, self.dtype = config.use_clipped_linears, dtype
        if self.clipped:
            self.up_proj = ClippedLinear(f"{prefix}.up_proj", config, matrices)
            self.gate_proj = ClippedLinear(f"{prefix}.gate_proj", config, matrices)
        else:
            self.gate_up_proj = matrices.matrix(f"{prefix}.gate_up_proj")
        self.down_proj = ClippedLinear(f"{prefix}.down_proj", config, matrices)

    def __call__(self, hidden: nn.Tensor) -> nn.Tensor:
        """(patches, hidden_size) -> (patches, hidden_size) float32."""
        return self.down_proj.forward(self._gated(hidden))

    def _gated(self, hidden: nn.Tensor) -> nn.Tensor:
        if not self.clipped:
            pairs = Epilogue.GELU_PAIRS
            return self.gate_up_proj.bounded(hidden, None, pairs, out_dtype=self.dtype)
        up = self.up_proj.forward(hidden)
        gate = Epilogue.GELU_GATE
        return self.gate_proj.forward(hidden, gate, partner=up, out_dtype=self.dtype)


class EncoderLayer(nn.Module):
    """Attention and MLP, each between two norms."""

    def __init__(self, prefix: str, config: VisionConfig, matrices: Matrices, dtype: str) -> None:
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = Norm(hidden, eps, dtype)
        self.post_attention_layernorm = Norm(hidden, eps)
        self.pre_feedforward_layernorm = Norm(hidden, eps, dtype)
        self.post_feedforward_layernorm = Norm(hidden, eps)
        self.self_attn = PatchAttentionLayer(f"{prefix}.self_attn", config, matrices, dtype)
        self.mlp = PatchFeedForward(f"{prefix}.mlp", config, matrices, dtype)

    def __call__(self, x: nn.Tensor, picture: Picture) -> nn.Tensor:
        """The residual stream (patches, hidden_size) float32 after the layer."""
        h = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), picture))
        return h + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(h)))


class PatchEmbedder(nn.Module):
    """Patches of the pixels, projected, with their positions added."""

    def __init__(self, prefix: str, config: VisionConfig, matrices: Matrices, dtype: str) -> None:
        self.config, self.dtype = config, dtype
        self.input_proj = matrices.matrix(f"{prefix}.input_proj")
        self.position_embedding_table = matrices.matrix(f"{prefix}.position_embedding_table")

    def forward(self, pixels: nn.Tensor, positions: nn.Tensor) -> nn.Tensor:
        """(blocks, pixels of a block) -> (patches, hidden_size) float32."""
        pooling, patch = self.config.pooling_kernel_size, self.config.patch_size
        shape = (pixels.shape[0] * pooling**2, patch**2 * CHANNELS)
        cut = PixelPatches(patch, pooling, self.dtype)
        (patches,) = emit(cut, [pixels], [(shape, self.dtype)])
        x = self.input_proj.bounded(patches, None)
        return self.position_embedding_table.add_positions(x, positions, pooling)


class Encoder(nn.Module):
    """The layers."""

    def __init__(self, prefix: str, config: VisionConfig, matrices: Matrices, dtype: str) -> None:
        names = [f"{prefix}.layers.{index}" for index in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList([EncoderLayer(n, config, matrices, dtype) for n in names])

    def __call__(self, x: nn.Tensor, picture: Picture) -> nn.Tensor:
        """(patches, hidden_size) -> (patches, hidden_size) float32."""
        for layer in self.layers:
            x = layer(x, picture)
        return x


class VisionTower(nn.Module):
    """Patch embedder, layers and pooling."""

    def __init__(self, config: VisionConfig, matrices: Matrices, dtype: str) -> None:
        self.config, self.dtype = config, dtype
        self.patch_embedder = PatchEmbedder(f"{TOWER}.patch_embedder", config, matrices, dtype)
        self.encoder = Encoder(f"{TOWER}.encoder", config, matrices, dtype)
        if config.standardize:
            self.standardize = NormStack(2, config.hidden_size)

    def forward(self, pixels: nn.Tensor, positions: nn.Tensor) -> nn.Tensor:
        """A normed row for each block: (blocks, hidden_size) activation dtype."""
        config, blocks = self.config, pixels.shape[0]
        pooling, dim, width = config.pooling_kernel_size, config.head_dim, config.hidden_size
        rotary = PatchRotary(dim, config.rope_theta, pooling)
        spec = ((blocks * pooling**2, dim // 2, 2), "float32")
        picture = Picture(positions, emit(rotary, [positions], [spec])[0])
        x = self.encoder(self.patch_embedder.forward(pixels, positions), picture)
        pool = PoolPatches(width, pooling, config.rms_norm_eps, config.standardize, self.dtype)
        vectors = [self.standardize.weight] if config.standardize else []
        return emit(pool, [positions, x, *vectors], [((blocks, width), self.dtype)])[0]


class TowerEmbedder(nn.Module):
    """The tower and the projection into the decoder. `embed` is the exported function."""

    def __init__(self, config: VisionConfig, matrices: Matrices, dtype: str) -> None:
        self.vision_tower = VisionTower(config, matrices, dtype)
        self.embed_vision = Projection(matrices)

    def embed(self, pixels: nn.Tensor, positions: nn.Tensor) -> nn.Tensor:
        """Rows that stand for a picture: (blocks, hidden_size of the decoder) float32."""
        return self.embed_vision.forward(self.vision_tower.forward(pixels, positions))
