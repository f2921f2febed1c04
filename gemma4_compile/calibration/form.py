"""Forms of 4-bit integers as calibration sees them: a grid for each group, searched by its inputs.

Every form's values are ``level * step - offset``, with a step and an offset of each group of
neighbouring channels. What a form stores of them is its terms: tensors (rows, blocks, ...), a block
being the channels whose terms belong together. `gptq` chooses levels on the grid of the terms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from gemma4_compile.quantization.scheme import Scheme
from gemma4_compile.types import Array

Terms = tuple[torch.Tensor, ...]
Pair = tuple[Array, Array]
FITS = 2  # of a step to the levels of the one before
_LEAST = 1e-6  # of the mean strength: so much an input counts that is always 0


@dataclass(frozen=True)
class Grid:
    """Values that a matrix can have.

    Attributes
    ----------
    steps, offsets : (rows, groups), float64
    low, high : levels
    """

    steps: torch.Tensor
    offsets: torch.Tensor
    low: int
    high: int


class Form(ABC):
    """A scheme's terms.

    Attributes
    ----------
    scheme : stores two tensors of a matrix: its codes, and its terms
    group_size : channels of a group
    block_groups : groups of a block
    low : the level of code 0
    """

    scheme: Scheme
    group_size: int
    block_groups: int
    low: int

    @property
    def block_size(self) -> int:
        """Channels of a block."""
        return self.group_size * self.block_groups

    def plain(self, weight: Array, name: str) -> Pair:
        """What is stored of a matrix (rows, cols) without a text.

        Raises
        ------
        QuantizationError
            As `Scheme.store`; `name` is that of the matrix.
        """
        codes, terms = self.scheme.store(weight, name=name, first_row=0)
        return codes, terms

    def load(self, stored: Pair) -> Array:
        """The float32 matrix that it means."""
        return self.scheme.load(stored)

    @abstractmethod
    def terms_of(self, stored: Pair) -> Terms:
        """The terms of what is stored."""

    @abstractmethod
    def grid(self, terms: Terms, groups: int) -> Grid:
        """The grid of the first so many groups of a row."""

    @abstractmethod
    def search(self, weight: torch.Tensor, strength: torch.Tensor, plain: Terms) -> Terms:
        """Terms of the least error, weighted by the strength of the inputs.

        Parameters
        ----------
        weight : (rows, cols), float64, blocks from the first channel on; the last may be short
        strength : (cols,)
        plain : the terms that are stored without a text
        """

    @abstractmethod
    def stored(self, codes: Array, terms: Terms) -> Pair:
        """Stored tensors of codes (rows, cols) uint8."""


def joined(mask: torch.Tensor, these: Terms, others: Terms) -> Terms:
    """`these` terms of the blocks of a mask (rows, blocks), `others` of the rest."""
    return tuple(
        torch.where(mask.reshape(*mask.shape, *(1,) * (one.dim() - 2)), one, other)
        for one, other in zip(these, others, strict=True)
    )


def importance_of(strength: torch.Tensor, group_size: int) -> torch.Tensor:
    """Weights of square errors: (1, groups, group_size)."""
    return strength.reshape(1, -1, group_size) + _LEAST * strength.mean()


def nearest(
    weight: torch.Tensor, step: torch.Tensor, offset: torch.Tensor, low: int, high: int
) -> torch.Tensor:
    """The levels whose values are nearest to weights."""
    divisor = torch.where(step == 0, torch.ones_like(step), step)
    return ((weight + offset) / divisor).round_().clamp_(low, high)
