"""The audio tower of E2B and E4B: subsampling, conformer layers, projection.

Chunks of transformers' attention are a layout there; here a row attends to the rows before it by
their distance. Convolutions and attention look back only, and no row looks ahead, so that rows
beyond a sound's end, which transformers computes and masks, need not be there at all. The residual
stream is float32 in every recipe, as are the vectors between two matmuls that no norm bounds.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.audio.mel import BANDS
from gemma4_compile.model_spec.audio.parameters import TOWER
from gemma4_compile.model_spec.config.audio import AudioConfig
from gemma4_compile.model_spec.layers.norm import NormStack, Vector
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.operators.audio_features import KERNEL, SubsampleConv, halved
from gemma4_compile.operators.base import emit
from gemma4_compile.operators.conformer import (
    BOUNDS,
    Clip,
    ClippedNorm,
    GatedConv,
    RelativeAttention,
)
from gemma4_compile.operators.rows import CHUNK

Float32Array = npt.NDArray[np.float32]

EPS = 1e-6  # of the norms to which transformers gives no other
MAX_TIMESCALE = 10_000.0


def relative_positions(config: AudioConfig) -> Float32Array:
    """Sines and cosines of every distance: (attention_context - 1, hidden_size).

    Distances before the first relative position, which only other chunks than the released models'
    have, have none.
    """
    half = config.hidden_size // 2
    rate = np.exp(np.arange(half) * -(math.log(MAX_TIMESCALE) / max(half - 1, 1)))
    position = np.arange(config.attention_context) + config.position_offset
    angle = position[:, None] * rate.astype(np.float32)
    table = np.concatenate([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)
    table[position < 0] = 0.0
    return table


class ClippedLinear(nn.Module):
    """A matmul that clips what it takes and what it gives, where the tower clips.

    Parameters
    ----------
    dtype : of the matmul's input
    """

    def __init__(
        self, prefix: str, config: AudioConfig, matrices: Matrices, dtype: str = "float32"
    ) -> None:
        self.dtype = dtype
        self.linear = matrices.matrix(f"{prefix}.linear")
        self.bounds = Vector(BOUNDS) if config.use_clipped_linears else None

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        """(rows, inputs) -> (rows, outputs) float32."""
        return self._clip(self.linear.matmul(self._clip(x, self.dtype, before=True), CHUNK))

    def _clip(self, x: nn.Tensor, dtype: str = "float32", *, before: bool = False) -> nn.Tensor:
        """The input in the matmul's dtype, or the result, within its bounds."""
        clips = self.bounds is not None
        if not clips and x.dtype == dtype:
            return x
        operator = Clip(
            int(x.shape[1]), x.dtype, dtype, after=clips and not before, before=clips and before
        )
        bounds = [] if self.bounds is None else [self.bounds.weight]
        return emit(operator, [x, *bounds], [(tuple(x.shape), dtype)])[0]


def silu(x: nn.Tensor) -> nn.Tensor:
    """``x * sigmoid(x)``, float32."""
    operator = Clip(int(x.shape[1]), "float32", "float32", silu=True)
    return emit(operator, [x], [(tuple(x.shape), "float32")])[0]


class ClampedNorm(nn.Module):
    """``x / rms(x) * w`` of x within plus and minus `limit`, in `dtype`."""

    def __init__(
        self, size: int, eps: float = EPS, dtype: str = "float32", limit: float = 0.0
    ) -> None:
        self.weight = nn.Parameter((size,), "float32")
        self.eps, self.dtype, self.limit = eps, dtype, limit

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        """(rows, size) float32 to the same in `dtype`."""
        operator = ClippedNorm(int(x.shape[1]), self.eps, self.dtype, limit=self.limit)
        return emit(operator, [x, self.weight], [(tuple(x.shape), self.dtype)])[0]


class FeedForward(nn.Module):
    """``x + factor * norm(W2 silu(W1 norm(x)))``."""

    def __init__(self, prefix: str, config: AudioConfig, matrices: Matrices, dtype: str) -> None:
        hidden, limit = config.hidden_size, config.gradient_clipping
        self.factor = config.residual_weight
        self.pre_layer_norm = ClampedNorm(hidden, dtype=dtype, limit=limit)
        self.ffw_layer_1 = ClippedLinear(f"{prefix}.ffw_layer_1", config, matrices, dtype)
        self.ffw_layer_2 = ClippedLinear(f"{prefix}.ffw_layer_2", config, matrices)
        self.post_layer_norm = ClampedNorm(hidden, limit=limit)

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        """(rows, hidden_size) float32 to the same."""
        y = self.ffw_layer_2(silu(self.ffw_layer_1(self.pre_layer_norm(x))))
        return x + self.post_layer_norm(y) * self.factor


class Attention(nn.Module):
    """Attention to the last rows, with relative positions."""

    def __init__(self, prefix: str, config: AudioConfig, matrices: Matrices, dtype: str) -> None:
        self.config = config
        self.q_proj, self.k_proj, self.v_proj = (
            ClippedLinear(f"{prefix}.{name}_proj", config, matrices, dtype) for name in "qkv"
        )
        self.post = ClippedLinear(f"{prefix}.post", config, matrices)
        self.relative_k_proj = matrices.matrix(f"{prefix}.relative_k_proj")
        self.per_dim_scale = Vector(config.head_dim)

    def __call__(self, hidden: nn.Tensor) -> nn.Tensor:
        """(rows, hidden_size) to the same in float32."""
        config, projections = self.config, (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (projection(hidden) for projection in projections)
        positions = nn.Tensor.from_const(relative_positions(config))
        operator = RelativeAttention(
            heads=config.num_attention_heads,
            head_dim=config.head_dim,
            context=config.attention_context,
            cap=config.attention_logit_cap,
        )
        relative = self.relative_k_proj.matmul(positions, CHUNK)
        args = [q, k, v, relative, self.per_dim_scale.weight]
        return self.post(emit(operator, args, [(tuple(q.shape), "float32")])[0])


class LightConv(nn.Module):
    """``x + Wend silu(norm(conv(glu(Wstart norm(x)))))``, a causal convolution by channel."""

    def __init__(self, prefix: str, config: AudioConfig, matrices: Matrices, dtype: str) -> None:
        hidden, eps, taps = config.hidden_size, config.rms_norm_eps, config.conv_kernel_size
        self.pre_layer_norm = ClampedNorm(hidden, eps, dtype)
        self.linear_start = ClippedLinear(f"{prefix}.linear_start", config, matrices, dtype)
        self.depthwise_conv1d = NormStack(hidden, taps)
        self.conv_norm = ClampedNorm(hidden, eps, limit=config.gradient_clipping)
        self.linear_end = ClippedLinear(f"{prefix}.linear_end", config, matrices, dtype)

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        """(rows, hidden_size) float32 to the same."""
        mixed = self._conv(self.linear_start(self.pre_layer_norm(x)))
        return x + self.linear_end(silu(self.conv_norm(mixed)))

    def _conv(self, pairs: nn.Tensor) -> nn.Tensor:
        weight = self.depthwise_conv1d.weight
        width, taps = map(int, weight.shape)
        spec = ((pairs.shape[0], width), "float32")
        return emit(GatedConv(width, taps), [pairs, weight], [spec])[0]


class ConformerLayer(nn.Module):
    """Half a feed-forward block, attention, convolution, the other half, a norm."""

    def __init__(self, prefix: str, config: AudioConfig, matrices: Matrices, dtype: str) -> None:
        hidden, limit = config.hidden_size, config.gradient_clipping
        self.feed_forward1 = FeedForward(f"{prefix}.feed_forward1", config, matrices, dtype)
        self.norm_pre_attn = ClampedNorm(hidden, dtype=dtype, limit=limit)
        self.self_attn = Attention(f"{prefix}.self_attn", config, matrices, dtype)
        self.norm_post_attn = ClampedNorm(hidden, limit=limit)
        self.lconv1d = LightConv(f"{prefix}.lconv1d", config, matrices, dtype)
        self.feed_forward2 = FeedForward(f"{prefix}.feed_forward2", config, matrices, dtype)
        self.norm_out = ClampedNorm(hidden, limit=limit)

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        """(rows, hidden_size) float32 to the same."""
        x = self.feed_forward1(x)
        x = x + self.norm_post_attn(self.self_attn(self.norm_pre_attn(x)))
        x = self.feed_forward2(self.lconv1d(x))
        return self.norm_out(x)


class SubsampleLayer(nn.Module):
    """A convolution that halves time and frequency, its norm, ReLU."""

    def __init__(self, frequencies: int, channels: tuple[int, int], eps: float) -> None:
        self.frequencies, self.channels, self.eps = frequencies, channels, eps
        self.conv = NormStack(channels[0] * channels[1] * KERNEL, KERNEL)
        self.norm = Vector(channels[1])

    def forward(self, x: nn.Tensor, dtype: str) -> nn.Tensor:
        """(rows, frequencies * channels) to half of both."""
        operator = SubsampleConv(self.frequencies, *self.channels, self.eps, x.dtype, dtype)
        args = [x, self.conv.weight, self.norm.weight]
        return emit(operator, args, [((halved(x.shape[0]), operator.outputs), dtype)])[0]


class Subsampling(nn.Module):
    """From a spectrum to the rows of the tower: a fourth of its frames."""

    def __init__(self, prefix: str, config: AudioConfig, matrices: Matrices, dtype: str) -> None:
        first, second = config.conv_channels
        self.dtype, eps = dtype, config.rms_norm_eps
        self.layer0 = SubsampleLayer(BANDS, (1, first), eps)
        self.layer1 = SubsampleLayer(int(halved(BANDS)), (first, second), eps)
        self.input_proj_linear = matrices.matrix(f"{prefix}.input_proj_linear")

    def forward(self, spectrum: nn.Tensor) -> nn.Tensor:
        """(frames, BANDS) -> (rows, hidden_size) float32."""
        x = self.layer1.forward(self.layer0.forward(spectrum, self.dtype), self.dtype)
        return self.input_proj_linear.matmul(x, CHUNK)


class AudioTower(nn.Module):
    """From a log-mel spectrum to normed vectors of the tower's output width."""

    def __init__(self, config: AudioConfig, matrices: Matrices, dtype: str) -> None:
        self.config, self.dtype = config, dtype
        self.subsample_conv_projection = Subsampling(
            f"{TOWER}.subsample_conv_projection", config, matrices, dtype
        )
        self.layers = nn.ModuleList(
            [
                ConformerLayer(f"{TOWER}.layers.{index}", config, matrices, dtype)
                for index in range(config.num_hidden_layers)
            ]
        )
        self.output_proj = matrices.matrix(f"{TOWER}.output_proj")
        self.output_bias = Vector(config.output_dim)

    def forward(self, spectrum: nn.Tensor) -> nn.Tensor:
        """(frames, BANDS) float32 -> (rows, output_dim) in the activation dtype."""
        x = self.subsample_conv_projection.forward(spectrum)
        for layer in self.layers:
            x = layer(x)
        x = self.output_proj.matmul(x, CHUNK) + self.output_bias.weight
        norm = ClippedNorm(int(x.shape[1]), self.config.rms_norm_eps, self.dtype, weighted=False)
        return emit(norm, [x], [(tuple(x.shape), self.dtype)])[0]
