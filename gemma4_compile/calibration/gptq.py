"""GPTQ: integers of a matrix chosen one input channel after the other.

A channel's rounding error is passed on to the channels that are not rounded yet, as far as the
inputs of some text say that these can make up for it (Frantar et al., 2022). The grid is that of
the scheme's form (`form`), 16 levels of each group of 32 neighbouring channels. Channels go by the
strength of their inputs; the terms of their groups are chosen before.

Very wide matrices are cut into blocks of channels that know nothing of one another: the statistics
of a block of MAX_BLOCK channels, squared, are what memory has to hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gemma4_compile.calibration.finite import check_finite
from gemma4_compile.calibration.form import Form, Pair, Terms, joined, nearest
from gemma4_compile.calibration.group_form import GroupForm
from gemma4_compile.calibration.minima_form import MinimaForm
from gemma4_compile.calibration.schemes import CalibratedScheme
from gemma4_compile.quantization.groups import exact_groups
from gemma4_compile.quantization.minima import MinimaScheme

MAX_BLOCK = 6144  # channels; hidden sizes are below it
_DAMPING = 0.05  # of the mean strength: directions that the text never takes
_LAZY = 128  # channels whose errors are passed on to the rest at once
_ROWS = 4096  # that are searched, or summed up, at once


def form_of(scheme: CalibratedScheme) -> Form:
    """The form of a scheme."""
    return MinimaForm(scheme) if isinstance(scheme, MinimaScheme) else GroupForm(scheme)


@dataclass(frozen=True)
class InputStatistics:
    """Sums of products of the inputs of a matrix: (channels, channels) of each block, float64."""

    blocks: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, rows: torch.Tensor, block_size: int) -> InputStatistics:
        """Of inputs (positions, channels), cut where blocks of a form begin."""
        cols = rows.shape[1]
        count = -(-cols // MAX_BLOCK)
        size = -(-cols // (count * block_size)) * block_size
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
    weight: torch.Tensor, statistics: InputStatistics, form: Form, name: str = "weight"
) -> Pair:
    """Stored tensors of a matrix (rows, cols).

    Blocks of the form that the plain search holds exactly, as those of weights that were trained
    for 4 bits, keep its terms, and have no error that others could make up for.

    Raises
    ------
    QuantizationError
        As `Form.plain`, and if the inputs are not finite; `name` is that of the matrix.
    """
    for products in statistics.blocks:
        check_finite(products, f"`{name}`")
    given = weight.cpu().numpy()
    plain = form.plain(given, name)
    restored = form.load(plain)
    exact = exact_groups(given, restored, form.group_size).reshape(len(given), -1)
    if exact.all():
        return plain
    size, device = form.block_size, weight.device
    short = -exact.shape[1] % form.block_groups
    padded = np.pad(exact, ((0, 0), (0, short)), constant_values=True)
    whole = padded.reshape(len(padded), -1, form.block_groups).all(axis=2)
    is_exact = torch.from_numpy(np.asarray(whole)).to(device)
    channels = is_exact.repeat_interleave(size, 1)[:, : weight.shape[1]]
    weight = torch.where(channels, torch.from_numpy(restored).to(device), weight)
    terms = tuple(term.to(device) for term in form.terms_of(plain))
    codes, found, begin = [], [], 0
    for products in statistics.blocks:
        end = begin + len(products)
        blocks = slice(begin // size, -(-end // size))
        part = _Part(
            weight[:, begin:end].to(torch.float64),
            tuple(term[:, blocks] for term in terms),
            is_exact[:, blocks],
        )
        chosen = part.choose(products, form)
        codes.append(chosen[0])
        found.append(chosen[1])
        begin = end
    every = tuple(torch.cat(pieces, 1) for pieces in zip(*found, strict=True))
    return form.stored(torch.cat(codes, 1).cpu().numpy(), every)


@dataclass(frozen=True)
class _Part:
    """Neighbouring blocks of a matrix.

    Attributes
    ----------
    weight : (rows, cols), float64
    plain : terms of the plain search
    kept : (rows, blocks), where these are not searched again
    """

    weight: torch.Tensor
    plain: Terms
    kept: torch.Tensor

    def choose(self, products: torch.Tensor, form: Form) -> tuple[torch.Tensor, Terms]:
        """Codes (rows, cols) uint8 and terms."""
        rows, cols = self.weight.shape
        strength = products.diagonal().clone()
        if not bool(strength.any()):  # no input but zeros: every channel counts the same
            strength.fill_(1.0)
        terms = self._terms(strength, form)
        grid = form.grid(terms, cols // form.group_size)
        order = torch.argsort(strength, descending=True, stable=True)
        factor = _factor(products[order][:, order])
        steps, offsets = (
            one.repeat_interleave(form.group_size, 1)[:, order]
            for one in (grid.steps, grid.offsets)
        )
        left = self.weight[:, order].clone()
        codes = torch.empty_like(left)
        for begin in range(0, cols, _LAZY):
            end = min(begin + _LAZY, cols)
            errors = torch.empty((rows, end - begin), dtype=left.dtype, device=left.device)
            for channel in range(begin, end):
                step, offset, row = steps[:, channel], offsets[:, channel], factor[channel]
                level = nearest(left[:, channel], step, offset, grid.low, grid.high)
                codes[:, channel] = level
                value = level * step - offset
                errors[:, channel - begin] = (left[:, channel] - value) / row[channel]
                left[:, channel:end] -= errors[:, channel - begin, None] * row[channel:end]
            left[:, end:] -= errors @ factor[begin:end, end:]
        unordered = torch.empty_like(codes)
        unordered[:, order] = codes - form.low
        return unordered.to(torch.uint8), terms

    def _terms(self, strength: torch.Tensor, form: Form) -> Terms:
        """Searched ones, some rows after the others, and those that are kept."""
        count = max(1, _ROWS * 512 // self.weight.shape[1])
        pieces = [
            form.search(
                self.weight[begin : begin + count],
                strength,
                tuple(term[begin : begin + count] for term in self.plain),
            )
            for begin in range(0, len(self.weight), count)
        ]
        found = tuple(torch.cat(term) for term in zip(*pieces, strict=True))
        return joined(self.kept, self.plain, found)


def _factor(products: torch.Tensor) -> torch.Tensor:
    """The upper Cholesky factor of the inverse of the damped products."""
    damped = products.clone()
    diagonal = damped.diagonal()
    diagonal[diagonal == 0] = 1.0  # a channel that is always 0 passes nothing on
    diagonal += _DAMPING * diagonal.mean()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return torch.linalg.cholesky(inverse, upper=True)
