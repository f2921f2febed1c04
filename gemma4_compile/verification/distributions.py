"""Distributions of the next token on several sets of weights, compared at every position.

Logits of thousands of positions over a whole vocabulary are gigabytes: the heads multiply block by
block, and of each position only sums and the best tokens stay. This module needs torch
(`gemma4-compile[verify]`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from gemma4_compile.types import JsonObject
from gemma4_compile.verification.heads import Weights, head_name, head_rows, logits_of, parsed
from gemma4_compile.verification.measures import TOP, Positions

BLOCK_BYTES = 64 << 20  # of rows of a head, in float32
CHUNK = 1024  # positions that are multiplied at once


@dataclass
class _Softmax:
    """Of each position of a set, over the tokens so far.

    Attributes
    ----------
    largest, total : the largest logit, and the sum of ``exp(logit - largest)``, float64
    best, tokens : the TOP best logits and their tokens
    following : the logit of the text's next token
    apart : ``sum exp(right - largest) (right - logit)``, `right` and `largest` the reference's
    """

    largest: torch.Tensor
    total: torch.Tensor
    best: torch.Tensor
    tokens: torch.Tensor
    following: torch.Tensor
    apart: torch.Tensor

    @classmethod
    def empty(cls, count: int, device: str) -> _Softmax:
        def full(value: float, *shape: int) -> torch.Tensor:
            return torch.full((count, *shape), value, dtype=torch.float64, device=device)

        tokens = torch.full((count, TOP), -1, device=device)
        none = -torch.inf
        return cls(full(none), full(0), full(none, TOP), tokens, full(torch.nan), full(0))

    def add(self, rows: slice, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Add tokens; returns the factor of sums that were relative to the largest before."""
        largest = torch.maximum(self.largest[rows], logits.amax(1))
        factor = torch.exp(self.largest[rows] - largest)
        self.total[rows] *= factor
        self.total[rows] += torch.exp(logits - largest[:, None]).sum(1)
        self.largest[rows] = largest
        values, places = torch.topk(logits, min(TOP, logits.shape[1]), 1)
        best = torch.cat([self.best[rows], values], 1)
        tokens = torch.cat([self.tokens[rows], ids[places]], 1)
        self.best[rows], kept = torch.topk(best, TOP, 1)
        self.tokens[rows] = tokens.gather(1, kept)
        return factor

    def logarithm(self) -> torch.Tensor:
        """Logarithm of the sum of exponentials."""
        return self.largest + torch.log(self.total)


def compare_heads(
    text: JsonObject,
    weights: Sequence[Weights],
    normed: Sequence[torch.Tensor],
    following: Sequence[int | None],
    excluded: Sequence[int] = (),
    device: str = "cpu",
) -> list[Positions]:
    """Compare every set but the first with the first one.

    Parameters
    ----------
    text : the text decoder's `config.json`
    normed : by set, (positions, hidden_size) after the final norm
    following : the text's next token after each position, None where a text ends
    excluded : tokens that are left out on all sides
    """
    config = parsed(text)
    count, cap = len(normed[0]), config.final_logit_softcapping
    places = torch.tensor([-1 if token is None else token for token in following], device=device)
    sums = [_Softmax.empty(count, device) for _ in weights]
    with torch.no_grad():
        for begin, end, heads in _blocks(weights, config.vocab_size, device):
            ids = torch.arange(begin, end, device=device)
            if excluded:
                ids = ids[~torch.isin(ids, torch.tensor(list(excluded), device=device))]
            if not len(ids):
                continue
            for first in range(0, count, CHUNK):
                rows = slice(first, first + CHUNK)
                own = [
                    logits_of(one[rows].to(device), matrix, each, cap).double()
                    for one, matrix, each in zip(normed, heads, weights, strict=True)
                ]
                if len(ids) < end - begin:
                    own = [each[:, ids - begin] for each in own]
                _add(sums, rows, own, ids, places[rows])
    return [_positions(sums[0], found) for found in sums[1:]]


def _add(
    sums: Sequence[_Softmax],
    rows: slice,
    logits: Sequence[torch.Tensor],
    ids: torch.Tensor,
    following: torch.Tensor,
) -> None:
    """Add logits of some tokens at some positions to every set."""
    right = logits[0]
    factor = sums[0].add(rows, right, ids)
    share = torch.exp(right - sums[0].largest[rows, None])
    where = torch.searchsorted(ids, following).clamp(max=len(ids) - 1)
    is_here = ids[where] == following
    for index, (one, own) in enumerate(zip(sums, logits, strict=True)):
        if index:
            one.add(rows, own, ids)
            one.apart[rows] *= factor
            one.apart[rows] += (share * (right - own)).sum(1)
        token = own.gather(1, where[:, None])[:, 0]
        one.following[rows] = torch.where(is_here, token, one.following[rows])


def _blocks(
    weights: Sequence[Weights], vocab_size: int, device: str
) -> Iterator[tuple[int, int, list[torch.Tensor]]]:
    """Rows of every set's head, block by block; those that sets share are read once."""
    cols = weights[0].shapes[head_name(weights[0])][-1]
    size = max(1, BLOCK_BYTES // (4 * cols))
    for begin in range(0, vocab_size, size):
        end = min(begin + size, vocab_size)
        read: dict[Hashable, torch.Tensor] = {}
        heads = []
        for one in weights:
            version = one.version_of(head_name(one))
            if version not in read:
                read[version] = head_rows(one, begin, end).to(device)
            heads.append(read[version])
        yield begin, end, heads


def _positions(right: _Softmax, found: _Softmax) -> Positions:
    expected, own = right.logarithm(), found.logarithm()
    divergence = found.apart / right.total - (expected - own)
    same = (found.tokens[:, :, None] == right.tokens[:, None]) & (right.tokens >= 0)[:, None]
    shares = same.any(1).sum(1).double() / (right.tokens >= 0).sum(1)

    def array(values: torch.Tensor) -> npt.NDArray[np.float64]:
        return values.cpu().numpy()

    return Positions(
        divergence=np.maximum(array(divergence), 0.0),
        same_token=array((found.tokens[:, 0] == right.tokens[:, 0]).double()),
        shared_tokens=array(shares),
        loss=array(own - found.following),
        reference_loss=array(expected - right.following),
    )
