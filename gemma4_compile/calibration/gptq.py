"""GPTQ: integers of a matrix chosen one input channel after the other.

A channel's rounding error is passed on to the channels that are not rounded yet, as far as the
inputs of some text say that these can make up for it (Frantar et al., 2022). The grid is the one of
`quantization.groups` with 4 bits: ``(q - 7) * scale`` with a signed scale and 16 codes for 32
neighbouring channels. Channels go by the strength of their inputs; their scales are chosen before.

Very wide matrices are cut into blocks of channels that know nothing of one another: the statistics
of a block of MAX_BLOCK channels, squared, are what memory has to hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gemma4_compile.calibration.finite import check_finite
from gemma4_compile.quantization.groups import GroupScheme, exact_groups
from gemma4_compile.types import Array

MAX_BLOCK = 6144  # channels; hidden sizes are below it
LOW, HIGH = -7, 8  # steps of codes 0 and 15
_DAMPING = 0.05  # of the mean strength: directions that the text never takes
_LAZY = 128  # channels whose errors are passed on to the rest at once
_ROWS = 4096  # that are searched, or summed up, at once
_RATIOS = torch.linspace(6.6, 10.2, 10).tolist()  # of a group's largest weight to its step
_FITS = 2


@dataclass(frozen=True)
class InputStatistics:
    """Sums of products of the inputs of a matrix: (channels, channels) of each block, float64."""

    blocks: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, rows: torch.Tensor, group_size: int) -> InputStatistics:
        """Of inputs (positions, channels)."""
        cols = rows.shape[1]
        count = -(-cols // MAX_BLOCK)
        size = -(-cols // (count * group_size)) * group_size
        return cls(
            tuple(_products(rows[:, begin : begin + size]) for begin in range(0, cols, size))
        )


def _products(rows: torch.Tensor) -> torch.Tensor:
    total = torch.zeros((rows.shape[1],) * 2, dtype=torch.float64, device=rows.device)
    for begin in range(0, len(rows), _ROWS):
        part = rows[begin : begin + _ROWS]
        total += part.T @ part
    return total


def choose_codes(
    weight: torch.Tensor, statistics: InputStatistics, scheme: GroupScheme, name: str = "weight"
) -> tuple[Array, Array]:
    """Stored tensors of a matrix (rows, cols): words and scales, as `scheme` has them.

    Groups that the plain search holds exactly, as those of weights that were trained for 4 bits,
    keep its scales, and have no error that others could make up for.

    Raises
    ------
    QuantizationError
        As `GroupScheme.store`, and if the inputs are not finite; `name` is that of the matrix.
    """
    for products in statistics.blocks:
        check_finite(products, f"`{name}`")
    given = weight.cpu().numpy()
    plain = scheme.store(given, name=name, first_row=0)
    restored = scheme.load(plain)
    exact = exact_groups(given, restored, scheme.group_size).reshape(len(given), -1)
    if exact.all():
        return plain[0], plain[1]
    size, device = scheme.group_size, weight.device
    is_exact = torch.from_numpy(exact.repeat(size, axis=1)).to(device)
    weight = torch.where(is_exact, torch.from_numpy(restored).to(device), weight)
    known = torch.from_numpy(np.where(exact, plain[1].astype(np.float64), np.nan)).to(device)
    codes, scales, begin = [], [], 0
    for products in statistics.blocks:
        end = begin + len(products)
        part = weight[:, begin:end].to(torch.float64)
        found = _choose(part, products, known[:, begin // size : end // size], scheme)
        codes.append(found[0])
        scales.append(found[1])
        begin = end
    words = scheme.packing.pack(np.concatenate([one.cpu().numpy() for one in codes], axis=1))
    stored = np.concatenate([one.cpu().numpy() for one in scales], axis=1)
    return words, stored.astype(scheme.scale_dtype)


def _choose(
    weight: torch.Tensor, products: torch.Tensor, known: torch.Tensor, scheme: GroupScheme
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of a block; `known` scales are NaN where they are to be searched."""
    rows, cols = weight.shape
    strength = products.diagonal().clone()
    if not bool(strength.any()):  # no input but zeros: every channel counts the same
        strength.fill_(1.0)
    scales = torch.cat(
        [
            search_scales(part, strength, scheme)
            for part in torch.split(weight, max(1, _ROWS * 512 // cols))
        ]
    )
    scales = torch.where(known.isnan(), scales, known)
    order = torch.argsort(strength, descending=True, stable=True)
    factor = _factor(products[order][:, order])
    steps = scales.repeat_interleave(scheme.group_size, 1)[:, order]
    left = weight[:, order].clone()
    codes = torch.empty_like(left)
    for begin in range(0, cols, _LAZY):
        end = min(begin + _LAZY, cols)
        errors = torch.empty((rows, end - begin), dtype=left.dtype, device=left.device)
        for channel in range(begin, end):
            step, row = steps[:, channel], factor[channel]
            level = _levels(left[:, channel], step)
            codes[:, channel] = level
            errors[:, channel - begin] = (left[:, channel] - level * step) / row[channel]
            left[:, channel:end] -= errors[:, channel - begin, None] * row[channel:end]
        left[:, end:] -= errors @ factor[begin:end, end:]
    unordered = torch.empty_like(codes)
    unordered[:, order] = codes - LOW
    return unordered.to(torch.uint8), scales


def _factor(products: torch.Tensor) -> torch.Tensor:
    """The upper Cholesky factor of the inverse of the damped products."""
    damped = products.clone()
    diagonal = damped.diagonal()
    diagonal[diagonal == 0] = 1.0  # a channel that is always 0 passes nothing on
    diagonal += _DAMPING * diagonal.mean()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return torch.linalg.cholesky(inverse, upper=True)


def _levels(weight: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    divisor = torch.where(steps == 0, torch.ones_like(steps), steps)
    return (weight / divisor).round_().clamp_(LOW, HIGH)


def search_scales(
    weight: torch.Tensor, strength: torch.Tensor, scheme: GroupScheme
) -> torch.Tensor:
    """Signed scales (rows, groups) of the least error, weighted by the strength of the inputs.

    They are values of the scale's dtype, in float64.
    """
    size, dtype = scheme.group_size, getattr(torch, scheme.scale_dtype)
    groups = weight.reshape(len(weight), -1, size)
    importance = strength.reshape(1, -1, size) + 1e-6 * strength.mean()
    largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    best = torch.zeros_like(largest)
    least = (importance * groups * groups).sum(2, keepdim=True)
    for ratio in (*_RATIOS, *(-ratio for ratio in _RATIOS)):
        steps = (largest / ratio).to(dtype).to(weight.dtype)
        for _ in range(_FITS):
            levels = _levels(groups, steps)
            weighted = importance * levels
            squares = (weighted * levels).sum(2, keepdim=True).clamp_min_(1e-30)
            steps = ((weighted * groups).sum(2, keepdim=True) / squares).to(dtype)
            steps = steps.to(weight.dtype)
        levels = _levels(groups, steps)
        error = (importance * (levels * steps - groups) ** 2).sum(2, keepdim=True)
        better = error < least
        least, best = torch.where(better, error, least), torch.where(better, steps, best)
    return best[:, :, 0]
