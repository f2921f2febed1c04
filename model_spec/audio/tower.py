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
    AddClipped,
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
    """A matmul whose input and result may be clipped, which its neighbours do."""

    def __init__(self, prefix: str, config: AudioConfig, matrices: Matrices) -> None:
        self.linear = matrices.matrix(f"{prefix}.linear")
        self.bounds = Vector(BOUNDS) if config.use_clipped_linears else None

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """(rows, inputs) -> (rows, outputs) float32."""
        return self.linear.matmul(x, CHUNK)


def _bounds(*linears: ClippedLinear | None) -> list[nn.Tensor]:
    return [one.bounds.weight for one in linears if one is not None and one.bounds is not None]


def clip(
    x: nn.Tensor,
    dtype: str,
    after: ClippedLinear | None = None,
    before: ClippedLinear | None = None,
    *,
    silu: bool = False,
) -> nn.Tensor:
    """``bound(silu(bound(x)))`` in `dtype`, with the bounds of the neighbouring matmuls."""
    has_after, has_before = bool(_bounds(after)), bool(_bounds(before))
    if not (has_after or has_before or silu) and x.dtype == dtype:
        return x
    operator = Clip(int(x.shape[1]), x.dtype, dtype, has_after, silu, has_before)
    return emit(operator, [x, *_bounds(after, before)], [(tuple(x.shape), dtype)])[0]


def norm(
    x: nn.Tensor,
    dtype: str,
    weight: Vector | None = None,
    *,
    eps: float = EPS,
    bias: nn.Tensor | None = None,
    after: ClippedLinear | None = None,
    before: ClippedLinear | None = None,
    silu: bool = False,
    limit: float = 0.0,
    residual: nn.Tensor | None = None,
    factor: float = 1.0,
) -> nn.Tensor:
    """``residual + factor * bound(silu(norm(clamp(bound(x) + bias))))``: see `ClippedNorm`."""
    operator = ClippedNorm(
        width=int(x.shape[1]),
        eps=eps,
        out_dtype=dtype,
        weighted=weight is not None,
        biased=bias is not None,
        after=bool(_bounds(after)),
        before=bool(_bounds(before)),
        silu=silu,
        limit=limit,
        factor=0.0 if residual is None else factor,
    )
    args = [
        x,
        *([] if bias is None else [bias]),
        *_bounds(after),
        *([] if weight is None else [weight.weight]),
        *_bounds(before),
        *([] if residual is None or not factor else [residual]),
    ]
    return emit(operator, args, [(tuple(x.shape), dtype)])[0]


class FeedForward(nn.Module):
    """``x + factor * norm(W2 silu(W1 norm(x)))``."""

    def __init__(self, prefix: str, config: AudioConfig, matrices: Matrices, dtype: str) -> None:
        self.config, self.dtype = config, dtype
        self.pre_layer_norm = Vector(config.hidden_size)
        self.ffw_layer_1 = ClippedLinear(f"{prefix}.ffw_layer_1", config, matrices)
        self.ffw_layer_2 = ClippedLinear(f"{prefix}.ffw_layer_2", config, matrices)
        self.post_layer_norm = Vector(config.hidden_size)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """(rows, hidden_size) float32 to the same."""
        first, second, limit = self.ffw_layer_1, self.ffw_layer_2, self.config.gradient_clipping
        hidden = norm(x, self.dtype, self.pre_layer_norm, limit=limit, before=first)
        inner = clip(first.forward(hidden), "float32", first, second, silu=True)
        return norm(
            second.forward(inner),
            "float32",
            self.post_layer_norm,
            after=second,
            limit=limit,
            residual=x,
            factor=self.config.residual_weight,
        )


class Attention(nn.Module):
    """Attention to the last rows, with relative positions."""

    def __init__(self, prefix: str, config: AudioConfig, matrices: Matrices) -> None:
        self.config = config
        self.q_proj, self.k_proj, self.v_proj, self.post = (
            ClippedLinear(f"{prefix}.{name}", config, matrices)
            for name in ("q_proj", "k_proj", "v_proj", "post")
        )
        self.relative_k_proj = matrices.matrix(f"{prefix}.relative_k_proj")
        self.per_dim_scale = Vector(config.head_dim)

    def forward(self, hidden: nn.Tensor) -> nn.Tensor:
        """(rows, hidden_size) to the same in float32, without the bounds of `post`'s result."""
        config, projections = self.config, (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (one.forward(clip(hidden, hidden.dtype, before=one)) for one in projections)
        positions = nn.Tensor.from_const(relative_positions(config))
        operator = RelativeAttention(
            heads=config.num_attention_heads,
            head_dim=config.head_dim,
            context=config.attention_context,
            cap=config.attention_logit_cap,
            clips=config.use_clipped_linears,
        )
        relative = self.relative_k_proj.matmul(positions, CHUNK)
        args = [q, k, v, relative, self.per_dim_scale.weight, *_bounds(*projections, self.post)]
        return self.post.forward(emit(operator, args, [(tuple(q.shape), "float32")])[0])


class LightConv(nn.Module):
    """``x + Wend silu(norm(conv(glu(Wstart norm(x)))))``, a causal convolution by channel."""

    def __init__(self, prefix: str, config: AudioConfig, matrices: Matrices, dtype: str) -> None:
        self.config, self.dtype = config, dtype
        self.pre_layer_norm = Vector(config.hidden_size)
        self.linear_start = ClippedLinear(f"{prefix}.linear_start", config, matrices)
        self.depthwise_conv1d = NormStack(config.hidden_size, config.conv_kernel_size)
        self.conv_norm = Vector(config.hidden_size)
        self.linear_end = ClippedLinear(f"{prefix}.linear_end", config, matrices)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """(rows, hidden_size) float32 to the same."""
        config, start, end = self.config, self.linear_start, self.linear_end
        eps, clips = config.rms_norm_eps, config.use_clipped_linears
        shape = tuple(x.shape)
        pairs = start.forward(norm(x, self.dtype, self.pre_layer_norm, eps=eps, before=start))
        operator = GatedConv(config.hidden_size, config.conv_kernel_size, clips)
        args = [pairs, self.depthwise_conv1d.weight, *_bounds(start)]
        (mixed,) = emit(operator, args, [(shape, "float32")])
        hidden = norm(
            mixed,
            self.dtype,
            self.conv_norm,
            eps=eps,
            limit=config.gradient_clipping,
            silu=True,
            before=end,
        )
        add = AddClipped(config.hidden_size, clips)
        return emit(add, [end.forward(hidden), x, *_bounds(end)], [(shape, "float32")])[0]


class ConformerLayer(nn.Module):
    """Half a feed-forward block, attention, convolution, the other half, a norm."""

    def __init__(self, prefix: str, config: AudioConfig, matrices: Matrices, dtype: str) -> None:
        hidden = config.hidden_size
        self.config, self.dtype = config, dtype
        self.feed_forward1 = FeedForward(f"{prefix}.feed_forward1", config, matrices, dtype)
        self.norm_pre_attn = Vector(hidden)
        self.self_attn = Attention(f"{prefix}.self_attn", config, matrices)
        self.norm_post_attn = Vector(hidden)
        self.lconv1d = LightConv(f"{prefix}.lconv1d", config, matrices, dtype)
        self.feed_forward2 = FeedForward(f"{prefix}.feed_forward2", config, matrices, dtype)
        self.norm_out = Vector(hidden)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """(rows, hidden_size) float32 to the same."""
        limit = self.config.gradient_clipping
        x = self.feed_forward1.forward(x)
        hidden = norm(x, self.dtype, self.norm_pre_attn, limit=limit)
        x = norm(
            self.self_attn.forward(hidden),
            "float32",
            self.norm_post_attn,
            after=self.self_attn.post,
            limit=limit,
            residual=x,
        )
        x = self.lconv1d.forward(x)
        x = self.feed_forward2.forward(x)
        return norm(x, "float32", self.norm_out, limit=limit)


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
            x = layer.forward(x)
        x = self.output_proj.matmul(x, CHUNK)
        bias, eps = self.output_bias.weight, self.config.rms_norm_eps
        return norm(x, self.dtype, bias=bias, eps=eps)
