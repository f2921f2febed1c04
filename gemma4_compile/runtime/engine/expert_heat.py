"""How much is read of each page of experts, and which pages change places: least frequently used.

An expert is no page: pages have the size that the device's memory is mapped in, so a page has parts
of some experts of one layer, and is as hot as the bytes of it that are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

HALF_LIFE = 32
"""Looks after which what was read counts half."""
LEAD = 1.25
"""A page takes another's frame if so many times as much is read of it: moves cost, too."""

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stack:
    """A stored tensor of a layer's experts, or of some of them, one after the other in its bytes.

    Attributes
    ----------
    row : of the layer, in counts
    first, end : of the layer's experts, as shares of all, which it has
    pages : that it has, by number
    nbytes : of it
    """

    row: int
    first: float
    end: float
    pages: range
    nbytes: int


@dataclass(frozen=True)
class Move:
    """A page that gets a frame.

    Attributes
    ----------
    page : that is brought
    frame : that it gets
    evicted : the page that has the frame until then; None for a free one
    """

    page: int
    frame: int
    evicted: int | None


class PageHeat:
    """Bytes of each page that a forward reads, decayed means."""

    def __init__(self, stacks: Sequence[Stack], experts: int, page_bytes: int) -> None:
        """Begin with nothing read.

        Parameters
        ----------
        experts : of a layer
        """
        count = sum(len(stack.pages) for stack in stacks)
        self._shares = np.zeros((count, experts))
        self._rows = np.zeros(count, np.intp)
        for stack in stacks:
            pages = list(stack.pages)
            self._rows[pages] = stack.row
            self._shares[pages] = _overlaps(stack, experts, page_bytes)
        self.scores: Float64Array = np.zeros(count)
        self._keep = 0.5 ** (1 / HALF_LIFE)

    def add(self, counts: Float64Array) -> Float64Array:
        """Take what one look found, (layers, experts); return bytes read of each page."""
        read: Float64Array = np.einsum("pe,pe->p", self._shares, counts[self._rows])
        if read.any():
            self.scores = self._keep * self.scores + (1 - self._keep) * read
        return read


def _overlaps(stack: Stack, experts: int, page_bytes: int) -> Float64Array:
    """Bytes (pages, experts) of each expert in each page of a stack."""
    pages, numbers = np.arange(len(stack.pages))[:, None], np.arange(experts)[None, :]
    scale = stack.nbytes / (stack.end - stack.first)
    begins = (numbers / experts - stack.first) * scale
    ends = ((numbers + 1) / experts - stack.first) * scale
    lowest = np.maximum(np.maximum(begins, 0), pages * page_bytes)
    highest = np.minimum(np.minimum(ends, stack.nbytes), (pages + 1) * page_bytes)
    found: Float64Array = np.maximum(0, highest - lowest)
    return found


def plan_moves(
    scores: Float64Array, frame_of: Mapping[int, int], frames: int, most: int
) -> list[Move]:
    """Which pages get frames: the hottest free ones, in the place of the coldest.

    Parameters
    ----------
    scores : of each page
    frame_of : frames of those pages that have one
    frames : how many there are
    most : moves
    """
    is_in = np.zeros(len(scores), bool)
    is_in[list(frame_of)] = True
    hottest = [int(p) for p in np.argsort(-scores, kind="stable") if not is_in[p]]
    coldest = [int(p) for p in np.argsort(scores, kind="stable") if is_in[p]]
    free = sorted(set(range(frames)) - set(frame_of.values()))
    moves: list[Move] = []
    for page in hottest[:most]:
        if scores[page] <= 0:
            break
        if free:
            moves.append(Move(page, free.pop(0), None))
            continue
        if not coldest or scores[page] <= LEAD * scores[coldest[0]]:
            break
        evicted = coldest.pop(0)
        moves.append(Move(page, frame_of[evicted], evicted))
    return moves
