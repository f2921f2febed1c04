"""Draws scenes with torch, a batch at a time, as the preprocessing would hand them over.

Pictures of users were scaled to their grid by a bicubic filter from whatever size they had, so here
some are drawn smaller, with hard or soft edges, and scaled up by the same filter.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn import functional

from tools.training.tiny.media_batches import Pictures
from tools.training.tiny.pictures import BLOCK, DRAWN, SHAPES, Float32Array

PATCH = 16
_SCALES = ((1.0, 0.3), (0.5, 0.3), (1 / 3, 0.15), (0.25, 0.15), (1 / 6, 0.1))
_FAR = 1e6  # pixels from a shape that is not there
_LEAST_SIDE = 24  # pixels of the smallest drawing
_NOISY = 0.3  # share of the batches


def _inside(kind: int, u: torch.Tensor, v: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
    """Signed distance, below 0 inside, to a shape in the unit circle; v grows downwards."""
    name = SHAPES[kind]
    if name == "circle":
        return torch.hypot(u, v) - 1
    if name == "square":
        return torch.maximum(u.abs(), v.abs()) - 0.8
    if name == "triangle":
        side = math.sqrt(0.75) * u.abs() - 0.5 * v
        return torch.maximum(v, side) - 0.5
    fifth = 2 * math.pi / 5
    turned = torch.remainder(torch.atan2(u, -v) + fifth / 2, fifth) - fifth / 2
    along, across = torch.hypot(u, v), turned.abs()
    x, y = along * across.cos() - 1, along * across.sin()
    to_x, to_y = inner * math.cos(fifth / 2) - 1, inner * math.sin(fifth / 2)
    return (to_y * x - to_x * y) / torch.hypot(to_x, to_y)


def _distance(
    shape: torch.Tensor, kinds: Float32Array, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """Distances (pictures, height, width) in pixels to one shape of each picture.

    Parameters
    ----------
    shape : (pictures, 10)
    kinds : its first column, on the host: to look for it on the device would wait for it
    """
    numbers = dict(zip(DRAWN, shape[:, :, None, None].unbind(1), strict=True))
    dx = (x - numbers["x"]) / numbers["radius_x"].clamp_min(1e-3)
    dy = (y - numbers["y"]) / numbers["radius_y"].clamp_min(1e-3)
    cos, sin = numbers["angle"].cos(), numbers["angle"].sin()
    u, v = cos * dx + sin * dy, cos * dy - sin * dx
    pixels = (numbers["radius_x"] * numbers["radius_y"]).sqrt()
    found = torch.full_like(u, _FAR)
    for kind in range(len(SHAPES)):
        some = torch.from_numpy(np.flatnonzero(kinds == kind)).to(shape.device)
        if len(some):
            found[some] = _inside(kind, u[some], v[some], numbers["inner"][some]) * pixels[some]
    return found


def draw(pictures: Pictures, seed: int, device: str) -> torch.Tensor:
    """Pixels (pictures, 3, height, width), 0 to 255 in whole numbers."""
    random = torch.Generator().manual_seed(seed)

    def chance() -> float:
        return float(torch.rand((), generator=random))

    width, height = pictures.grid[0] * BLOCK, pictures.grid[1] * BLOCK
    radii = pictures.shapes[:, :, 3:5][pictures.shapes[:, :, 0] >= 0]
    least = float(radii.min()) if radii.size else 100.0
    weights = torch.tensor([share for _, share in _SCALES])
    scale = _SCALES[int(torch.multinomial(weights, 1, generator=random))][0]
    if least * scale < 7 or min(width, height) * scale < _LEAST_SIDE:
        scale = 1.0
    columns, rows = round(width * scale), round(height * scale)
    x = ((torch.arange(columns, device=device) + 0.5) * (width / columns))[None, None, :]
    y = ((torch.arange(rows, device=device) + 0.5) * (height / rows))[None, :, None]
    is_hard = scale <= 0.5 and chance() < 0.4
    softness = (1.0 if chance() < 0.6 else 1 + 6 * chance() ** 2) / scale
    softness = 1e-3 if is_hard else min(softness, least / 2)
    shapes = torch.from_numpy(pictures.shapes).to(device)
    frame = torch.from_numpy(pictures.frame).to(device)
    image = _background(torch.from_numpy(pictures.paper).to(device), frame, x, y)
    outline = frame[:, 5, None, None]
    for index in range(shapes.shape[1]):
        shape = shapes[:, index]
        distance = _distance(shape, pictures.shapes[:, index, 0], x, y)
        covered = (0.5 - distance / softness).clamp(0, 1)
        filled = (0.5 - (distance + outline) / softness).clamp(0, 1)
        colour = shape[:, 7:10, None, None]
        ring = torch.where(colour.sum(1, keepdim=True) < 0.6, 0.8, 0.05)
        image = torch.lerp(image, ring.expand_as(image), covered[:, None] * (outline > 0)[:, None])
        image = torch.lerp(image, colour.expand_as(image), filled[:, None])
    left, top, right, bottom = (frame[:, side, None, None] for side in range(4))
    within = (x > left) & (x < right) & (y > top) & (y < bottom)
    image = image * within[:, None]
    if scale != 1.0:
        image = functional.interpolate(
            image, size=(height, width), mode="bicubic", antialias=True, align_corners=False
        )
    if chance() < _NOISY:
        strength = 0.04 * chance()
        noise = torch.Generator(device).manual_seed(seed)
        image = image + strength * torch.randn(image.shape, generator=noise, device=device)
    return (image * 255).round().clamp(0, 255)


def _background(
    paper: torch.Tensor, frame: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """Two colours, shaded into each other along a line."""
    left, top, right, bottom, shading = (frame[:, side, None, None] for side in range(5))
    u, v = (x - left) / (right - left) - 0.5, (y - top) / (bottom - top) - 0.5
    share = (0.5 + (u * shading.cos() + v * shading.sin()) / math.sqrt(2)).clamp(0, 1)
    first, second = (paper[:, index, :, None, None] for index in range(2))
    return first + (second - first) * share[:, None]


def patches(pixels: torch.Tensor) -> torch.Tensor:
    """Patches (pictures, count, 768) of 0 to 1: row by row, each flattened row, column, channel."""
    count, channels, height, width = pixels.shape
    split = pixels.reshape(count, channels, height // PATCH, PATCH, width // PATCH, PATCH)
    return split.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2) / 255


def positions(grid: tuple[int, int], device: str) -> torch.Tensor:
    """Column and row (count, 2) of the patches of a grid of blocks."""
    side = BLOCK // PATCH
    y, x = torch.meshgrid(
        torch.arange(grid[1] * side, device=device),
        torch.arange(grid[0] * side, device=device),
        indexing="ij",
    )
    return torch.stack([x.flatten(), y.flatten()], -1)
