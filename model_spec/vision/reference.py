"""A picture's part in NumPy float32, as plain as it can be said: what the library is held against.

Patches are row-major over the whole picture here, so nothing is shared with the library's order.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.config.vision import UnifiedVisionConfig, VisionConfig
from gemma4_compile.model_spec.text.reference import gelu, rms_norm

Float32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Weights = Mapping[str, Float32Array]
"""By checkpoint name without `model.`, (out, in)."""

_LAYER_NORM_EPS = np.float32(1e-5)


def squares(picture: npt.NDArray[np.uint8], size: int) -> tuple[Float32Array, IntArray]:
    """Squares of `size` pixels of (H, W, 3), row-major, flattened HWC, 0 to 1; their (x, y)."""
    down, across = picture.shape[0] // size, picture.shape[1] // size
    cut = picture[: down * size, : across * size].reshape(down, size, across, size, 3)
    y, x = np.mgrid[:down, :across]
    values = cut.swapaxes(1, 2).reshape(down * across, -1).astype(np.float32) / np.float32(255)
    return values, np.stack([x.ravel(), y.ravel()], axis=-1)


def clipped_linear(weights: Weights, name: str, x: Float32Array, is_clipped: bool) -> Float32Array:
    """``clip(clip(x) W^T)``, or the plain product."""
    matrix = weights[f"{name}.linear.weight"]
    if not is_clipped:
        return x @ matrix.T
    low, high, out_low, out_high = (
        weights[f"{name}.{bound}"]
        for bound in ("input_min", "input_max", "output_min", "output_max")
    )
    result: Float32Array = np.clip(np.clip(x, low, high) @ matrix.T, out_low, out_high)
    return result


def rotate(x: Float32Array, positions: IntArray, theta: float) -> Float32Array:
    """RoPE of (S, heads, D): the first half of a head by x, the second by y."""
    half = x.shape[-1] // 2
    frequencies = theta ** -(np.arange(0, half, 2, dtype=np.float64) / half)
    halves = []
    for axis, part in enumerate(np.split(x, 2, axis=-1)):
        angle = positions[:, axis, None] * frequencies.astype(np.float32)
        angle = angle[:, None, :].astype(np.float32)
        low, high = np.split(part, 2, axis=-1)
        cos, sin = np.cos(angle), np.sin(angle)
        halves += [low * cos - high * sin, high * cos + low * sin]
    return np.concatenate(halves, axis=-1)


def attention(
    config: VisionConfig, weights: Weights, prefix: str, x: Float32Array, positions: IntArray
) -> Float32Array:
    """Every patch sees every other; no scale."""
    eps, clipped = config.rms_norm_eps, config.use_clipped_linears
    shape = (x.shape[0], config.num_attention_heads, config.head_dim)
    q, k, v = (
        clipped_linear(weights, f"{prefix}.{name}_proj", x, clipped).reshape(shape)
        for name in "qkv"
    )
    q, k = (
        rotate(rms_norm(y, weights[f"{prefix}.{n}_norm.weight"], eps), positions, config.rope_theta)
        for n, y in (("q", q), ("k", k))
    )
    scores = np.einsum("shd,thd->hst", q, k, optimize=True)
    share = np.exp(scores - scores.max(axis=-1, keepdims=True))
    share /= share.sum(axis=-1, keepdims=True)
    mixed = np.einsum("hst,thd->shd", share, rms_norm(v, None, eps), optimize=True)
    return clipped_linear(weights, f"{prefix}.o_proj", mixed.reshape(x.shape[0], -1), clipped)


def feed_forward(
    config: VisionConfig, weights: Weights, prefix: str, x: Float32Array
) -> Float32Array:
    """``down(gelu(gate x) * (up x))``."""
    clipped = config.use_clipped_linears
    gate, up = (
        clipped_linear(weights, f"{prefix}.{name}_proj", x, clipped) for name in ("gate", "up")
    )
    return clipped_linear(weights, f"{prefix}.down_proj", gelu(gate) * up, clipped)


def tower(config: VisionConfig, weights: Weights, picture: npt.NDArray[np.uint8]) -> Float32Array:
    """Pooled rows of a picture, row-major over its blocks."""
    prefix, eps = "vision_tower", config.rms_norm_eps
    pixels, positions = squares(picture, config.patch_size)
    table = weights[f"{prefix}.patch_embedder.position_embedding_table"]
    x = (2 * (pixels - np.float32(0.5))) @ weights[f"{prefix}.patch_embedder.input_proj.weight"].T
    x = x + table[0, positions[:, 0]] + table[1, positions[:, 1]]
    for index in range(config.num_hidden_layers):
        layer = f"{prefix}.encoder.layers.{index}"

        def norm(name: str, y: Float32Array, layer: str = layer) -> Float32Array:
            return rms_norm(y, weights[f"{layer}.{name}_layernorm.weight"], eps)

        branch = attention(config, weights, f"{layer}.self_attn", norm("input", x), positions)
        x = x + norm("post_attention", branch)
        branch = feed_forward(config, weights, f"{layer}.mlp", norm("pre_feedforward", x))
        x = x + norm("post_feedforward", branch)
    side = config.pooling_kernel_size
    down, across = picture.shape[0] // config.block_size, picture.shape[1] // config.block_size
    blocks = x.reshape(down, side, across, side, -1).mean(axis=(1, 3), dtype=np.float32)
    pooled: Float32Array = blocks.reshape(down * across, -1) * np.float32(config.hidden_size**0.5)
    if config.standardize:
        pooled = (pooled - weights[f"{prefix}.std_bias"]) * weights[f"{prefix}.std_scale"]
    return pooled


def layer_norm(weights: Weights, name: str, x: Float32Array) -> Float32Array:
    """PyTorch's LayerNorm."""
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + _LAYER_NORM_EPS)
    result: Float32Array = centred / deviation * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return result


def unified(
    config: UnifiedVisionConfig, weights: Weights, picture: npt.NDArray[np.uint8]
) -> Float32Array:
    """Rows of a picture's blocks before the embedder."""
    prefix = "vision_embedder"
    pixels, positions = squares(picture, config.block_size)
    x = layer_norm(weights, f"{prefix}.patch_ln1", pixels)
    x = x @ weights[f"{prefix}.patch_dense.weight"].T + weights[f"{prefix}.patch_dense.bias"]
    table = weights[f"{prefix}.pos_embedding"]
    x = layer_norm(weights, f"{prefix}.patch_ln2", x)
    return layer_norm(
        weights,
        f"{prefix}.pos_norm",
        x + table[positions[:, 0], 0] + table[positions[:, 1], 1],
    )


def embed_image(
    config: Gemma4Config, weights: Weights, picture: npt.NDArray[np.uint8]
) -> Float32Array:
    """Rows (blocks, hidden_size of the decoder) of a picture (H, W, 3), sides multiples of a block.

    Raises
    ------
    ConfigError
        If the config has no image input.
    """
    vision = config.vision
    if vision is None:
        raise ConfigError("the config has no image input", hint="ask for the modality `image`")
    if isinstance(vision, UnifiedVisionConfig):
        x = unified(vision, weights, picture)
    else:
        x = tower(vision, weights, picture)
    normed = rms_norm(x, None, vision.rms_norm_eps)
    result: Float32Array = normed @ weights["embed_vision.embedding_projection.weight"].T
    return result
