"""The sound input in NumPy float32: the meaning that tests compare with.

Written for reading: from samples to rows of the decoder as transformers 5.24.0 does it, padding and
masks included (`models/gemma4/feature_extraction_gemma4.py`, `modeling_gemma4.py`), so it shares
nothing with the compiled form, which leaves them out. Axes: S and T rows of the tower, H head, D
channel of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gemma4_compile.model_spec.config.audio import AudioConfig, UnifiedAudioConfig
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.reference import linear, rms_norm

Float32Array = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Weights = Mapping[str, Float32Array]

FRAME, HOP, TRANSFORM, BANDS, RATE = 320, 160, 512, 128, 16_000
PADDING = 128  # transformers pads a sound to a multiple of so many samples
NORM_EPS = 1e-6
MASKED = np.float32(-1e9)


def mel_filters() -> npt.NDArray[np.float64]:
    """Triangular filters on HTK's scale: (TRANSFORM / 2 + 1, BANDS)."""
    highest = 2595.0 * np.log10(1.0 + (RATE / 2) / 700.0)
    edges = 700.0 * (10.0 ** (np.linspace(0.0, highest, BANDS + 2) / 2595.0) - 1.0)
    slopes = edges - np.linspace(0.0, RATE / 2, TRANSFORM // 2 + 1)[:, None]
    width = np.diff(edges)
    return np.asarray(
        np.maximum(0.0, np.minimum(-slopes[:, :-2] / width[:-1], slopes[:, 2:] / width[1:]))
    )


def log_mel(samples: Float32Array) -> tuple[Float32Array, Mask]:
    """Spectrum (frames, BANDS) and mask of a sound that is padded; masked frames are zero."""
    padded = np.pad(samples, (FRAME // 2, -len(samples) % PADDING)).astype(np.float64)
    frames = max(0, (len(padded) - FRAME - 1) // HOP + 1)
    window = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(FRAME) / FRAME)
    cut = np.stack([padded[HOP * i : HOP * i + FRAME] for i in range(frames)])
    magnitude = np.abs(np.fft.rfft(cut * window, n=TRANSFORM))
    spectrum = np.log(magnitude @ mel_filters() + 1e-3)
    ends = np.arange(frames) * HOP + FRAME - FRAME // 2  # the sample behind a frame
    mask = ends < len(samples)
    return (spectrum * mask[:, None]).astype(np.float32), mask


def subsample(
    config: AudioConfig, weights: Weights, x: Float32Array, mask: Mask
) -> tuple[Float32Array, Mask]:
    """Two convolutions, each over an input whose masked times are zero: (S, hidden_size)."""
    prefix, image = "model.audio_tower.subsample_conv_projection.", x[:, :, None]
    for layer in range(2):
        image = image * mask[:, None, None]
        kernel = weights[f"{prefix}layer{layer}.conv.weight"]
        padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
        times, bands = (image.shape[0] + 1) // 2, (image.shape[1] + 1) // 2
        sums = np.zeros((times, bands, len(kernel)), np.float32)
        for u in range(3):
            for v in range(3):
                part = padded[u : u + 2 * times - 1 : 2, v : v + 2 * bands - 1 : 2]
                sums += part @ kernel[:, :, u, v].T
        centred = sums - sums.mean(axis=-1, keepdims=True)
        deviation = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + config.rms_norm_eps)
        image = np.maximum(centred / deviation * weights[f"{prefix}layer{layer}.norm.weight"], 0)
        mask = mask[::2]
    flat = image.reshape(len(image), -1)
    return linear(flat, weights[f"{prefix}input_proj_linear.weight"]), mask


def clipped_linear(weights: Weights, name: str, x: Float32Array) -> Float32Array:
    """``bound(W bound(x))``, with bounds where the checkpoint has them."""

    def bound(values: Float32Array, side: str) -> Float32Array:
        low, high = weights.get(f"{name}.{side}_min"), weights.get(f"{name}.{side}_max")
        return values if low is None or high is None else np.clip(values, low, high)

    return bound(linear(bound(x, "input"), weights[f"{name}.linear.weight"]), "output")


def sigmoid(x: Float32Array) -> Float32Array:
    """``1 / (1 + exp(-x))``."""
    return np.asarray(np.float32(0.5) * (np.tanh(np.float32(0.5) * x) + np.float32(1.0)))


def feed_forward(
    config: AudioConfig, weights: Weights, prefix: str, x: Float32Array
) -> Float32Array:
    """Half a feed-forward block, with its residual."""
    limit = np.float32(config.gradient_clipping)
    pre, post = (weights[f"{prefix}.{name}_layer_norm.weight"] for name in ("pre", "post"))
    inner = rms_norm(np.clip(x, -limit, limit), pre, NORM_EPS)
    inner = clipped_linear(weights, f"{prefix}.ffw_layer_1", inner)
    inner = clipped_linear(weights, f"{prefix}.ffw_layer_2", inner * sigmoid(inner))
    normed = rms_norm(np.clip(inner, -limit, limit), post, NORM_EPS)
    return x + normed * np.float32(config.residual_weight)


def attention(
    config: AudioConfig, weights: Weights, prefix: str, x: Float32Array, mask: Mask
) -> Float32Array:
    """Attention of each row to the rows before it that its context and the mask hold."""
    heads, dim = config.num_attention_heads, config.head_dim
    query, key, value = (
        clipped_linear(weights, f"{prefix}.{name}_proj", x).reshape(len(x), heads, dim)
        for name in ("q", "k", "v")
    )
    scale = np.log1p(np.exp(weights[f"{prefix}.per_dim_scale"])) * dim**-0.5 / math.log(2.0)
    query = query * scale.astype(np.float32)
    key = key * np.float32(math.log(1.0 + math.e) / math.log(2.0))
    distance = np.arange(len(x))[:, None] - np.arange(len(x))
    seen = (distance >= 0) & (distance < config.attention_context) & mask
    half = config.hidden_size // 2
    rates = np.exp(np.arange(half) * (-math.log(10_000.0) / max(half - 1, 1)))
    position = np.arange(config.attention_context) + config.position_offset
    angle = position[:, None] * rates
    table = np.concatenate([np.sin(angle), np.cos(angle)], axis=1) * (position >= 0)[:, None]
    relative = linear(table.astype(np.float32), weights[f"{prefix}.relative_k_proj.weight"])
    relative = relative.reshape(-1, heads, dim)
    by_distance = np.einsum("shd,rhd->hsr", query, relative)
    nearest = np.clip(distance, 0, config.attention_context - 1)
    scores = np.einsum("shd,thd->hst", query, key)
    scores = scores + np.take_along_axis(by_distance, nearest[None], axis=2)
    cap = np.float32(config.attention_logit_cap)
    scores = np.where(seen, np.tanh(scores / cap) * cap, MASKED)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    mixed = np.einsum("hst,thd->shd", shares, value).reshape(len(x), -1)
    return clipped_linear(weights, f"{prefix}.post", mixed)


def light_conv(config: AudioConfig, weights: Weights, prefix: str, x: Float32Array) -> Float32Array:
    """Gated linear unit, causal convolution by channel, SiLU, with its residual."""
    eps, limit = config.rms_norm_eps, np.float32(config.gradient_clipping)
    inner = rms_norm(x, weights[f"{prefix}.pre_layer_norm.weight"], eps)
    first, second = np.split(clipped_linear(weights, f"{prefix}.linear_start", inner), 2, axis=-1)
    taps = weights[f"{prefix}.depthwise_conv1d.weight"][:, 0]
    padded = np.pad(first * sigmoid(second), ((taps.shape[1] - 1, 0), (0, 0)))
    mixed = np.zeros_like(x)
    for tap in range(taps.shape[1]):
        mixed += padded[tap : tap + len(x)] * taps[:, tap]
    normed = rms_norm(np.clip(mixed, -limit, limit), weights[f"{prefix}.conv_norm.weight"], eps)
    return x + clipped_linear(weights, f"{prefix}.linear_end", normed * sigmoid(normed))


def tower(
    config: AudioConfig, weights: Weights, spectrum: Float32Array, mask: Mask
) -> tuple[Float32Array, Mask]:
    """Rows (S, output_dim) of a padded spectrum, and which of them are of the sound."""
    x, mask = subsample(config, weights, spectrum, mask)
    limit = np.float32(config.gradient_clipping)
    for layer in range(config.num_hidden_layers):
        prefix = f"model.audio_tower.layers.{layer}"
        before, after, out = (
            weights[f"{prefix}.norm_{name}.weight"] for name in ("pre_attn", "post_attn", "out")
        )
        x = feed_forward(config, weights, f"{prefix}.feed_forward1", x)
        inner = rms_norm(np.clip(x, -limit, limit), before, NORM_EPS)
        inner = attention(config, weights, f"{prefix}.self_attn", inner, mask)
        x = x + rms_norm(np.clip(inner, -limit, limit), after, NORM_EPS)
        x = light_conv(config, weights, f"{prefix}.lconv1d", x)
        x = feed_forward(config, weights, f"{prefix}.feed_forward2", x)
        x = rms_norm(np.clip(x, -limit, limit), out, NORM_EPS)
    name = "model.audio_tower.output_proj"
    return linear(x, weights[f"{name}.weight"]) + weights[f"{name}.bias"], mask


def embed_audio(config: Gemma4Config, weights: Weights, samples: Float32Array) -> Float32Array:
    """Rows of the decoder (rows, hidden_size) for one sound.

    Parameters
    ----------
    weights : float32 by checkpoint name
    samples : (count,), 16 kHz
    """
    audio = config.audio
    assert audio is not None, "a config with sound input"
    if isinstance(audio, UnifiedAudioConfig):
        rows = np.pad(samples, (0, -len(samples) % audio.frame_size)).reshape(-1, audio.frame_size)
    else:
        x, mask = tower(audio, weights, *log_mel(samples))
        rows = x[mask]
    projection = weights["model.embed_audio.embedding_projection.weight"]
    return linear(rms_norm(rows, None, audio.rms_norm_eps), projection)
